package compat.crash;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * One transactional producer: each transaction writes to three topics and moves the offset of the producer's own
 * group to its number + 1; one in five is aborted on purpose.
 */
final class Transactions implements Runnable {
    private static final List<String> TOPICS = List.of("crash-a", "crash-b", "crash-c");
    private static final int PARTITIONS = 2;
    private static final Duration COMMIT_TRIES = Duration.ofSeconds(90);

    private final String name;
    private final Map<String, Object> config;
    private final Random random;
    private final ConsumerGroupMetadata group;
    private int number = -1;

    Transactions(String name, String bootstrap, long seed) {
        this.name = name;
        config = Workload.common(bootstrap);
        config.put("transactional.id", name);
        // Longer than a restart takes: what is tested is the crash, not the timeout.
        config.put("transaction.timeout.ms", 60_000);
        config.put("linger.ms", 0);
        random = new Random(seed);
        group = new ConsumerGroupMetadata("crash-offsets-" + name);
    }

    private static boolean stopping() throws InterruptedException {
        // Also the pace: without it the record of what happened would be longer than what it tells.
        return Workload.PRODUCERS_STOP.await(3, TimeUnit.MILLISECONDS);
    }

    @Override
    public void run() {
        try {
            while (!stopping()) {
                KafkaProducer<String, String> producer =
                        new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
                try {
                    producer.initTransactions();
                    while (!stopping() && transaction(producer)) {}
                } catch (KafkaException error) {
                    Journal.note(name, error);
                } finally {
                    producer.close(Duration.ZERO);
                }
            }
        } catch (InterruptedException error) {
            Journal.note(name, error);
        }
    }

    /** One transaction; false if the producer cannot go on. */
    private boolean transaction(KafkaProducer<String, String> producer) {
        number++;
        int each = 1 + random.nextInt(3);
        int count = each * TOPICS.size();
        Journal.write("begin", name, number, count);
        try {
            producer.beginTransaction();
            int i = 0;
            for (String topic : TOPICS) {
                for (int k = 0; k < each; k++, i++) {
                    String value = name + "|" + number + "|" + i + "|" + count;
                    producer.send(new ProducerRecord<>(topic, random.nextInt(PARTITIONS), null, value));
                }
            }
            producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition("crash-source", 0), new OffsetAndMetadata(number + 1)), group);
            if (random.nextInt(5) == 0) {
                producer.abortTransaction();
                Journal.write("aborted", name, number);
                return true;
            }
        } catch (KafkaException error) {
            // No commit was asked for, so whatever becomes of the abort, nothing may show.
            Journal.note(name, error);
            return abort(producer, "aborted");
        }
        return commit(producer);
    }

    private boolean commit(KafkaProducer<String, String> producer) {
        Journal.write("commit", name, number);
        long end = System.nanoTime() + COMMIT_TRIES.toNanos();
        while (true) {
            try {
                producer.commitTransaction();
                Journal.write("committed", name, number);
                return true;
            } catch (TimeoutException error) {
                // Unknown yet; the same call asks for the same commit again.
                if (System.nanoTime() > end) {
                    Journal.write("unknown", name, number);
                    return false;
                }
            } catch (KafkaException error) {
                // If it can be aborted, it was refused for good; if not, its fate is unknown to this client.
                Journal.note(name, error);
                return abort(producer, "unknown");
            }
        }
    }

    private boolean abort(KafkaProducer<String, String> producer, String otherwise) {
        try {
            producer.abortTransaction();
            Journal.write("aborted", name, number);
            return true;
        } catch (KafkaException fatal) {
            Journal.note(name, fatal);
            Journal.write(otherwise, name, number);
            return false;
        }
    }
}
