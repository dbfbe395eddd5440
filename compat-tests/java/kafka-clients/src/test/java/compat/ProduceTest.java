package compat;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.junit.jupiter.api.Test;

/** Produce and fetch outside transactions. */
class ProduceTest {
    private static void roundTrip(String codec) throws Exception {
        String topic = Kit.topic("codec-" + codec);
        List<ProducerRecord<String, String>> sent = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            // Long and repetitive, so that a codec that grows the data is not taken for one that was not used.
            ProducerRecord<String, String> one = new ProducerRecord<>(topic, 0, "key-" + i, ("value-" + i).repeat(40));
            one.headers().add("h", new byte[] {0, -1}).add("null", null);
            sent.add(one);
        }
        sent.add(new ProducerRecord<>(topic, 0, null, "no key"));
        sent.add(new ProducerRecord<>(topic, 0, "tombstone", null));
        sent.add(new ProducerRecord<>(topic, 0, "", ""));
        try (KafkaProducer<String, String> producer =
                Kit.producer(Kit.BOOTSTRAP, Map.of("compression.type", codec, "linger.ms", 50))) {
            sent.forEach(producer::send);
        }
        List<ConsumerRecord<String, String>> got = new ArrayList<>();
        try (KafkaConsumer<String, String> reader = Kit.reader(topic)) {
            Kit.poll(reader, one -> got.add(one) && got.size() == sent.size());
        }
        for (int i = 0; i < sent.size(); i++) {
            assertEquals(i, got.get(i).offset());
            assertEquals(sent.get(i).key(), got.get(i).key());
            assertEquals(sent.get(i).value(), got.get(i).value());
            Header[] want = sent.get(i).headers().toArray();
            Header[] have = got.get(i).headers().toArray();
            assertEquals(want.length, have.length);
            for (int h = 0; h < want.length; h++) {
                assertEquals(want[h].key(), have[h].key());
                assertArrayEquals(want[h].value(), have[h].value());
            }
        }
    }

    @Test
    void codecNone() throws Exception {
        roundTrip("none");
    }

    @Test
    void codecGzip() throws Exception {
        roundTrip("gzip");
    }

    @Test
    void codecSnappy() throws Exception {
        roundTrip("snappy");
    }

    @Test
    void codecLz4() throws Exception {
        roundTrip("lz4");
    }

    @Test
    void codecZstd() throws Exception {
        roundTrip("zstd");
    }

    @Test
    void idempotentRetry() throws Exception {
        String topic = Kit.topic(Kit.RELAYED, "idempotent", 1);
        String[] values = Kit.numbered("", 10);
        try (Relay relay = new Relay();
                KafkaProducer<String, String> producer = Kit.producer(Kit.RELAYED, Map.of())) {
            String rule = relay.cutResponse(Relay.PRODUCE, 3);
            for (String value : values) {
                Kit.send(producer, topic, value);
            }
            relay.fired(rule);
        }
        assertEquals(Arrays.asList(values), Kit.readAll(Kit.RELAYED, topic).get(topic));
    }
}
