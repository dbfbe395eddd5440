"""Transactions: whole, absent, fenced, timed out, retried, and killed in the middle."""

import threading

import pytest
from confluent_kafka import KafkaException, TopicPartition

import kit


def test_txn_commit():
    a, b = kit.create_topics("commit-a", "commit-b")
    producer = kit.transactional_producer(kit.unique("commit"))
    reader = kit.consumer()
    producer.begin_transaction()
    kit.send(producer, a, "1", "2", "3")
    kit.send(producer, b, "4", "5")
    assert kit.end_offset(reader, a) == 0 and kit.end_offset(reader, b) == 0
    producer.commit_transaction(kit.DEADLINE)
    assert kit.read_all(a, b) == {a: ["1", "2", "3"], b: ["4", "5"]}

    producer.begin_transaction()
    kit.send(producer, a, "6")
    producer.commit_transaction(kit.DEADLINE)
    assert kit.read_all(a) == ["1", "2", "3", "6"]


def test_txn_abort():
    topic = kit.create_topics("abort")
    producer = kit.transactional_producer(kit.unique("abort"))
    for value in ("dropped-1", "kept", "dropped-2"):
        producer.begin_transaction()
        kit.send(producer, topic, value)
        if value == "kept":
            producer.commit_transaction(kit.DEADLINE)
        else:
            producer.abort_transaction(kit.DEADLINE)
    assert kit.read_all(topic) == ["kept"]


def test_txn_empty():
    topic = kit.create_topics("empty")
    producer = kit.transactional_producer(kit.unique("empty"))
    for step in ("commit", "abort", "full-1", "commit", "abort", "abort", "full-2", "abort", "commit"):
        producer.begin_transaction()
        if step.startswith("full"):
            kit.send(producer, topic, step)
        if step == "abort":
            producer.abort_transaction(kit.DEADLINE)
        else:
            producer.commit_transaction(kit.DEADLINE)
    assert kit.read_all(topic) == ["full-1", "full-2"]


def commits_and_aborts(producer, topic, rounds):
    """Alternates, and returns what was committed."""
    kept = []
    for n in range(rounds):
        values = [f"{n}-{i}" for i in range(3)]
        producer.begin_transaction()
        kit.send(producer, topic, *values)
        if n % 2:
            producer.commit_transaction(kit.DEADLINE)
            kept += values
        else:
            producer.abort_transaction(kit.DEADLINE)
    return kept


def test_aborted_never_visible_tailing():
    topic = kit.create_topics("tailing")
    seen, failed = [], []
    tailing = threading.Event()

    def tail():
        try:
            reader = kit.consumer()
            reader.assign([TopicPartition(topic, 0, 0)])
            for message in kit.polled(reader):
                tailing.set()
                if kit.text(message) == "last":
                    break
                seen.append(kit.text(message))
            reader.close()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=tail)
    thread.start()
    kit.send(kit.plain_producer(), topic, "first")
    assert tailing.wait(30)
    kept = commits_and_aborts(kit.transactional_producer(kit.unique("tailing")), topic, 20)
    kit.send(kit.plain_producer(), topic, "last")
    thread.join()
    assert not failed and seen == ["first", *kept]


def test_aborted_never_visible_fresh():
    topic = kit.create_topics("fresh")
    kept = commits_and_aborts(kit.transactional_producer(kit.unique("fresh")), topic, 20)
    assert kit.read_all(topic) == kept


def test_multi_topic_whole_or_absent():
    topics = kit.create_topics("multi-a", "multi-b", "multi-c")
    rounds, each = 40, 3
    kept = [n for n in range(rounds) if n % 4 != 3]
    failed = []

    def write():
        try:
            producer = kit.transactional_producer(kit.unique("multi"))
            for n in range(rounds):
                producer.begin_transaction()
                for topic in topics:
                    kit.send(producer, topic, *[f"{n}:{i}" for i in range(each)])
                if n in kept:
                    producer.commit_transaction(kit.DEADLINE)
                else:
                    producer.abort_transaction(kit.DEADLINE)
            plain = kit.plain_producer()
            for topic in topics:
                kit.send(plain, topic, "last")
        except Exception as error:
            failed.append(error)

    reader, ends = kit.consumer(), kit.consumer()
    reader.assign([TopicPartition(topic, 0, 0) for topic in topics])
    thread = threading.Thread(target=write)
    thread.start()
    seen = {topic: [] for topic in topics}
    finished, newest = set(), -1
    for message in kit.polled(reader):
        if kit.text(message) == "last":
            finished.add(message.topic())
            if len(finished) == len(topics):
                break
            continue
        seen[message.topic()].append(kit.text(message))
        n = int(kit.text(message).split(":")[0])
        if kit.STRICT and n > newest:
            newest = n
            covered = each * (kept.index(n) + 1)
            for topic in topics:
                assert kit.end_offset(ends, topic) >= covered, f"transaction {n} shows in part"
    thread.join()
    assert not failed
    whole = [f"{n}:{i}" for n in kept for i in range(each)]
    assert seen == {topic: whole for topic in topics}


def test_txn_offsets():
    source, out = kit.create_topics("offsets-in", "offsets-out")
    group = kit.unique("offsets")
    kit.send(kit.plain_producer(), source, *[str(i) for i in range(10)])
    member = kit.consumer(group)
    member.subscribe([source])
    for message in kit.polled(member):
        if message.offset() == 9:
            break
    now = kit.consumer(group, isolation="read_uncommitted")
    stable = kit.consumer(group)
    producer = kit.transactional_producer(kit.unique("offsets"))

    def transform(upto):
        producer.begin_transaction()
        kit.send(producer, out, str(upto))
        producer.send_offsets_to_transaction(
            [TopicPartition(source, 0, upto)], member.consumer_group_metadata(), kit.DEADLINE
        )

    transform(4)
    assert kit.committed(now, source) < 0
    producer.abort_transaction(kit.DEADLINE)
    assert kit.committed(stable, source) < 0
    transform(10)
    assert kit.committed(now, source) < 0
    producer.commit_transaction(kit.DEADLINE)
    assert kit.committed(stable, source) == 10
    assert kit.read_all(out) == ["10"]
    member.close()


def test_txn_offsets_visible_together():
    source, out = kit.create_topics("together-in", "together-out")
    group = kit.unique("together")
    rounds, failed = 20, []
    turn = threading.Semaphore(1)

    def write():
        try:
            producer = kit.transactional_producer(kit.unique("together"))
            metadata = kit.consumer(group).consumer_group_metadata()
            for n in range(rounds):
                # One at a time: with a transaction always open a reader of stable offsets would never get a turn.
                assert turn.acquire(timeout=kit.DEADLINE)
                producer.begin_transaction()
                kit.send(producer, out, str(n))
                producer.send_offsets_to_transaction([TopicPartition(source, 0, n + 1)], metadata, kit.DEADLINE)
                producer.commit_transaction(kit.DEADLINE)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    reader, offsets = kit.consumer(), kit.consumer(group)
    reader.assign([TopicPartition(out, 0, 0)])
    for n, message in enumerate(kit.polled(reader)):
        assert kit.text(message) == str(n)
        assert kit.committed(offsets, source) == n + 1, f"output {n} shows without its offset"
        if n + 1 == rounds:
            break
        turn.release()
        if kit.STRICT:
            offset = kit.committed(kit.consumer(group, isolation="read_uncommitted"), source)
            assert kit.end_offset(reader, out) >= offset, f"offset {offset} shows without its output"
    thread.join()
    assert not failed


def test_zombie_fenced():
    topic = kit.create_topics("zombie")
    name = kit.unique("zombie")
    zombie = kit.transactional_producer(name)
    zombie.begin_transaction()
    kit.send(zombie, topic, "of the zombie")
    heir = kit.transactional_producer(name)
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(kit.DEADLINE)
    error = caught.value.args[0]
    assert error.fatal() and error.name() in ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"), error
    heir.begin_transaction()
    kit.send(heir, topic, "of the heir")
    heir.commit_transaction(kit.DEADLINE)
    assert kit.read_all(topic) == ["of the heir"]


def test_txn_timeout():
    source, out = kit.create_topics("timeout-in", "timeout-out")
    name, group = kit.unique("timeout"), kit.unique("timeout")
    short = {"transaction.timeout.ms": 2000}
    producer = kit.transactional_producer(name, **short)
    producer.begin_transaction()
    kit.send(producer, out, "too late")
    stable = kit.consumer(group)
    producer.send_offsets_to_transaction([TopicPartition(source, 0, 7)], stable.consumer_group_metadata(), kit.DEADLINE)
    # A stable offset is not given while one is pending: this returns when the transaction has ended.
    assert kit.committed(stable, source) < 0
    with pytest.raises(KafkaException) as caught:
        kit.commit(producer)
    producer = kit.recover(producer, caught.value, name, **short)
    producer.begin_transaction()
    kit.send(producer, out, "in time")
    producer.commit_transaction(kit.DEADLINE)
    assert kit.read_all(out) == ["in time"]
    assert kit.committed(stable, source) < 0


def test_end_txn_cut(relay):
    a, b = kit.create_topics("cut-a", "cut-b", bootstrap=kit.RELAYED)
    producer = kit.transactional_producer(kit.unique("cut"), kit.RELAYED)
    for n in range(3):
        producer.begin_transaction()
        kit.send(producer, a, f"{n}")
        kit.send(producer, b, f"{n}")
        rule = relay.arm("cut", "response", kit.END_TXN)
        kit.commit(producer)
        relay.fired(rule)
    assert kit.read_all(a, b, bootstrap=kit.RELAYED) == {a: ["0", "1", "2"], b: ["0", "1", "2"]}


def test_broker_killed_in_txn():
    a, b = kit.create_topics("killed-a", "killed-b")
    name = kit.unique("killed")
    # Longer than any restart, or Kafka would time it out at once.
    config = {"transaction.timeout.ms": 60000}
    producer = kit.transactional_producer(name, **config)
    expected = ["before"]
    producer.begin_transaction()
    kit.send(producer, a, "before")
    kit.send(producer, b, "before")
    kit.commit(producer)

    producer.begin_transaction()
    kit.send(producer, a, "inside")
    kit.send(producer, b, "inside")
    kit.broker("kill")
    kit.broker("start")
    try:
        kit.commit(producer)
        expected.append("inside")
    except KafkaException as error:
        producer = kit.recover(producer, error, name, **config)

    producer.begin_transaction()
    kit.send(producer, a, "after")
    kit.send(producer, b, "after")
    kit.commit(producer)
    expected.append("after")
    assert kit.read_all(a, b) == {a: expected, b: expected}
