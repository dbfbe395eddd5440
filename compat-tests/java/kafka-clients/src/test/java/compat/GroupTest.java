package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.junit.jupiter.api.Test;

/** Consumer groups. */
class GroupTest {
    private static final int PARTITIONS = 4;

    private final List<String> processed = new ArrayList<>();
    private String topic;

    private void fill(KafkaProducer<String, String> producer, String label) throws Exception {
        for (int partition = 0; partition < PARTITIONS; partition++) {
            Kit.sendTo(producer, topic, partition, Kit.numbered(label + ":" + partition + ":", 5));
        }
    }

    private KafkaConsumer<String, String> member(String group) {
        KafkaConsumer<String, String> one = Kit.consumer(group);
        one.subscribe(List.of(topic));
        return one;
    }

    /** Commits first and counts a record as processed only if that worked: so nothing is counted twice. */
    private void process(KafkaConsumer<String, String> member, ConsumerRecord<String, String> one) {
        TopicPartition partition = new TopicPartition(one.topic(), one.partition());
        try {
            member.commitSync(Map.of(partition, new OffsetAndMetadata(one.offset() + 1)));
            processed.add(one.value());
        } catch (RebalanceInProgressException error) {
            // The generation ends; read it again after the next poll has joined the new one.
            member.seek(partition, one.offset());
        }
    }

    private void until(String what, BooleanSupplier done, List<KafkaConsumer<String, String>> members) {
        long end = System.nanoTime() + Kit.DEADLINE.toNanos();
        while (!done.getAsBoolean()) {
            assertTrue(System.nanoTime() < end, what + ": " + processed.size() + " processed");
            for (KafkaConsumer<String, String> member : members) {
                member.poll(Duration.ofMillis(50)).forEach(one -> process(member, one));
            }
        }
    }

    @Test
    void groupRebalance() throws Exception {
        topic = Kit.topic(Kit.BOOTSTRAP, "group", PARTITIONS);
        String group = Kit.unique("group");
        try (KafkaProducer<String, String> producer = Kit.producer()) {
            try (KafkaConsumer<String, String> first = member(group)) {
                fill(producer, "one");
                until("a single member reads all", () -> processed.size() == 20, List.of(first));
                try (KafkaConsumer<String, String> second = member(group)) {
                    until(
                            "two members share",
                            () -> first.assignment().size() == 2 && second.assignment().size() == 2,
                            List.of(first, second));
                    fill(producer, "two");
                    until("two members read all", () -> processed.size() == 40, List.of(first, second));
                }
                until("the other takes over", () -> first.assignment().size() == PARTITIONS, List.of(first));
                fill(producer, "three");
                until("it reads all again", () -> processed.size() == 60, List.of(first));
            }
            fill(producer, "four");
        }
        try (KafkaConsumer<String, String> third = member(group)) {
            until("a later member resumes", () -> processed.size() >= 80, List.of(third));
        }
        List<String> wanted = new ArrayList<>();
        for (String label : List.of("one", "two", "three", "four")) {
            for (int partition = 0; partition < PARTITIONS; partition++) {
                wanted.addAll(List.of(Kit.numbered(label + ":" + partition + ":", 5)));
            }
        }
        // Committed after each record, and nobody died: so nothing was read twice either.
        assertEquals(wanted.stream().sorted().toList(), processed.stream().sorted().toList());
    }
}
