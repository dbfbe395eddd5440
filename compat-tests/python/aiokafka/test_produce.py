"""Produce and fetch outside transactions."""

import asyncio

import kit


async def round_trip(clients, codec):
    topic = await clients.create_topics(f"codec-{codec}")
    # Long and repetitive, so that a codec that grows the data is not taken for one that was not used.
    headers = [("h", b"\x00\xff"), ("null", None)]
    sent = [(f"key-{i}".encode(), (f"value-{i}-" * 40).encode(), headers) for i in range(100)]
    sent += [(None, b"no key", []), (b"tombstone", None, []), (b"", b"", [])]
    producer = await clients.plain_producer(compression_type=codec, linger_ms=50)
    acknowledged = [
        await producer.send(topic, value, key=key, partition=0, headers=headers) for key, value, headers in sent
    ]
    await kit.within("the acknowledgements", asyncio.gather(*acknowledged))

    got = []
    async for message in kit.polled(await clients.reader(topic)):
        assert message.offset == len(got)
        got.append((message.key, message.value, list(message.headers)))
        if len(got) == len(sent):
            break
    assert got == sent


async def test_codec_none(clients):
    await round_trip(clients, None)


async def test_codec_gzip(clients):
    await round_trip(clients, "gzip")


async def test_codec_snappy(clients):
    await round_trip(clients, "snappy")


async def test_codec_lz4(clients):
    await round_trip(clients, "lz4")


async def test_codec_zstd(clients):
    await round_trip(clients, "zstd")


async def test_idempotent_retry(clients, relay):
    topic = await clients.create_topics("idempotent", bootstrap=kit.RELAYED)
    producer = await clients.plain_producer(kit.RELAYED)
    rule = relay.arm("cut", "response", kit.PRODUCE, 3)
    values = kit.numbered("", 10)
    for value in values:
        await kit.send(producer, topic, value)
    await relay.fired(rule)
    assert await clients.read_all(topic, bootstrap=kit.RELAYED) == values
