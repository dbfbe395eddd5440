"""What the cases share: clients with short timeouts, topics, complete reads, the relay and the broker's life."""

import contextlib
import os
import socket
import subprocess
import time
import uuid

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

BOOTSTRAP = os.environ["BOOTSTRAP"]
RELAYED = os.environ["RELAY_BOOTSTRAP"]
# Promises that Kafka itself does not make are asserted only where they are made.
STRICT = os.environ["TARGET"] == "katomic"

# API keys, for the relay.
PRODUCE, END_TXN = 0, 26

DEADLINE = 60.0
QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20}


def unique(name):
    """A topic, group or transactional id that no other run has."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def create_topics(*names, partitions=1, bootstrap=BOOTSTRAP):
    """Creates topics under unique names and returns those, one or a list."""
    made = [unique(name) for name in names]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, partitions, int(os.environ["REPLICAS"])) for name in made]).values():
        future.result(30)
    return made if len(made) > 1 else made[0]


def plain_producer(bootstrap=BOOTSTRAP, **config):
    """An idempotent producer."""
    return Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0} | QUICK | config)


def transactional_producer(transactional_id, bootstrap=BOOTSTRAP, **config):
    """A transactional producer that has its producer id."""
    producer = plain_producer(bootstrap, **{"transactional.id": transactional_id} | config)
    producer.init_transactions(DEADLINE)
    return producer


def consumer(group=None, bootstrap=BOOTSTRAP, isolation="read_committed", **config):
    """A consumer that starts at the beginning and commits nothing by itself."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group or unique("reader"),
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
        }
        | QUICK
        | config
    )


def send(producer, topic, *values, partition=0):
    """Sends and waits until all are acknowledged."""
    failed = []
    for value in values:
        producer.produce(
            topic, value, partition=partition, on_delivery=lambda err, _: failed.append(err) if err else None
        )
    left = producer.flush(DEADLINE)
    assert left == 0 and not failed, f"not acknowledged: {left} left, {failed}"


def commit(producer):
    """Commits, and asks again for as long as the client says that it may."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            return producer.commit_transaction(10)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > end:
                raise


def polled(reader, deadline=DEADLINE):
    """The messages of a consumer, as they come; ends in an error at the deadline."""
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        message = reader.poll(0.1)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        yield message
    raise AssertionError("the records awaited did not come")


def text(message):
    return message.value().decode() if message.value() is not None else None


def read_all(*topics, partitions=1, bootstrap=BOOTSTRAP, isolation="read_committed"):
    """The values of each topic as a fresh reader sees them, complete.

    A record is put behind everything else in each partition, and the reader goes on until it has met all of
    those: so the end is told without end offsets, which count control batches on Kafka only.
    """
    end = unique("end")
    marker = plain_producer(bootstrap)
    open_ends = set()
    for topic in topics:
        for partition in range(partitions):
            send(marker, topic, end, partition=partition)
            open_ends.add((topic, partition))
    found = {topic: [] for topic in topics}
    with contextlib.closing(consumer(bootstrap=bootstrap, isolation=isolation)) as reader:
        reader.assign([TopicPartition(topic, partition, 0) for topic, partition in open_ends])
        for message in polled(reader):
            if text(message) == end:
                open_ends.discard((message.topic(), message.partition()))
                if not open_ends:
                    break
            elif not (text(message) or "").startswith("end-"):
                found[message.topic()].append(text(message))
    return found[topics[0]] if len(topics) == 1 else found


def end_offset(reader, topic):
    """The end of the topic's first partition at the reader's isolation level."""
    return reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=30, cached=False)[1]


def committed(reader, topic):
    """The group's offset; negative if it has none. A read_committed reader waits for pending ones."""
    return reader.committed([TopicPartition(topic, 0)], timeout=30)[0].offset


def recover(producer, error, transactional_id, **config):
    """What an application does after a failed transaction: abort it, or start again if the error is fatal.

    Returns the producer to go on with.
    """
    told = error.args[0]
    assert told.fatal() or told.txn_requires_abort(), f"an error the application cannot act on: {told}"
    if told.txn_requires_abort():
        producer.abort_transaction(DEADLINE)
        return producer
    return transactional_producer(transactional_id, **config)


class Relay:
    """Commands for the relay in front of the second broker."""

    def __init__(self):
        host, port = os.environ["RELAY_CONTROL"].rsplit(":", 1)
        self.lines = socket.create_connection((host, int(port)), timeout=DEADLINE).makefile("rw")

    def ask(self, *words):
        print(*words, file=self.lines, flush=True)
        answer = self.lines.readline().split()
        assert answer and answer[0] == "ok", f"relay: {words} -> {answer}"
        return answer[1] if len(answer) > 1 else None

    def arm(self, action, side, key, nth=1):
        return self.ask("arm", action, side, key, nth)

    def fired(self, rule):
        self.ask("wait", rule, 30)


def broker(command, cluster="main", *which):
    """Commands ../../broker.sh: a whole cluster, or one node of it."""
    subprocess.run([os.environ["BROKER"], command, cluster, *which], check=True, timeout=120)
