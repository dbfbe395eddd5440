package compat.faults;

import compat.faults.History.Phase;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Consumes, transforms and produces, exactly once: every record of the source goes to two topics in one transaction. */
final class Pipe extends Transactional {
    private static final String GROUP = "faults-pipe";
    private static final int PARTITIONS = 2;

    private final Map<String, Object> config;

    Pipe(String name, String bootstrap, long seed) {
        super(name, bootstrap, seed);
        config = History.common(bootstrap);
        config.put("group.id", GROUP);
        config.put("isolation.level", "read_committed");
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", false);
        config.put("session.timeout.ms", 6_000);
        config.put("heartbeat.interval.ms", 500);
        config.put("fetch.max.wait.ms", 100);
        config.put("max.poll.records", 20);
        config.put("default.api.timeout.ms", 10_000);
    }

    @Override
    boolean stopping() {
        return Phase.PIPES.over();
    }

    @Override
    void transactions(KafkaProducer<String, String> producer) throws InterruptedException {
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("faults-source"), new Resumed(consumer));
            Fate last = Fate.COMMITTED;
            while (last != Fate.BROKEN && !Phase.PIPES.over(5)) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                if (records.isEmpty()) {
                    continue;
                }
                last = transaction(producer, consumer, records);
                if (last == Fate.ABORTED) {
                    rewind(consumer);
                }
            }
        }
    }

    private Fate transaction(
            KafkaProducer<String, String> producer,
            KafkaConsumer<String, String> consumer,
            ConsumerRecords<String, String> records) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (ConsumerRecord<String, String> one : records) {
            offsets.put(new TopicPartition(one.topic(), one.partition()), new OffsetAndMetadata(one.offset() + 1));
        }
        int count = 2 * records.count();
        begin(count, GROUP, offsets);
        try {
            producer.beginTransaction();
            int i = 0;
            for (ConsumerRecord<String, String> one : records) {
                for (String topic : List.of("faults-out-a", "faults-out-b")) {
                    String value = value(i++, count) + "|" + one.value();
                    producer.send(new ProducerRecord<>(topic, random.nextInt(PARTITIONS), null, value));
                }
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            if (random.nextInt(15) == 0) {
                return abort(producer, "aborted", null);
            }
        } catch (KafkaException error) {
            History.note(name, error);
            return abort(producer, "aborted", error);
        }
        return commit(producer);
    }

    /** Back to where the group stands: what an aborted transaction took was not taken. */
    private void rewind(KafkaConsumer<String, String> consumer) {
        resume(consumer, consumer.assignment()).forEach((at, offset) -> {
            if (offset == null) {
                consumer.seekToBeginning(Set.of(at));
            } else {
                consumer.seek(at, offset.offset());
            }
        });
    }

    private static Map<TopicPartition, OffsetAndMetadata> resume(
            KafkaConsumer<String, String> consumer, Collection<TopicPartition> partitions) {
        long asked = System.nanoTime();
        Map<TopicPartition, OffsetAndMetadata> found = consumer.committed(Set.copyOf(partitions));
        found.forEach((at, offset) -> History.write(
                "resume", GROUP, at.topic(), at.partition(), offset == null ? -1 : offset.offset(), asked));
        return found;
    }

    private record Resumed(KafkaConsumer<String, String> consumer) implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            resume(consumer, partitions);
        }
    }
}
