package compat.faults;

import compat.faults.History.Phase;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Follows every partition from its first record on, in no group; the same consumer through all faults. */
final class Reader implements Runnable {
    private final String name;
    private final String isolation;
    private final Map<String, Object> config;
    private final Map<TopicPartition, Long> next = new HashMap<>();

    /** With a rack it reads from the node of that rack, if that serves reads. */
    Reader(String name, String isolation, String rack, String bootstrap) {
        this.name = name;
        this.isolation = isolation;
        config = History.common(bootstrap);
        config.put("isolation.level", isolation);
        // Offsets never go back, so an answer that says so is a fault, not a reason to start anew.
        config.put("auto.offset.reset", "none");
        config.put("enable.auto.commit", false);
        config.put("fetch.max.wait.ms", 100);
        config.put("default.api.timeout.ms", 10_000);
        config.put("client.rack", rack);
        Workload.TOPICS.forEach((topic, count) -> {
            for (int partition = 0; partition < count; partition++) {
                next.put(new TopicPartition(topic, partition), 0L);
            }
        });
    }

    @Override
    public void run() {
        // Once: another consumer after an error goes on where the one before it was.
        next.keySet().forEach(at -> History.write("assign", name, isolation, at.topic(), at.partition()));
        try {
            while (!Phase.CONSUMERS.over(200)) {
                try (KafkaConsumer<String, String> consumer =
                        new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
                    follow(consumer);
                } catch (OffsetOutOfRangeException error) {
                    error.offsetOutOfRangePartitions().forEach((at, offset) ->
                            History.write("out-of-range", name, at.topic(), at.partition(), offset));
                    History.note(name, error);
                } catch (KafkaException error) {
                    History.note(name, error);
                }
            }
        } catch (InterruptedException error) {
            History.note(name, error);
        }
    }

    private void follow(KafkaConsumer<String, String> consumer) {
        consumer.assign(next.keySet());
        next.forEach(consumer::seek);
        while (!Phase.CONSUMERS.over()) {
            for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(100))) {
                History.write("read", name, one.topic(), one.partition(), one.offset(), one.value());
                next.put(new TopicPartition(one.topic(), one.partition()), one.offset() + 1);
            }
        }
    }
}
