package compat.faults;

import java.time.Duration;
import java.util.Map;
import java.util.Random;
import java.util.StringJoiner;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringSerializer;

/** What all transactional clients share: how a transaction starts and comes to its end. */
abstract class Transactional implements Runnable {
    private static final Duration COMMIT_TRIES = Duration.ofSeconds(90);

    final String name;
    final Random random;
    private final Map<String, Object> config;
    int number = -1;

    Transactional(String name, String bootstrap, long seed) {
        this.name = name;
        random = new Random(seed);
        config = History.common(bootstrap);
        config.put("transactional.id", name);
        config.put("transaction.timeout.ms", 20_000);
        config.put("linger.ms", 0);
        config.put("max.block.ms", 10_000);
    }

    /** How a transaction ended for its producer; a broken one cannot go on. */
    enum Fate {
        COMMITTED,
        ABORTED,
        BROKEN
    }

    /** Runs transactions until the phase is over or the producer cannot go on. */
    abstract void transactions(KafkaProducer<String, String> producer) throws InterruptedException;

    abstract boolean stopping();

    @Override
    public void run() {
        try {
            while (!stopping()) {
                KafkaProducer<String, String> producer =
                        new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
                try {
                    producer.initTransactions();
                    History.write("init", name);
                    transactions(producer);
                } catch (KafkaException error) {
                    History.note(name, error);
                } finally {
                    producer.close(Duration.ZERO);
                }
            }
        } catch (InterruptedException error) {
            History.note(name, error);
        }
    }

    /** The transaction claims: when it is visible, these are the group's offsets, or later ones. */
    void begin(int count, String group, Map<TopicPartition, OffsetAndMetadata> offsets) {
        number++;
        StringJoiner claims = new StringJoiner(",");
        offsets.forEach((at, offset) ->
                claims.add(group + ":" + at.topic() + ":" + at.partition() + "=" + offset.offset()));
        History.write("begin", name, number, count, claims);
    }

    String value(int i, int count) {
        return name + "|" + number + "|" + i + "|" + count;
    }

    Fate commit(KafkaProducer<String, String> producer) {
        History.write("commit", name, number);
        long end = System.nanoTime() + COMMIT_TRIES.toNanos();
        while (true) {
            try {
                producer.commitTransaction();
                History.write("committed", name, number);
                return Fate.COMMITTED;
            } catch (TimeoutException error) {
                // Unknown yet; the same call asks for the same commit again.
                History.note(name, error);
                if (System.nanoTime() > end) {
                    History.write("unknown", name, number, "TimeoutException");
                    return Fate.BROKEN;
                }
            } catch (KafkaException error) {
                // If it can be aborted, it was refused for good; if not, its fate is unknown to this client.
                History.note(name, error);
                return abort(producer, "unknown", error);
            }
        }
    }

    /** Otherwise is what has become of the transaction if the abort does not succeed. */
    Fate abort(KafkaProducer<String, String> producer, String otherwise, Throwable why) {
        String told = why == null ? "wanted" : why.getClass().getSimpleName();
        try {
            producer.abortTransaction();
            History.write("aborted", name, number, told);
            return Fate.ABORTED;
        } catch (KafkaException fatal) {
            History.note(name, fatal);
            History.write(otherwise, name, number, told);
            return Fate.BROKEN;
        }
    }
}
