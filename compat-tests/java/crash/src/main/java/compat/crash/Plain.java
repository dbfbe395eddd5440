package compat.crash;

import java.time.Duration;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringSerializer;

/** One idempotent producer outside transactions, with several requests on their way at a time. */
final class Plain implements Runnable {
    private static final int PARTITIONS = 4;

    private final String name;
    private final Map<String, Object> config;
    private final Random random;
    private int instance;

    Plain(String name, String bootstrap, long seed) {
        this.name = name;
        config = Workload.common(bootstrap);
        config.put("enable.idempotence", true);
        config.put("linger.ms", 1);
        random = new Random(seed);
    }

    private static boolean stopping() throws InterruptedException {
        return Workload.PRODUCERS_STOP.await(2, TimeUnit.MILLISECONDS);
    }

    @Override
    public void run() {
        try {
            while (!stopping()) {
                instance++;
                try (KafkaProducer<String, String> producer =
                        new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
                    for (int n = 0; !stopping(); n++) {
                        String value = name + "." + instance + "|" + n;
                        producer.send(new ProducerRecord<>("crash-plain", random.nextInt(PARTITIONS), null, value),
                                (metadata, error) -> {
                                    if (error == null) {
                                        Journal.write("acked", value);
                                    } else {
                                        Journal.note(value, error);
                                        Journal.write("failed", value);
                                    }
                                });
                    }
                    producer.close(Duration.ofSeconds(90));
                } catch (KafkaException error) {
                    Journal.note(name, error);
                }
            }
        } catch (InterruptedException error) {
            Journal.note(name, error);
        }
    }
}
