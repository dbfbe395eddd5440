package compat.faults;

import compat.faults.History.Phase;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Looks at groups and records together: the offsets of all groups first, then where each partition ends, then all
 * records up to there. A transaction seen in one of the looks must be whole in the next.
 */
final class Witness implements Runnable {
    private final String name;
    private final Map<String, Object> config;
    private final List<String> groups;
    private final Map<TopicPartition, Long> next = new HashMap<>();
    private boolean stable;

    Witness(String name, List<String> groups, String bootstrap) {
        this.name = name;
        this.groups = groups;
        config = History.common(bootstrap);
        Workload.TOPICS.forEach((topic, count) -> {
            for (int partition = 0; partition < count; partition++) {
                next.put(new TopicPartition(topic, partition), 0L);
            }
        });
    }

    @Override
    public void run() {
        Map<String, Object> reader = new HashMap<>(config);
        reader.put("isolation.level", "read_committed");
        reader.put("auto.offset.reset", "none");
        reader.put("enable.auto.commit", false);
        reader.put("fetch.max.wait.ms", 50);
        reader.put("default.api.timeout.ms", 10_000);
        try {
            while (!Phase.CONSUMERS.over(200)) {
                try (Admin admin = Admin.create(config);
                        KafkaConsumer<String, String> consumer =
                                new KafkaConsumer<>(reader, new StringDeserializer(), new StringDeserializer())) {
                    consumer.assign(next.keySet());
                    next.forEach(consumer::seek);
                    while (!Phase.CONSUMERS.over(50)) {
                        look(admin, consumer);
                    }
                } catch (KafkaException | ExecutionException | java.util.concurrent.TimeoutException error) {
                    History.note(name, error);
                }
            }
        } catch (InterruptedException error) {
            History.note(name, error);
        }
    }

    private static List<TopicPartition> partitions(String group) {
        String topic = group.equals("faults-pipe") ? "faults-source" : "faults-nothing";
        List<TopicPartition> all = new ArrayList<>();
        for (int partition = 0; partition < Workload.TOPICS.getOrDefault(topic, 1); partition++) {
            all.add(new TopicPartition(topic, partition));
        }
        return all;
    }

    private void look(Admin admin, KafkaConsumer<String, String> consumer)
            throws InterruptedException, ExecutionException, java.util.concurrent.TimeoutException {
        History.write("look", name);
        Map<String, ListConsumerGroupOffsetsSpec> all = new TreeMap<>();
        groups.forEach(group -> all.put(group, new ListConsumerGroupOffsetsSpec().topicPartitions(partitions(group))));
        stable = !stable;
        Map<String, Map<TopicPartition, OffsetAndMetadata>> found = admin.listConsumerGroupOffsets(
                        all, new ListConsumerGroupOffsetsOptions().requireStable(stable))
                .all()
                .get(10, TimeUnit.SECONDS);
        StringJoiner told = new StringJoiner(",");
        // What is not among them could not be told just now: an open transaction is about to move it.
        found.forEach((group, offsets) -> offsets.forEach((at, offset) -> told.add(
                group + ":" + at.topic() + ":" + at.partition() + "=" + (offset == null ? -1 : offset.offset()))));
        History.write("look-offsets", name, told);
        Map<TopicPartition, Long> ends = consumer.endOffsets(next.keySet());
        List<String> behind = new ArrayList<>();
        while (!Phase.CONSUMERS.over()) {
            for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(50))) {
                History.write("read", name, one.topic(), one.partition(), one.offset(), one.value());
                next.put(new TopicPartition(one.topic(), one.partition()), one.offset() + 1);
            }
            behind.clear();
            // The position, not the last record: what the broker skips for the reader counts as read.
            ends.forEach((at, end) -> {
                if (consumer.position(at) < end) {
                    behind.add(at.toString());
                }
            });
            if (behind.isEmpty()) {
                History.write("look-end", name);
                return;
            }
        }
    }
}
