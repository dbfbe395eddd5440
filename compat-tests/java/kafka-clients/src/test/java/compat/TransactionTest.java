package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.junit.jupiter.api.Test;

/** Transactions: whole, absent, fenced, timed out, retried, and killed in the middle. */
class TransactionTest {
    private interface Work {
        void run() throws Exception;
    }

    private static CompletableFuture<Void> beside(Work work) {
        return CompletableFuture.runAsync(() -> {
            try {
                work.run();
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
    }

    private static void join(CompletableFuture<Void> work) throws Exception {
        try {
            work.get(60, TimeUnit.SECONDS);
        } catch (ExecutionException error) {
            throw new AssertionError("the other thread failed", error.getCause());
        }
    }

    @Test
    void txnCommit() throws Exception {
        String a = Kit.topic("commit-a");
        String b = Kit.topic("commit-b");
        try (KafkaProducer<String, String> producer = Kit.transactional(Kit.unique("commit"));
                KafkaConsumer<String, String> reader = Kit.reader(a, b)) {
            producer.beginTransaction();
            Kit.send(producer, a, "1", "2", "3");
            Kit.send(producer, b, "4", "5");
            assertEquals(0, Kit.endOffset(reader, a));
            assertEquals(0, Kit.endOffset(reader, b));
            producer.commitTransaction();
            assertEquals(Map.of(a, List.of("1", "2", "3"), b, List.of("4", "5")), Kit.readAll(Kit.BOOTSTRAP, a, b));

            producer.beginTransaction();
            Kit.send(producer, a, "6");
            producer.commitTransaction();
            assertEquals(List.of("1", "2", "3", "6"), Kit.readAll(a));
        }
    }

    @Test
    void txnAbort() throws Exception {
        String topic = Kit.topic("abort");
        try (KafkaProducer<String, String> producer = Kit.transactional(Kit.unique("abort"))) {
            for (String value : List.of("dropped-1", "kept", "dropped-2")) {
                producer.beginTransaction();
                Kit.send(producer, topic, value);
                if (value.equals("kept")) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
        assertEquals(List.of("kept"), Kit.readAll(topic));
    }

    @Test
    void txnEmpty() throws Exception {
        String topic = Kit.topic("empty");
        List<String> steps =
                List.of("commit", "abort", "full-1", "commit", "abort", "abort", "full-2", "abort", "commit");
        try (KafkaProducer<String, String> producer = Kit.transactional(Kit.unique("empty"))) {
            for (String step : steps) {
                producer.beginTransaction();
                if (step.startsWith("full")) {
                    Kit.send(producer, topic, step);
                }
                if (step.equals("abort")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        assertEquals(List.of("full-1", "full-2"), Kit.readAll(topic));
    }

    /** Alternates aborts and commits; returns what was committed. */
    private static List<String> commitsAndAborts(String topic, int rounds) throws Exception {
        List<String> kept = new ArrayList<>();
        try (KafkaProducer<String, String> producer = Kit.transactional(Kit.unique("alternate"))) {
            for (int n = 0; n < rounds; n++) {
                String[] values = Kit.numbered(n + "-", 3);
                producer.beginTransaction();
                Kit.send(producer, topic, values);
                if (n % 2 == 1) {
                    producer.commitTransaction();
                    kept.addAll(List.of(values));
                } else {
                    producer.abortTransaction();
                }
            }
        }
        return kept;
    }

    @Test
    void abortedNeverVisibleTailing() throws Exception {
        String topic = Kit.topic("tailing");
        List<String> seen = new ArrayList<>();
        Semaphore tailing = new Semaphore(0);
        CompletableFuture<Void> tail = beside(() -> {
            try (KafkaConsumer<String, String> reader = Kit.reader(topic)) {
                Kit.poll(reader, one -> {
                    seen.add(one.value());
                    tailing.release();
                    return one.value().equals("last");
                });
            }
        });
        List<String> expected = new ArrayList<>(List.of("first"));
        try (KafkaProducer<String, String> plain = Kit.producer()) {
            Kit.send(plain, topic, "first");
            assertTrue(tailing.tryAcquire(30, TimeUnit.SECONDS));
            expected.addAll(commitsAndAborts(topic, 20));
            Kit.send(plain, topic, "last");
            expected.add("last");
        }
        join(tail);
        assertEquals(expected, seen);
    }

    @Test
    void abortedNeverVisibleFresh() throws Exception {
        String topic = Kit.topic("fresh");
        assertEquals(commitsAndAborts(topic, 20), Kit.readAll(topic));
    }

    @Test
    void multiTopicWholeOrAbsent() throws Exception {
        List<String> topics = List.of(Kit.topic("multi-a"), Kit.topic("multi-b"), Kit.topic("multi-c"));
        int rounds = 40;
        int each = 3;
        List<Integer> kept = IntStream.range(0, rounds).filter(n -> n % 4 != 3).boxed().toList();
        CompletableFuture<Void> writer = beside(() -> {
            try (KafkaProducer<String, String> producer = Kit.transactional(Kit.unique("multi"));
                    KafkaProducer<String, String> plain = Kit.producer()) {
                for (int n = 0; n < rounds; n++) {
                    producer.beginTransaction();
                    for (String topic : topics) {
                        Kit.send(producer, topic, Kit.numbered(n + ":", each));
                    }
                    if (kept.contains(n)) {
                        producer.commitTransaction();
                    } else {
                        producer.abortTransaction();
                    }
                }
                for (String topic : topics) {
                    Kit.send(plain, topic, "last");
                }
            }
        });
        Map<String, List<String>> seen = new HashMap<>();
        topics.forEach(topic -> seen.put(topic, new ArrayList<>()));
        Set<String> open = new HashSet<>(topics);
        int[] newest = {-1};
        try (KafkaConsumer<String, String> reader = Kit.reader(topics.toArray(String[]::new));
                KafkaConsumer<String, String> ends = Kit.consumer(Kit.unique("ends"))) {
            Kit.poll(reader, one -> {
                if (one.value().equals("last")) {
                    open.remove(one.topic());
                    return open.isEmpty();
                }
                seen.get(one.topic()).add(one.value());
                int n = Integer.parseInt(one.value().split(":")[0]);
                if (Kit.STRICT && n > newest[0]) {
                    newest[0] = n;
                    long covered = (long) each * (kept.indexOf(n) + 1);
                    for (String topic : topics) {
                        assertTrue(Kit.endOffset(ends, topic) >= covered, "transaction " + n + " shows in part");
                    }
                }
                return false;
            });
        }
        join(writer);
        List<String> whole = kept.stream().flatMap(n -> List.of(Kit.numbered(n + ":", each)).stream()).toList();
        topics.forEach(topic -> assertEquals(whole, seen.get(topic)));
    }

    @Test
    void txnOffsets() throws Exception {
        String source = Kit.topic("offsets-in");
        String out = Kit.topic("offsets-out");
        String group = Kit.unique("offsets");
        try (KafkaProducer<String, String> plain = Kit.producer()) {
            Kit.send(plain, source, Kit.numbered("", 10));
        }
        try (KafkaConsumer<String, String> member = Kit.consumer(group);
                KafkaConsumer<String, String> stable = Kit.consumer(group);
                Admin now = Kit.admin();
                KafkaProducer<String, String> producer = Kit.transactional(Kit.unique("offsets"))) {
            member.subscribe(List.of(source));
            Kit.poll(member, one -> one.offset() == 9);

            producer.beginTransaction();
            Kit.send(producer, out, "4");
            producer.sendOffsetsToTransaction(Kit.offsets(source, 4), member.groupMetadata());
            assertEquals(-1, Kit.committedNow(now, group, source));
            producer.abortTransaction();
            assertEquals(-1, Kit.committed(stable, source));

            producer.beginTransaction();
            Kit.send(producer, out, "10");
            producer.sendOffsetsToTransaction(Kit.offsets(source, 10), member.groupMetadata());
            assertEquals(-1, Kit.committedNow(now, group, source));
            producer.commitTransaction();
            assertEquals(10, Kit.committed(stable, source));
        }
        assertEquals(List.of("10"), Kit.readAll(out));
    }

    @Test
    void txnOffsetsVisibleTogether() throws Exception {
        String source = Kit.topic("together-in");
        String out = Kit.topic("together-out");
        String group = Kit.unique("together");
        int rounds = 20;
        Semaphore turn = new Semaphore(1);
        CompletableFuture<Void> writer = beside(() -> {
            try (KafkaProducer<String, String> producer = Kit.transactional(Kit.unique("together"))) {
                for (int n = 0; n < rounds; n++) {
                    // One at a time: with a transaction always open a reader of stable offsets would get no turn.
                    assertTrue(turn.tryAcquire(60, TimeUnit.SECONDS));
                    producer.beginTransaction();
                    Kit.send(producer, out, String.valueOf(n));
                    producer.sendOffsetsToTransaction(Kit.offsets(source, n + 1), new ConsumerGroupMetadata(group));
                    producer.commitTransaction();
                }
            }
        });
        try (KafkaConsumer<String, String> reader = Kit.reader(out);
                KafkaConsumer<String, String> stable = Kit.consumer(group);
                Admin now = Kit.admin()) {
            int[] next = {0};
            Kit.poll(reader, one -> {
                int n = next[0]++;
                assertEquals(String.valueOf(n), one.value());
                assertEquals(n + 1, Kit.committed(stable, source), "output " + n + " shows without its offset");
                turn.release();
                if (Kit.STRICT) {
                    long offset = Kit.committedNow(now, group, source);
                    assertTrue(Kit.endOffset(stable, out) >= offset, offset + " shows without its output");
                }
                return n + 1 == rounds;
            });
        }
        join(writer);
    }

    @Test
    void zombieFenced() throws Exception {
        String topic = Kit.topic("zombie");
        String id = Kit.unique("zombie");
        try (KafkaProducer<String, String> zombie = Kit.transactional(id)) {
            zombie.beginTransaction();
            Kit.send(zombie, topic, "of the zombie");
            try (KafkaProducer<String, String> heir = Kit.transactional(id)) {
                assertThrows(ProducerFencedException.class, zombie::commitTransaction);
                heir.beginTransaction();
                Kit.send(heir, topic, "of the heir");
                heir.commitTransaction();
            }
        }
        assertEquals(List.of("of the heir"), Kit.readAll(topic));
    }

    @Test
    void txnTimeout() throws Exception {
        String source = Kit.topic("timeout-in");
        String out = Kit.topic("timeout-out");
        String id = Kit.unique("timeout");
        String group = Kit.unique("timeout");
        int timeoutMs = 2000;
        KafkaProducer<String, String> producer = Kit.transactional(Kit.BOOTSTRAP, id, timeoutMs);
        try (KafkaConsumer<String, String> stable = Kit.consumer(group)) {
            producer.beginTransaction();
            Kit.send(producer, out, "too late");
            producer.sendOffsetsToTransaction(Kit.offsets(source, 7), new ConsumerGroupMetadata(group));
            // A stable offset is not given while one is pending: this returns when the transaction has ended.
            assertEquals(-1, Kit.committed(stable, source));
            assertThrows(KafkaException.class, producer::commitTransaction);
            producer = Kit.recover(producer, id, timeoutMs);
            producer.beginTransaction();
            Kit.send(producer, out, "in time");
            producer.commitTransaction();
            assertEquals(List.of("in time"), Kit.readAll(out));
            assertEquals(-1, Kit.committed(stable, source));
        } finally {
            producer.close();
        }
    }

    @Test
    void endTxnCut() throws Exception {
        String a = Kit.topic(Kit.RELAYED, "cut-a", 1);
        String b = Kit.topic(Kit.RELAYED, "cut-b", 1);
        try (Relay relay = new Relay();
                KafkaProducer<String, String> producer =
                        Kit.transactional(Kit.RELAYED, Kit.unique("cut"), 60_000)) {
            for (int n = 0; n < 3; n++) {
                producer.beginTransaction();
                Kit.send(producer, a, String.valueOf(n));
                Kit.send(producer, b, String.valueOf(n));
                String rule = relay.cutResponse(Relay.END_TXN, 1);
                Kit.commit(producer);
                relay.fired(rule);
            }
        }
        List<String> whole = List.of("0", "1", "2");
        assertEquals(Map.of(a, whole, b, whole), Kit.readAll(Kit.RELAYED, a, b));
    }

    @Test
    void brokerKilledInTxn() throws Exception {
        String a = Kit.topic("killed-a");
        String b = Kit.topic("killed-b");
        String id = Kit.unique("killed");
        // Longer than any restart, or Kafka would time it out at once.
        int timeoutMs = 60_000;
        List<String> expected = new ArrayList<>(List.of("before"));
        KafkaProducer<String, String> producer = Kit.transactional(Kit.BOOTSTRAP, id, timeoutMs);
        try {
            producer.beginTransaction();
            Kit.send(producer, a, "before");
            Kit.send(producer, b, "before");
            Kit.commit(producer);

            producer.beginTransaction();
            Kit.send(producer, a, "inside");
            Kit.send(producer, b, "inside");
            Kit.broker("kill");
            Kit.broker("start");
            try {
                Kit.commit(producer);
                expected.add("inside");
            } catch (KafkaException error) {
                producer = Kit.recover(producer, id, timeoutMs);
            }

            producer.beginTransaction();
            Kit.send(producer, a, "after");
            Kit.send(producer, b, "after");
            Kit.commit(producer);
            expected.add("after");
        } finally {
            producer.close();
        }
        assertEquals(Map.of(a, expected, b, expected), Kit.readAll(Kit.BOOTSTRAP, a, b));
    }
}
