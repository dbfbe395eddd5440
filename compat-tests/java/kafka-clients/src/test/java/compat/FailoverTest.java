package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;

/** Failover: the leader of three nodes is killed or stopped around a transaction, and under a group. */
@EnabledIfEnvironmentVariable(named = "NODES", matches = "3", disabledReason = "needs three nodes")
class FailoverTest {
    private interface Step {
        void run() throws Exception;
    }

    /** Does it beside the case. */
    private static CompletableFuture<Void> beside(Step step) {
        return CompletableFuture.runAsync(() -> {
            try {
                step.run();
            } catch (Exception error) {
                throw new AssertionError(error);
            }
        });
    }

    private static void join(CompletableFuture<Void> step) throws Exception {
        step.get(120, TimeUnit.SECONDS);
    }

    /** Whatever happens, the next case has all nodes. */
    private static void restored(String cluster, Step test) throws Exception {
        try {
            test.run();
        } finally {
            Kit.broker("start", cluster);
        }
    }

    /** Writes transactions over two topics, each again under another value for as long as it fails. */
    private static final class Application implements AutoCloseable {
        private final String bootstrap;
        private final String id = Kit.unique("failover");
        private final String a;
        private final String b;
        private final List<String> committed = new ArrayList<>();
        private KafkaProducer<String, String> producer;

        Application(String bootstrap) throws Exception {
            this.bootstrap = bootstrap;
            a = Kit.topic(bootstrap, "failover-a", 1);
            b = Kit.topic(bootstrap, "failover-b", 1);
            producer = Kit.transactional(bootstrap, id, 60_000);
        }

        int work(String value) throws Exception {
            return work(value, () -> {});
        }

        /** Returns how many attempts failed. */
        int work(String value, Step beforeCommit) throws Exception {
            for (int failures = 0; failures < 4; failures++) {
                String attempt = value + "." + failures;
                try {
                    producer.beginTransaction();
                    Kit.send(producer, a, attempt);
                    Kit.send(producer, b, attempt);
                    if (failures == 0) {
                        beforeCommit.run();
                    }
                    Kit.commit(producer);
                    committed.add(attempt);
                    return failures;
                } catch (KafkaException error) {
                    recover(attempt, error);
                } catch (ExecutionException error) {
                    // A record failed.
                    recover(attempt, error.getCause());
                }
            }
            throw new AssertionError("the application cannot go on");
        }

        /** Aborts, or starts again if that is refused too: the producer then is in its fatal state. */
        private void recover(String attempt, Throwable error) {
            System.out.println(attempt + " failed: " + error);
            try {
                producer.abortTransaction();
            } catch (KafkaException fatal) {
                System.out.println("the abort failed: " + fatal);
                producer.close(Duration.ZERO);
                producer = Kit.transactional(bootstrap, id, 60_000);
            }
        }

        void holds() throws Exception {
            assertEquals(Map.of(a, committed, b, committed), Kit.readAll(bootstrap, a, b));
        }

        @Override
        public void close() {
            producer.close(Duration.ofSeconds(5));
        }
    }

    private static void beforeCommit(String how) throws Exception {
        restored("main", () -> {
            try (Application application = new Application(Kit.BOOTSTRAP)) {
                application.work("before");
                List<CompletableFuture<Void>> strike = new ArrayList<>();
                application.work("inside", () -> {
                    strike.add(beside(() -> Kit.broker(how, "main", "leader")));
                    if (how.equals("kill")) {
                        join(strike.get(0));
                    }
                });
                join(strike.get(0));
                application.work("after");
                application.holds();
            }
        });
    }

    @Test
    void leaderKilledBeforeCommit() throws Exception {
        beforeCommit("kill");
    }

    @Test
    void leaderStoppedBeforeCommit() throws Exception {
        beforeCommit("stop");
    }

    private static void betweenTxns(String how) throws Exception {
        restored("main", () -> {
            try (Application application = new Application(Kit.BOOTSTRAP)) {
                application.work("before");
                Kit.broker(how, "main", "leader");
                int failures = application.work("first");
                if (Kit.STRICT && how.equals("stop")) {
                    assertEquals(0, failures, "a hand-over doomed an idle producer");
                }
                application.work("after");
                application.holds();
            }
        });
    }

    @Test
    void leaderKilledBetweenTxns() throws Exception {
        betweenTxns("kill");
    }

    @Test
    void leaderStoppedBetweenTxns() throws Exception {
        betweenTxns("stop");
    }

    private static void aroundEndTxn(String how, String side) throws Exception {
        restored("relayed", () -> {
            try (Relay relay = new Relay();
                    Application application = new Application(Kit.RELAYED)) {
                application.work("before");
                String rule = relay.hold(side, Relay.END_TXN);
                CompletableFuture<Void> strike = beside(() -> {
                    relay.fired(rule);
                    Kit.broker(how, "relayed", "leader");
                    relay.cut(rule);
                });
                int failures = application.work("inside");
                join(strike);
                // It had been executed, so the client must not be told otherwise.
                if (side.equals("response")) {
                    assertEquals(0, failures, "a commit that was executed was reported as failed");
                }
                application.work("after");
                application.holds();
            }
        });
    }

    @Test
    void leaderKilledBeforeEndTxn() throws Exception {
        aroundEndTxn("kill", "request");
    }

    @Test
    void leaderKilledAfterEndTxn() throws Exception {
        aroundEndTxn("kill", "response");
    }

    @Test
    void leaderStoppedAfterEndTxn() throws Exception {
        aroundEndTxn("stop", "response");
    }

    private static final int PARTITIONS = 4;

    /** Members of a group whose every record is committed before it counts as processed. */
    private static final class Members implements AutoCloseable {
        private final List<KafkaConsumer<String, String>> all = new ArrayList<>();
        private final List<String> processed = new ArrayList<>();
        private final Set<String> uncertain = new HashSet<>();
        private final Map<Integer, Long> committed = new ConcurrentHashMap<>();

        void join(KafkaConsumer<String, String> one, String topic) {
            one.subscribe(List.of(topic));
            all.add(one);
        }

        private void process(KafkaConsumer<String, String> member, ConsumerRecord<String, String> one) {
            TopicPartition partition = new TopicPartition(one.topic(), one.partition());
            try {
                member.commitSync(Map.of(partition, new OffsetAndMetadata(one.offset() + 1)));
                processed.add(one.value());
                committed.put(one.partition(), one.offset() + 1);
            } catch (FencedInstanceIdException fenced) {
                throw fenced;
            } catch (KafkaException error) {
                // Perhaps executed: then nobody reads the record again.
                System.out.println("commit: " + error);
                uncertain.add(one.value());
            }
        }

        void until(String what, BooleanSupplier done) {
            long end = System.nanoTime() + Kit.DEADLINE.toNanos();
            while (!done.getAsBoolean()) {
                assertTrue(System.nanoTime() < end, what + ": " + processed.size() + " processed");
                for (KafkaConsumer<String, String> member : all) {
                    member.poll(Duration.ofMillis(50)).forEach(one -> process(member, one));
                }
            }
        }

        boolean covers(List<String> wanted) {
            return wanted.stream().allMatch(value -> processed.contains(value) || uncertain.contains(value));
        }

        boolean share() {
            return all.stream().allMatch(one -> one.assignment().size() == PARTITIONS / all.size());
        }

        @Override
        public void close() {
            all.forEach(KafkaConsumer::close);
        }
    }

    /** Asks for the group's offsets all the time: an answer may be late or an error, never less than was committed. */
    private static CompletableFuture<Void> watch(String group, String topic, Members members, AtomicBoolean over) {
        Set<TopicPartition> partitions =
                IntStream.range(0, PARTITIONS).mapToObj(p -> new TopicPartition(topic, p)).collect(Collectors.toSet());
        return beside(() -> {
            int answers = 0;
            try (Admin admin = Kit.admin()) {
                while (!over.get()) {
                    Map<Integer, Long> known = Map.copyOf(members.committed);
                    Map<TopicPartition, OffsetAndMetadata> told;
                    try {
                        told = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get(10, TimeUnit.SECONDS);
                    } catch (ExecutionException | java.util.concurrent.TimeoutException error) {
                        continue;
                    }
                    for (TopicPartition partition : partitions) {
                        OffsetAndMetadata offset = told.get(partition);
                        long least = known.getOrDefault(partition.partition(), -1L);
                        long got = offset == null ? -1 : offset.offset();
                        assertTrue(got >= least, partition + ": told " + got + " when " + least + " was committed");
                        answers++;
                    }
                }
            }
            assertTrue(answers > 0, "no answer");
        });
    }

    private static List<String> fill(String topic, String label) throws Exception {
        List<String> wanted = new ArrayList<>();
        try (KafkaProducer<String, String> producer = Kit.producer()) {
            for (int partition = 0; partition < PARTITIONS; partition++) {
                String[] values = Kit.numbered(label + ":" + partition + ":", 5);
                Kit.sendTo(producer, topic, partition, values);
                wanted.addAll(Arrays.asList(values));
            }
        }
        return wanted;
    }

    private static void groupSurvives(String how) throws Exception {
        restored("main", () -> {
            String topic = Kit.topic(Kit.BOOTSTRAP, "survivor", PARTITIONS);
            String group = Kit.unique("survivor");
            AtomicBoolean over = new AtomicBoolean();
            try (Members members = new Members()) {
                members.join(Kit.consumer(group), topic);
                List<String> wanted = new ArrayList<>(fill(topic, "one"));
                members.until("all is read before", () -> members.covers(wanted));
                CompletableFuture<Void> watcher = watch(group, topic, members, over);
                CompletableFuture<Void> strike = beside(() -> Kit.broker(how, "main", "leader"));
                wanted.addAll(fill(topic, "two"));
                members.until("all is read through the change", () -> members.covers(wanted));
                join(strike);
                wanted.addAll(fill(topic, "three"));
                members.until("all is read after", () -> members.covers(wanted));
                over.set(true);
                join(watcher);
                assertEquals(
                        members.processed.size(),
                        new HashSet<>(members.processed).size(),
                        "a committed record was read again");
            } finally {
                over.set(true);
            }
        });
    }

    @Test
    void groupSurvivesLeaderKill() throws Exception {
        groupSurvives("kill");
    }

    @Test
    void groupSurvivesLeaderStop() throws Exception {
        groupSurvives("stop");
    }

    @Test
    void staticMembersSurviveLeaderKill() throws Exception {
        restored("main", () -> {
            String topic = Kit.topic(Kit.BOOTSTRAP, "static", PARTITIONS);
            String group = Kit.unique("static");
            try (Members members = new Members()) {
                members.join(Kit.staticMember(group, "one"), topic);
                members.join(Kit.staticMember(group, "two"), topic);
                members.until("two members share", members::share);
                List<String> wanted = new ArrayList<>(fill(topic, "one"));
                members.until("all is read before", () -> members.covers(wanted));
                Kit.broker("kill", "main", "leader");
                wanted.addAll(fill(topic, "two"));
                members.until("all is read after", () -> members.covers(wanted));
                members.until("both still share", members::share);
            }
        });
    }
}
