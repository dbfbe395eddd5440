"""Transactions: whole, absent, fenced, timed out, retried, and killed in the middle."""

import asyncio

import kit
import pytest
from aiokafka.errors import KafkaError, ProducerFenced


async def test_txn_commit(clients):
    a, b = await clients.create_topics("commit-a", "commit-b")
    producer = await clients.transactional_producer(kit.unique("commit"))
    reader = await clients.reader(a, b)
    await producer.begin_transaction()
    await kit.send(producer, a, "1", "2", "3")
    await kit.send(producer, b, "4", "5")
    assert await kit.end_offset(reader, a) == 0 and await kit.end_offset(reader, b) == 0
    await producer.commit_transaction()
    assert await clients.read_all(a, b) == {a: ["1", "2", "3"], b: ["4", "5"]}

    async with producer.transaction():
        await kit.send(producer, a, "6")
    assert await clients.read_all(a) == ["1", "2", "3", "6"]


async def test_txn_abort(clients):
    topic = await clients.create_topics("abort")
    producer = await clients.transactional_producer(kit.unique("abort"))
    for value in ("dropped-1", "kept", "dropped-2"):
        await kit.transaction(producer, "commit" if value == "kept" else "abort", [value], topic)
    assert await clients.read_all(topic) == ["kept"]


async def test_txn_empty(clients):
    topic = await clients.create_topics("empty")
    producer = await clients.transactional_producer(kit.unique("empty"))
    for step in ("commit", "abort", "full-1", "commit", "abort", "abort", "full-2", "abort", "commit"):
        full = [topic] if step.startswith("full") else []
        await kit.transaction(producer, "abort" if step == "abort" else "commit", [step], *full)
    assert await clients.read_all(topic) == ["full-1", "full-2"]


async def commits_and_aborts(producer, topic, rounds):
    """Alternates, and returns what was committed."""
    kept = []
    for n in range(rounds):
        values = kit.numbered(f"{n}-", 3)
        await kit.transaction(producer, "commit" if n % 2 else "abort", values, topic)
        kept += values if n % 2 else []
    return kept


async def test_aborted_never_visible_tailing(clients):
    topic = await clients.create_topics("tailing")
    seen, tailing = [], asyncio.Event()
    reader = await clients.reader(topic)

    async def tail():
        async for message in kit.polled(reader):
            tailing.set()
            seen.append(kit.text(message))
            if seen[-1] == "last":
                return

    ended = asyncio.create_task(tail())
    plain = await clients.plain_producer()
    await kit.send(plain, topic, "first")
    await kit.within("the first record", tailing.wait())
    producer = await clients.transactional_producer(kit.unique("tailing"))
    kept = await commits_and_aborts(producer, topic, 20)
    await kit.send(plain, topic, "last")
    await ended
    assert seen == ["first", *kept, "last"]


async def test_aborted_never_visible_fresh(clients):
    topic = await clients.create_topics("fresh")
    producer = await clients.transactional_producer(kit.unique("fresh"))
    kept = await commits_and_aborts(producer, topic, 20)
    assert await clients.read_all(topic) == kept


async def test_multi_topic_whole_or_absent(clients):
    topics = await clients.create_topics("multi-a", "multi-b", "multi-c")
    rounds, each = 40, 3
    kept = [n for n in range(rounds) if n % 4 != 3]
    producer = await clients.transactional_producer(kit.unique("multi"))
    plain = await clients.plain_producer()

    async def write():
        for n in range(rounds):
            end = "commit" if n in kept else "abort"
            await kit.transaction(producer, end, kit.numbered(f"{n}:", each), *topics)
        for topic in topics:
            await kit.send(plain, topic, "last")

    reader, ends = await clients.reader(*topics), await clients.reader(*topics)
    writer = asyncio.create_task(write())
    seen = {topic: [] for topic in topics}
    finished, newest = set(), -1
    async for message in kit.polled(reader):
        if kit.text(message) == "last":
            finished.add(message.topic)
            if len(finished) == len(topics):
                break
            continue
        seen[message.topic].append(kit.text(message))
        n = int(kit.text(message).split(":")[0])
        if kit.STRICT and n > newest:
            newest = n
            covered = each * (kept.index(n) + 1)
            for topic in topics:
                assert await kit.end_offset(ends, topic) >= covered, f"transaction {n} shows in part"
    await writer
    whole = [f"{n}:{i}" for n in kept for i in range(each)]
    assert seen == {topic: whole for topic in topics}


async def test_txn_offsets(clients):
    source, out = await clients.create_topics("offsets-in", "offsets-out")
    group = kit.unique("offsets")
    await kit.send(await clients.plain_producer(), source, *kit.numbered("", 10))
    member = await clients.consumer(source, group=group)
    async for message in kit.polled(member):
        if message.offset == 9:
            break
    producer = await clients.transactional_producer(kit.unique("offsets"))

    async def transform(upto):
        await producer.begin_transaction()
        await kit.send(producer, out, str(upto))
        await kit.within("offsets", producer.send_offsets_to_transaction(kit.offsets(source, upto), group))
        assert await kit.committed(member, source) is None

    await transform(4)
    await producer.abort_transaction()
    assert await kit.committed(member, source) is None
    await transform(10)
    await producer.commit_transaction()

    async def moved():
        return await kit.committed(member, source) == 10

    # Kafka answers a commit before its markers are written, and aiokafka cannot ask for stable offsets.
    assert not kit.STRICT or await moved()
    await kit.until("the offset", moved)
    assert await clients.read_all(out) == ["10"]


async def test_txn_offsets_visible_together(clients):
    source, out = await clients.create_topics("together-in", "together-out")
    group, rounds = kit.unique("together"), 20
    producer = await clients.transactional_producer(kit.unique("together"))
    reader, ends = await clients.reader(out), await clients.reader(out)
    member = await clients.consumer(source, group=group)

    async def write():
        for n in range(rounds):
            await producer.begin_transaction()
            await kit.send(producer, out, str(n))
            await kit.within("offsets", producer.send_offsets_to_transaction(kit.offsets(source, n + 1), group))
            await kit.within("commit", producer.commit_transaction())

    writer = asyncio.create_task(write())
    n = 0
    async for message in kit.polled(reader):
        assert kit.text(message) == str(n)
        n += 1

        async def covered(n=n):
            return (await kit.committed(member, source) or -1) >= n

        if kit.STRICT:
            assert await covered(), f"output {n - 1} shows without its offset"
            offset = await kit.committed(member, source)
            assert await kit.end_offset(ends, out) >= offset, f"offset {offset} shows without its output"
        else:
            await kit.until("the offset", covered)
        if n == rounds:
            break
    await writer


async def test_zombie_fenced(clients):
    topic, name = await clients.create_topics("zombie"), kit.unique("zombie")
    zombie = await clients.transactional_producer(name)
    await zombie.begin_transaction()
    await kit.send(zombie, topic, "of the zombie")
    heir = await clients.transactional_producer(name)
    with pytest.raises(ProducerFenced):
        await kit.within("commit", zombie.commit_transaction())
    with pytest.raises((KafkaError, AssertionError)):
        # Its fatal state, which aiokafka guards by an assertion.
        await zombie.begin_transaction()
    await kit.transaction(heir, "commit", ["of the heir"], topic)
    assert await clients.read_all(topic) == ["of the heir"]


async def test_txn_timeout(clients):
    source, out = await clients.create_topics("timeout-in", "timeout-out")
    name, group = kit.unique("timeout"), kit.unique("timeout")
    short = {"transaction_timeout_ms": 2000}
    producer = await clients.transactional_producer(name, **short)
    member = await clients.consumer(source, group=group)
    await producer.begin_transaction()
    await kit.send(producer, out, "too late")
    await kit.within("offsets", producer.send_offsets_to_transaction(kit.offsets(source, 7), group))
    # aiokafka cannot ask for stable offsets, whose release would tell the end of the transaction: so its time must pass.
    for _ in range(40):
        assert await kit.committed(member, source) is None
        await asyncio.sleep(0.1)
    with pytest.raises(KafkaError) as caught:
        await kit.within("commit", producer.commit_transaction())
    producer = await kit.recover(clients, producer, caught.value, name, **short)
    await kit.transaction(producer, "commit", ["in time"], out)
    assert await clients.read_all(out) == ["in time"]
    assert await kit.committed(member, source) is None


async def test_end_txn_cut(clients, relay):
    a, b = await clients.create_topics("cut-a", "cut-b", bootstrap=kit.RELAYED)
    producer = await clients.transactional_producer(kit.unique("cut"), kit.RELAYED)
    values = ["0", "1", "2"]
    for value in values:
        rule = relay.arm("cut", "response", kit.END_TXN)
        await kit.transaction(producer, "commit", [value], a, b)
        await relay.fired(rule)
    assert await clients.read_all(a, b, bootstrap=kit.RELAYED) == {a: values, b: values}


async def test_broker_killed_in_txn(clients):
    a, b = await clients.create_topics("killed-a", "killed-b")
    name = kit.unique("killed")
    # Longer than any restart, or Kafka would time it out at once.
    config = {"transaction_timeout_ms": 60000}
    producer = await clients.transactional_producer(name, **config)
    await kit.transaction(producer, "commit", ["before"], a, b)
    expected = ["before"]

    await producer.begin_transaction()
    await kit.send(producer, a, "inside")
    await kit.send(producer, b, "inside")
    await kit.broker("kill", "main")
    await kit.broker("start", "main")
    try:
        await kit.within("commit", producer.commit_transaction())
        expected.append("inside")
    except KafkaError as error:
        producer = await kit.recover(clients, producer, error, name, **config)

    await kit.transaction(producer, "commit", ["after"], a, b)
    expected.append("after")
    assert await clients.read_all(a, b) == {a: expected, b: expected}
