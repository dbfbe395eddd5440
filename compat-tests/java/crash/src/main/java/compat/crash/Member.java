package compat.crash;

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
    private final String name;
    private final Map<String, Object> config;

    Member(String name, String bootstrap) {
        this.name = name;
        config = Workload.common(bootstrap);
        config.put("group.id", "crash-group");
        config.put("isolation.level", "read_committed");
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", false);
        config.put("session.timeout.ms", 6000);
        config.put("heartbeat.interval.ms", 500);
        config.put("fetch.max.wait.ms", 200);
    }

    private static boolean stopping() {
        return Workload.ALL_STOP.getCount() == 0;
    }

    @Override
    public void run() {
        while (!stopping()) {
            try (KafkaConsumer<String, String> consumer =
                    new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
                consumer.subscribe(List.of("crash-plain"), new Assigned(consumer));
                while (!stopping()) {
                    process(consumer, consumer.poll(Duration.ofMillis(200)));
                }
            } catch (KafkaException error) {
                Journal.note(name, error);
            }
        }
    }

    private void process(KafkaConsumer<String, String> consumer, ConsumerRecords<String, String> records) {
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        for (ConsumerRecord<String, String> one : records) {
            Journal.write("read", one.partition(), one.offset(), one.value());
            next.put(new TopicPartition(one.topic(), one.partition()), new OffsetAndMetadata(one.offset() + 1));
        }
        if (next.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync(next);
            next.forEach((partition, offset) ->
                    Journal.write("offset", partition.partition(), offset.offset(), System.nanoTime()));
        } catch (KafkaException error) {
            // Not committed as far as this member knows: whoever is next reads it again.
            Journal.note(name, error);
        }
    }

    /** Notes where the group stands whenever a partition is given to this member. */
    private record Assigned(KafkaConsumer<String, String> consumer) implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            long asked = System.nanoTime();
            consumer.committed(Set.copyOf(partitions)).forEach((partition, offset) -> Journal.write(
                    "resume", partition.partition(), offset == null ? -1 : offset.offset(), asked));
        }
    }
}
