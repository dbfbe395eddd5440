package compat.faults;

import compat.faults.History.Phase;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;

/**
 * Each transaction writes to three topics and moves the offset of the producer's own group to its number + 1. Some are
 * aborted on purpose, and some are left as a crashed process leaves them.
 */
final class Own extends Transactional {
    private static final List<String> TOPICS = List.of("faults-a", "faults-b", "faults-c");
    private static final int PARTITIONS = 2;

    private final String group;
    private final long paceMs;

    Own(String name, long paceMs, String bootstrap, long seed) {
        super(name, bootstrap, seed);
        this.paceMs = paceMs;
        group = "faults-own-" + name;
    }

    @Override
    boolean stopping() {
        return Phase.PRODUCERS.over();
    }

    @Override
    void transactions(KafkaProducer<String, String> producer) throws InterruptedException {
        Fate last = Fate.COMMITTED;
        while (last != Fate.BROKEN && !Phase.PRODUCERS.over(paceMs)) {
            last = transaction(producer);
        }
    }

    private Fate transaction(KafkaProducer<String, String> producer) throws InterruptedException {
        int each = 1 + random.nextInt(3);
        int count = each * TOPICS.size();
        Map<TopicPartition, OffsetAndMetadata> offsets =
                Map.of(new TopicPartition("faults-nothing", 0), new OffsetAndMetadata(number + 2));
        begin(count, group, offsets);
        try {
            producer.beginTransaction();
            int i = 0;
            int dice = random.nextInt(40);
            for (String topic : TOPICS) {
                if (i > 0 && dice % 8 == 0) {
                    // Half of it is acknowledged for a while, so that faults meet it in the middle.
                    producer.flush();
                    Thread.sleep(random.nextInt(600));
                }
                for (int k = 0; k < each; k++, i++) {
                    producer.send(new ProducerRecord<>(topic, random.nextInt(PARTITIONS), null, value(i, count)));
                }
            }
            producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(group));
            if (dice == 1) {
                History.write("aborted", name, number, "left");
                return Fate.BROKEN;
            } else if (dice < 8) {
                return abort(producer, "aborted", null);
            }
        } catch (KafkaException error) {
            // No commit was asked for, so whatever becomes of the abort, nothing may show.
            History.note(name, error);
            return abort(producer, "aborted", error);
        }
        return commit(producer);
    }
}
