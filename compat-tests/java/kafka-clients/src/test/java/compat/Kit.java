package compat;

import static org.junit.jupiter.api.Assertions.fail;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What the cases share: clients with short timeouts, topics, complete reads, and the broker's life. */
final class Kit {
    static final String BOOTSTRAP = System.getenv("BOOTSTRAP");
    static final String RELAYED = System.getenv("RELAY_BOOTSTRAP");
    /** Promises that Kafka itself does not make are asserted only where they are made. */
    static final boolean STRICT = "katomic".equals(System.getenv("TARGET"));

    private static final short REPLICAS = Short.parseShort(System.getenv("REPLICAS"));

    static final Duration DEADLINE = Duration.ofSeconds(60);

    private Kit() {}

    static String unique(String name) {
        return name + "-" + UUID.randomUUID().toString().substring(0, 8);
    }

    static String topic(String name) throws Exception {
        return topic(BOOTSTRAP, name, 1);
    }

    static String topic(String bootstrap, String name, int partitions) throws Exception {
        String unique = unique(name);
        try (Admin admin = Admin.create(common(bootstrap))) {
            admin.createTopics(List.of(new NewTopic(unique, partitions, REPLICAS))).all().get(60, TimeUnit.SECONDS);
        }
        return unique;
    }

    private static Map<String, Object> common(String bootstrap) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("reconnect.backoff.ms", 20);
        config.put("reconnect.backoff.max.ms", 200);
        config.put("retry.backoff.ms", 20);
        return config;
    }

    static KafkaProducer<String, String> producer(String bootstrap, Map<String, Object> more) {
        Map<String, Object> config = common(bootstrap);
        config.putAll(more);
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    static KafkaProducer<String, String> producer() {
        return producer(BOOTSTRAP, Map.of());
    }

    /** A transactional producer that has its producer id. */
    static KafkaProducer<String, String> transactional(String bootstrap, String id, int timeoutMs) {
        KafkaProducer<String, String> producer =
                producer(bootstrap, Map.of("transactional.id", id, "transaction.timeout.ms", timeoutMs));
        producer.initTransactions();
        return producer;
    }

    static KafkaProducer<String, String> transactional(String id) {
        return transactional(BOOTSTRAP, id, 60_000);
    }

    /** A consumer that starts at the beginning and commits nothing by itself. */
    static KafkaConsumer<String, String> consumer(String bootstrap, String group, String isolation) {
        return new KafkaConsumer<>(
                readerConfig(bootstrap, group, isolation), new StringDeserializer(), new StringDeserializer());
    }

    private static Map<String, Object> readerConfig(String bootstrap, String group, String isolation) {
        Map<String, Object> config = common(bootstrap);
        config.put("group.id", group);
        config.put("isolation.level", isolation);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", false);
        config.put("fetch.max.wait.ms", 100);
        config.put("session.timeout.ms", 6000);
        config.put("heartbeat.interval.ms", 300);
        return config;
    }

    static KafkaConsumer<String, String> consumer(String group) {
        return consumer(BOOTSTRAP, group, "read_committed");
    }

    static KafkaConsumer<String, String> reader(String... topics) {
        KafkaConsumer<String, String> reader = consumer(unique("reader"));
        List<TopicPartition> partitions = Arrays.stream(topics).map(topic -> new TopicPartition(topic, 0)).toList();
        reader.assign(partitions);
        reader.seekToBeginning(partitions);
        return reader;
    }

    /** Sends and waits until all are acknowledged. */
    static void send(KafkaProducer<String, String> producer, String topic, String... values) throws Exception {
        sendTo(producer, topic, 0, values);
    }

    static void sendTo(KafkaProducer<String, String> producer, String topic, int partition, String... values)
            throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (String value : values) {
            sent.add(producer.send(new ProducerRecord<>(topic, partition, null, value)));
        }
        for (Future<RecordMetadata> one : sent) {
            one.get(60, TimeUnit.SECONDS);
        }
    }

    /** Commits, and asks again after a timeout, as the client's documentation says. */
    static void commit(KafkaProducer<String, String> producer) {
        long end = System.nanoTime() + DEADLINE.toNanos();
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException error) {
                if (System.nanoTime() > end) {
                    throw error;
                }
            }
        }
    }

    /**
     * What an application does after a failed transaction: abort it, or start again if that is refused too
     * (the producer then is in its fatal state). Returns the producer to go on with.
     */
    static KafkaProducer<String, String> recover(KafkaProducer<String, String> producer, String id, int timeoutMs) {
        try {
            producer.abortTransaction();
            return producer;
        } catch (KafkaException fatal) {
            producer.close(Duration.ZERO);
            return transactional(BOOTSTRAP, id, timeoutMs);
        }
    }

    /** A consumer of a group that is a static member. */
    static KafkaConsumer<String, String> staticMember(String group, String instance) {
        Map<String, Object> config = readerConfig(BOOTSTRAP, group, "read_committed");
        config.put("group.instance.id", instance);
        config.put("session.timeout.ms", 10_000);
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    /** Polls until a record fulfils the condition; every record is offered to it, in order. */
    static void poll(KafkaConsumer<String, String> reader, Predicate<ConsumerRecord<String, String>> last) {
        long end = System.nanoTime() + DEADLINE.toNanos();
        while (System.nanoTime() < end) {
            for (ConsumerRecord<String, String> one : reader.poll(Duration.ofMillis(100))) {
                if (last.test(one)) {
                    return;
                }
            }
        }
        fail("the records awaited did not come");
    }

    /** The values of a topic as a fresh read_committed reader sees them, complete. */
    static List<String> readAll(String topic) throws Exception {
        return readAll(BOOTSTRAP, topic).get(topic);
    }

    /**
     * The same for several topics of one partition each. A record is put behind everything else in each, and the
     * reader goes on until it has met all of those: so the end is told without end offsets, which count control
     * batches on Kafka only.
     */
    static Map<String, List<String>> readAll(String bootstrap, String... topics) throws Exception {
        String end = unique("end");
        try (KafkaProducer<String, String> marker = producer(bootstrap, Map.of())) {
            for (String topic : topics) {
                send(marker, topic, end);
            }
        }
        Map<String, List<String>> found = new TreeMap<>();
        Set<String> open = new HashSet<>(Arrays.asList(topics));
        open.forEach(topic -> found.put(topic, new ArrayList<>()));
        try (KafkaConsumer<String, String> reader = consumer(bootstrap, unique("reader"), "read_committed")) {
            Collection<TopicPartition> partitions = open.stream().map(topic -> new TopicPartition(topic, 0)).toList();
            reader.assign(partitions);
            reader.seekToBeginning(partitions);
            poll(reader, one -> {
                if (one.value().equals(end)) {
                    open.remove(one.topic());
                } else if (!one.value().startsWith("end-")) {
                    found.get(one.topic()).add(one.value());
                }
                return open.isEmpty();
            });
        }
        return found;
    }

    /** The end of the topic's first partition at the reader's isolation level. */
    static long endOffset(KafkaConsumer<String, String> reader, String topic) {
        TopicPartition partition = new TopicPartition(topic, 0);
        return reader.endOffsets(Set.of(partition)).get(partition);
    }

    /** The group's offset, -1 if it has none. A read_committed consumer waits for pending ones. */
    static long committed(KafkaConsumer<String, String> reader, String topic) {
        TopicPartition partition = new TopicPartition(topic, 0);
        OffsetAndMetadata offset = reader.committed(Set.of(partition)).get(partition);
        return offset == null ? -1 : offset.offset();
    }

    /** The group's offset as it stands, -1 if it has none: unlike a consumer, Admin does not wait for pending ones. */
    static long committedNow(Admin admin, String group, String topic) {
        Map<TopicPartition, OffsetAndMetadata> offsets = admin.listConsumerGroupOffsets(group)
                .partitionsToOffsetAndMetadata()
                .toCompletionStage()
                .toCompletableFuture()
                .orTimeout(60, TimeUnit.SECONDS)
                .join();
        OffsetAndMetadata offset = offsets.get(new TopicPartition(topic, 0));
        return offset == null ? -1 : offset.offset();
    }

    static Admin admin() {
        return Admin.create(common(BOOTSTRAP));
    }

    static Map<TopicPartition, OffsetAndMetadata> offsets(String topic, long offset) {
        return Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(offset));
    }

    static String[] numbered(String prefix, int count) {
        return IntStream.range(0, count).mapToObj(i -> prefix + i).toArray(String[]::new);
    }

    /** Kills or starts all of the main cluster. */
    static void broker(String command) throws IOException, InterruptedException {
        broker(command, "main");
    }

    /** Commands broker.sh: a whole cluster, or one node of it. */
    static void broker(String... command) throws IOException, InterruptedException {
        List<String> line = new ArrayList<>(List.of(System.getenv("BROKER")));
        line.addAll(List.of(command));
        Process process = new ProcessBuilder(line).redirectErrorStream(true).inheritIO().start();
        if (!process.waitFor(120, TimeUnit.SECONDS) || process.exitValue() != 0) {
            throw new AssertionError("the broker did not " + String.join(" ", command));
        }
    }
}
