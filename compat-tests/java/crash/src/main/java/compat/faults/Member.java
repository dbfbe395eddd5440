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
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** One member of the group that reads what the plain producers write, at least once. */
final class Member implements Runnable {
    private static final String GROUP = "faults-group";

    private final String name;
    private final Map<String, Object> config;

    Member(String name, String bootstrap) {
        this.name = name;
        config = History.common(bootstrap);
        config.put("group.id", GROUP);
        config.put("isolation.level", "read_committed");
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", false);
        config.put("session.timeout.ms", 6_000);
        config.put("heartbeat.interval.ms", 500);
        config.put("fetch.max.wait.ms", 100);
        config.put("default.api.timeout.ms", 10_000);
    }

    @Override
    public void run() {
        while (!Phase.CONSUMERS.over()) {
            try (KafkaConsumer<String, String> consumer =
                    new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
                consumer.subscribe(List.of("faults-plain"), new Assigned(name, consumer));
                while (!Phase.CONSUMERS.over()) {
                    process(consumer, consumer.poll(Duration.ofMillis(100)));
                }
            } catch (KafkaException error) {
                History.note(name, error);
            }
        }
    }

    private void process(KafkaConsumer<String, String> consumer, ConsumerRecords<String, String> records) {
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        for (ConsumerRecord<String, String> one : records) {
            History.write("read", name, one.topic(), one.partition(), one.offset(), one.value());
            next.put(new TopicPartition(one.topic(), one.partition()), new OffsetAndMetadata(one.offset() + 1));
        }
        if (next.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync(next);
            next.forEach((at, offset) ->
                    History.write("offset", GROUP, at.topic(), at.partition(), offset.offset(), name));
        } catch (KafkaException error) {
            // Not committed as far as this member knows: whoever is next reads it again.
            History.note(name, error);
        }
    }

    /** Notes where the group stands whenever a partition is given to this member. */
    private record Assigned(String name, KafkaConsumer<String, String> consumer) implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            long asked = System.nanoTime();
            for (TopicPartition at : partitions) {
                History.write("assign", name, "read_committed", at.topic(), at.partition());
            }
            consumer.committed(Set.copyOf(partitions)).forEach((at, offset) -> History.write(
                    "resume", GROUP, at.topic(), at.partition(), offset == null ? -1 : offset.offset(), asked));
        }
    }
}
