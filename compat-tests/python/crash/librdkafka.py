#!/usr/bin/env python3
"""The crash workload over librdkafka: librdkafka.py NAME BOOTSTRAP SEED.

The same clients, events and commands as the Java workload (java/crash): two transactional producers, a plain
idempotent producer, and a member of the common group. journal.py says what the lines mean.
"""

import faulthandler
import os
import random
import signal
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

TOPICS = ("crash-a", "crash-b", "crash-c")
# Of the transactional topics, and of the plain one.
PARTITIONS, PLAIN_PARTITIONS = 2, 4
PRODUCERS_STOP, ALL_STOP = threading.Event(), threading.Event()
LOCK = threading.Lock()
TRIES = 90.0


def write(*words):
    with LOCK:
        print(*words, sep="\t", flush=True)


def note(who, error):
    print(f"{who}: {error}", file=sys.stderr, flush=True)


def common(bootstrap, **more):
    quick = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20, "log_level": 2}
    # The default is to bootstrap anew when no broker answers. With librdkafka 2.16.0 that can leave the handle of the
    # one broker terminating for ever, and send_offsets_to_transaction waiting past its timeout; on Apache Kafka too.
    quick["metadata.recovery.strategy"] = "none"
    if os.environ.get("CRASH_DEBUG"):
        quick |= {"log_level": 7, "debug": os.environ["CRASH_DEBUG"]}
    return {"bootstrap.servers": bootstrap} | quick | more


class Transactions:
    """One transactional producer, as in Transactions.java."""

    def __init__(self, name, bootstrap, seed):
        self.name, self.bootstrap = name, bootstrap
        self.dice = random.Random(seed)
        self.number = -1
        # Never subscribed: its metadata names the group, without a member or a generation.
        self.group = Consumer(common(bootstrap, **{"group.id": f"crash-offsets-{name}"})).consumer_group_metadata()

    def run(self):
        while not PRODUCERS_STOP.is_set():
            producer = Producer(
                common(
                    self.bootstrap,
                    **{"transactional.id": self.name, "transaction.timeout.ms": 60000, "linger.ms": 0},
                )
            )
            try:
                producer.init_transactions(TRIES)
                # Also the pace: without it the record of what happened would be longer than what it tells.
                while not PRODUCERS_STOP.wait(0.003) and self.transaction(producer):
                    pass
            except KafkaException as error:
                note(self.name, error)

    def transaction(self, producer):
        """One transaction; false if the producer cannot go on."""
        self.number += 1
        each = 1 + self.dice.randrange(3)
        count = each * len(TOPICS)
        write("begin", self.name, self.number, count)
        try:
            producer.begin_transaction()
            for i in range(count):
                value = f"{self.name}|{self.number}|{i}|{count}"
                producer.produce(TOPICS[i // each], value, partition=self.dice.randrange(PARTITIONS))
            self.send_offsets(producer)
            if self.dice.randrange(5) == 0:
                producer.abort_transaction(TRIES)
                write("aborted", self.name, self.number)
                return True
        except KafkaException as error:
            # No commit was asked for, so whatever becomes of the abort, nothing may show.
            note(self.name, error)
            return self.abort(producer, "aborted")
        return self.commit(producer)

    def send_offsets(self, producer):
        # In short tries: after the broker was restarted a call may sit out its whole timeout without sending anything.
        end = time.monotonic() + TRIES
        while True:
            try:
                offsets = [TopicPartition("crash-source", 0, self.number + 1)]
                return producer.send_offsets_to_transaction(offsets, self.group, 2)
            except KafkaException as error:
                note(self.name, error)
                if not error.args[0].retriable() or time.monotonic() > end:
                    raise

    def commit(self, producer):
        write("commit", self.name, self.number)
        end = time.monotonic() + TRIES
        while True:
            try:
                producer.commit_transaction(10)
                write("committed", self.name, self.number)
                return True
            except KafkaException as error:
                note(self.name, error)
                told = error.args[0]
                if told.retriable() and time.monotonic() < end:
                    continue
                if told.txn_requires_abort():
                    return self.abort(producer, "unknown")
                write("unknown", self.name, self.number)
                return False

    def abort(self, producer, otherwise):
        try:
            producer.abort_transaction(TRIES)
            write("aborted", self.name, self.number)
            return True
        except KafkaException as error:
            note(self.name, error)
            write(otherwise, self.name, self.number)
            return False


def plain(name, bootstrap, seed):
    """One idempotent producer outside transactions."""
    dice, instance = random.Random(seed), 0

    def told(error, message):
        if error:
            note(name, error)
        write("failed" if error else "acked", message.value().decode())

    while not PRODUCERS_STOP.is_set():
        instance += 1
        producer = Producer(common(bootstrap, **{"enable.idempotence": True, "linger.ms": 1}))
        try:
            number = 0
            while not PRODUCERS_STOP.wait(0.002):
                value, partition = f"{name}.{instance}|{number}", dice.randrange(PLAIN_PARTITIONS)
                producer.produce("crash-plain", value, partition=partition, on_delivery=told)
                number += 1
                producer.poll(0)
        except (KafkaException, BufferError) as error:
            note(name, error)
        producer.flush(TRIES)


def member(name, bootstrap):
    """One member of the group that reads what the plain producers write, at least once."""

    def resumed(consumer, partitions):
        asked = time.monotonic_ns()
        try:
            for one in consumer.committed(partitions, timeout=30):
                write("resume", one.partition, max(-1, one.offset), asked)
        except KafkaException as error:
            note(name, error)

    consumer = Consumer(
        common(
            bootstrap,
            **{
                "group.id": "crash-group",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 200,
                # What the Java members offer first too: a group needs one that all know.
                "partition.assignment.strategy": "range",
            },
        )
    )
    consumer.subscribe(["crash-plain"], on_assign=resumed)
    while not ALL_STOP.is_set():
        following = {}
        for message in consumer.consume(500, 0.2):
            if message.error():
                note(name, message.error())
                continue
            write("read", message.partition(), message.offset(), message.value().decode())
            following[message.partition()] = message.offset() + 1
        if not following:
            continue
        try:
            consumer.commit(
                offsets=[TopicPartition("crash-plain", p, o) for p, o in following.items()], asynchronous=False
            )
            for partition, offset in following.items():
                write("offset", partition, offset, time.monotonic_ns())
        except KafkaException as error:
            # Not committed as far as this member knows: whoever is next reads it again.
            note(name, error)
    consumer.close()


def main():
    name, bootstrap, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    # As a JVM does: where each thread stands.
    faulthandler.register(signal.SIGQUIT)
    producers = [
        threading.Thread(target=Transactions(f"{name}-t{i}", bootstrap, seed + i).run) for i in range(2)
    ]
    producers.append(threading.Thread(target=plain, args=(f"{name}-p0", bootstrap, seed + 2)))
    reader = threading.Thread(target=member, args=(f"{name}-m0", bootstrap))
    for thread in (*producers, reader):
        thread.start()
    sys.stdin.readline()
    PRODUCERS_STOP.set()
    for thread in producers:
        thread.join()
    write("done", name)
    sys.stdin.readline()
    ALL_STOP.set()
    reader.join()


if __name__ == "__main__":
    main()
