package compat.faults;

import compat.faults.History.Phase;
import java.time.Duration;
import java.util.Map;
import java.util.Random;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringSerializer;

/** One idempotent producer outside transactions, with several requests on their way at a time. */
final class Plain implements Runnable {
    private static final int PARTITIONS = 4;

    private final String name;
    private final String topic;
    private final long paceMs;
    private final Map<String, Object> config;
    private final Random random;
    private int instance;

    Plain(String name, String topic, long paceMs, String bootstrap, long seed) {
        this.name = name;
        this.topic = topic;
        this.paceMs = paceMs;
        config = History.common(bootstrap);
        config.put("acks", "all");
        config.put("enable.idempotence", true);
        config.put("linger.ms", 1);
        // Short enough that long faults leave records of unknown fate, and the producer goes on behind them.
        config.put("delivery.timeout.ms", 15_000);
        config.put("max.block.ms", 10_000);
        random = new Random(seed);
    }

    @Override
    public void run() {
        try {
            while (!Phase.PRODUCERS.over()) {
                instance++;
                try (KafkaProducer<String, String> producer =
                        new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
                    send(producer);
                    producer.close(Duration.ofSeconds(60));
                } catch (KafkaException error) {
                    History.note(name, error);
                }
            }
        } catch (InterruptedException error) {
            History.note(name, error);
        }
    }

    private void send(KafkaProducer<String, String> producer) throws InterruptedException {
        for (int n = 0; !Phase.PRODUCERS.over(paceMs); n++) {
            String value = name + "." + instance + "|" + n;
            int partition = random.nextInt(PARTITIONS);
            History.write("send", name, topic, partition, value);
            try {
                producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, error) -> {
                    if (error == null) {
                        History.write("acked", name, topic, partition, value, metadata.offset());
                    } else {
                        String told = error.getClass().getSimpleName();
                        History.write("failed", name, topic, partition, value, "unknown", told);
                    }
                });
            } catch (KafkaException error) {
                // Thrown here, it was never handed to the sender.
                History.write("failed", name, topic, partition, value, "definite", error.getClass().getSimpleName());
                History.note(name, error);
                return;
            }
        }
    }
}
