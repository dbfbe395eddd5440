"""Produce and fetch outside transactions."""

from confluent_kafka import TopicPartition

import kit


def round_trip(codec):
    topic = kit.create_topics(f"codec-{codec}")
    # Long and repetitive, so that a codec that grows the data is not taken for one that was not used.
    headers = [("h", b"\x00\xff"), ("null", None)]
    sent = [(f"key-{i}".encode(), (f"value-{i}-" * 40).encode(), headers) for i in range(100)]
    sent += [(None, b"no key", None), (b"tombstone", None, None), (b"", b"", None)]
    producer = kit.plain_producer(**{"compression.type": codec, "linger.ms": 50})
    for key, value, headers in sent:
        producer.produce(topic, value, key, partition=0, headers=headers)
    assert producer.flush(kit.DEADLINE) == 0

    reader = kit.consumer()
    reader.assign([TopicPartition(topic, 0, 0)])
    got = []
    for offset, message in enumerate(kit.polled(reader)):
        assert message.offset() == offset
        got.append((message.key(), message.value(), message.headers()))
        if len(got) == len(sent):
            break
    reader.close()
    assert got == sent


def test_codec_none():
    round_trip("none")


def test_codec_gzip():
    round_trip("gzip")


def test_codec_snappy():
    round_trip("snappy")


def test_codec_lz4():
    round_trip("lz4")


def test_codec_zstd():
    round_trip("zstd")


def test_idempotent_retry(relay):
    topic = kit.create_topics("idempotent", bootstrap=kit.RELAYED)
    producer = kit.plain_producer(kit.RELAYED)
    rule = relay.arm("cut", "response", kit.PRODUCE, 3)
    values = [str(i) for i in range(10)]
    for value in values:
        kit.send(producer, topic, value)
    relay.fired(rule)
    assert kit.read_all(topic, bootstrap=kit.RELAYED) == values
