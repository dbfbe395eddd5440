#!/usr/bin/env python3
"""The workload over librdkafka: librdkafka.py NAME BOOTSTRAP SEED ROLE...

The same clients, events, roles and phases as the Java workload (java/crash, package faults), but for the witness.
history.py says what the lines mean.
"""

import faulthandler
import os
import queue
import random
import signal
import sys
import threading
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

TOPICS = {
    "faults-plain": 4,
    "faults-source": 4,
    "faults-a": 2,
    "faults-b": 2,
    "faults-c": 2,
    "faults-out-a": 2,
    "faults-out-b": 2,
}
PHASES = ("PRODUCERS", "PIPES", "CONSUMERS")
OVER = {phase: threading.Event() for phase in PHASES}
LOCK = threading.Lock()
# Handles that hang: destroying one hangs too.
LEFT = []
TRIES = 60.0
PACE = float(os.environ.get("PACE_MS", "10")) / 1000


def write(*words):
    with LOCK:
        print(time.monotonic_ns(), *words, sep="\t", flush=True)


def note(who, error):
    told = error.args[0] if isinstance(error, KafkaException) else error
    write("error", who, told.name() if hasattr(told, "name") else type(error).__name__)
    print(f"{time.monotonic_ns()} {who}: {error}", file=sys.stderr, flush=True)


def name_of(error):
    return error.args[0].name()


def common(bootstrap, **more):
    quick = {
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        "retry.backoff.ms": 20,
        "retry.backoff.max.ms": 200,
        "socket.timeout.ms": 10000,
        "socket.connection.setup.timeout.ms": 2000,
        "topic.metadata.refresh.interval.ms": 5000,
        "log_level": 2,
        # See crash/librdkafka.py: to bootstrap anew can leave a handle terminating for ever.
        "metadata.recovery.strategy": "none",
    }
    if os.environ.get("FAULTS_DEBUG"):
        quick |= {"log_level": 7, "debug": os.environ["FAULTS_DEBUG"]}
    return {"bootstrap.servers": bootstrap} | quick | more


class Hung(Exception):
    """A call of librdkafka did not return, long past the timeout it was given."""


def watched(who, call, *arguments, timeout):
    """The result of a call that gets `timeout` as its last argument. librdkafka can wait past it for ever."""
    told = queue.SimpleQueue()

    def run():
        try:
            told.put((True, call(*arguments, timeout)))
        except Exception as error:  # pylint: disable=broad-except
            told.put((False, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        well, result = told.get(timeout=timeout + 30)
    except queue.Empty:
        note(who, Hung(call.__name__))
        raise Hung(call.__name__) from None
    if well:
        return result
    raise result


class Transactional:
    """What the transactional clients share."""

    phase = "PRODUCERS"

    def __init__(self, name, bootstrap, seed):
        self.name, self.bootstrap = name, bootstrap
        self.dice = random.Random(seed)
        self.number = -1

    def run(self):
        while not OVER[self.phase].is_set():
            producer = Producer(
                common(
                    self.bootstrap,
                    **{"transactional.id": self.name, "transaction.timeout.ms": 20000, "linger.ms": 0},
                )
            )
            try:
                watched(self.name, producer.init_transactions, timeout=TRIES)
                write("init", self.name)
                self.transactions(producer)
            except KafkaException as error:
                note(self.name, error)
                OVER[self.phase].wait(0.1)
            except Hung:
                # What became of the transaction is known: nothing, or unknown if its commit was asked for. The handle is
                # left as it is, and the next one takes the transactional id over.
                LEFT.append(producer)

    def begin(self, count, group, offsets):
        self.number += 1
        claims = ",".join(f"{group}:{o.topic}:{o.partition}={o.offset}" for o in offsets)
        write("begin", self.name, self.number, count, claims)

    def produce(self, producer, topic, partition, value):
        while True:
            try:
                return producer.produce(topic, value, partition=partition)
            except BufferError:
                producer.poll(0.1)

    def send_offsets(self, producer, offsets, group):
        # In short tries: after a restart a call may sit out its whole timeout without sending anything.
        end = time.monotonic() + TRIES
        while True:
            try:
                return watched(self.name, producer.send_offsets_to_transaction, offsets, group, timeout=3)
            except KafkaException as error:
                note(self.name, error)
                if not error.args[0].retriable() or time.monotonic() > end:
                    raise

    def commit(self, producer):
        """The fate: committed, aborted or broken."""
        write("commit", self.name, self.number)
        end = time.monotonic() + TRIES
        while True:
            try:
                watched(self.name, producer.commit_transaction, timeout=10)
                write("committed", self.name, self.number)
                return "committed"
            except KafkaException as error:
                note(self.name, error)
                told = error.args[0]
                if told.retriable() and time.monotonic() < end:
                    continue
                if told.txn_requires_abort():
                    return self.abort(producer, "unknown", error)
                write("unknown", self.name, self.number, told.name())
                return "broken"

    def abort(self, producer, otherwise, error=None):
        told = name_of(error) if error else "wanted"
        try:
            watched(self.name, producer.abort_transaction, timeout=TRIES)
            write("aborted", self.name, self.number, told)
            return "aborted"
        except KafkaException as fatal:
            note(self.name, fatal)
            write(otherwise, self.name, self.number, told)
            return "broken"


class Own(Transactional):
    """Writes to three topics and moves the offset of its own group to the transaction's number + 1."""

    def __init__(self, name, bootstrap, seed):
        super().__init__(name, bootstrap, seed)
        self.group = f"faults-own-{name}"
        # Never subscribed: its metadata names the group, without a member or a generation.
        self.member = Consumer(common(bootstrap, **{"group.id": self.group})).consumer_group_metadata()

    def transactions(self, producer):
        fate = "committed"
        while fate != "broken" and not OVER[self.phase].wait(PACE):
            fate = self.transaction(producer)

    def transaction(self, producer):
        topics = ("faults-a", "faults-b", "faults-c")
        each = 1 + self.dice.randrange(3)
        count = each * len(topics)
        offsets = [TopicPartition("faults-nothing", 0, self.number + 2)]
        self.begin(count, self.group, offsets)
        try:
            producer.begin_transaction()
            dice = self.dice.randrange(40)
            for i in range(count):
                if i in (each, 2 * each) and dice % 8 == 0:
                    # Half of it is acknowledged for a while, so that faults meet it in the middle.
                    producer.flush(5)
                    time.sleep(self.dice.uniform(0, 0.6))
                value = f"{self.name}|{self.number}|{i}|{count}"
                self.produce(producer, topics[i // each], self.dice.randrange(2), value)
            self.send_offsets(producer, offsets, self.member)
            if 0 < dice < 7:
                return self.abort(producer, "aborted")
        except KafkaException as error:
            # No commit was asked for, so whatever becomes of the abort, nothing may show.
            note(self.name, error)
            return self.abort(producer, "aborted", error)
        return self.commit(producer)


def group_consumer(bootstrap, group, **more):
    return Consumer(
        common(
            bootstrap,
            **{
                "group.id": group,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                # What the Java members offer first too: a group needs one that all know.
                "partition.assignment.strategy": "range",
            },
            **more,
        )
    )


def resume(consumer, group, partitions):
    """Where the group stands, noted."""
    asked = time.monotonic_ns()
    found = consumer.committed(partitions, timeout=20)
    for one in found:
        write("resume", group, one.topic, one.partition, max(-1, one.offset), asked)
    return found


class Pipe(Transactional):
    """Consumes, transforms and produces, exactly once."""

    phase = "PIPES"
    group = "faults-pipe"

    def transactions(self, producer):
        def resumed(consumer, partitions):
            try:
                resume(consumer, self.group, partitions)
            except KafkaException as error:
                note(self.name, error)

        consumer = group_consumer(self.bootstrap, self.group)
        consumer.subscribe(["faults-source"], on_assign=resumed)
        try:
            fate = "committed"
            while fate != "broken" and not OVER[self.phase].wait(0.005):
                records = [one for one in consumer.consume(20, 0.1) if not one.error()]
                if not records:
                    continue
                fate = self.transaction(producer, consumer, records)
                if fate == "aborted":
                    for one in resume(consumer, self.group, consumer.assignment()):
                        one.offset = one.offset if one.offset >= 0 else OFFSET_BEGINNING
                        consumer.seek(one)
        finally:
            consumer.close()

    def transaction(self, producer, consumer, records):
        ends = {}
        for one in records:
            ends[one.topic(), one.partition()] = one.offset() + 1
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]
        count = 2 * len(records)
        self.begin(count, self.group, offsets)
        try:
            producer.begin_transaction()
            for at, one in enumerate(records):
                for k, topic in enumerate(("faults-out-a", "faults-out-b")):
                    value = f"{self.name}|{self.number}|{2 * at + k}|{count}|{one.value().decode()}"
                    self.produce(producer, topic, self.dice.randrange(2), value)
            self.send_offsets(producer, offsets, consumer.consumer_group_metadata())
            if self.dice.randrange(15) == 0:
                return self.abort(producer, "aborted")
        except KafkaException as error:
            note(self.name, error)
            return self.abort(producer, "aborted", error)
        return self.commit(producer)


def plain(name, topic, pace, bootstrap, seed):
    """One idempotent producer outside transactions."""
    dice, instance = random.Random(seed), 0

    def told(error, message):
        where = (message.topic(), message.partition(), message.value().decode())
        if error:
            write("failed", name, *where, "unknown", error.name())
        else:
            # None: it was written before, and the broker no longer knows where.
            offset = message.offset()
            write("acked", name, *where, -1 if offset is None else offset)

    while not OVER["PRODUCERS"].is_set():
        instance += 1
        # Longer than any fault. When a record times out librdkafka takes a new producer id for all partitions, and sends
        # under it again what was in flight: written twice if the broker's answer was on its way.
        config = {"enable.idempotence": True, "linger.ms": 1, "message.timeout.ms": 300000}
        producer = Producer(common(bootstrap, **config))
        try:
            number = 0
            while not OVER["PRODUCERS"].wait(pace):
                value, partition = f"{name}.{instance}|{number}", dice.randrange(TOPICS[topic])
                write("send", name, topic, partition, value)
                producer.produce(topic, value, partition=partition, on_delivery=told)
                number += 1
                producer.poll(0)
        except (KafkaException, BufferError) as error:
            # A producer with a fatal error sends nothing any more, and would flush for ever.
            note(name, error)
            producer.purge()
        producer.flush(TRIES)


def member(name, bootstrap):
    """One member of the group that reads what the plain producers write, at least once."""
    group = "faults-group"

    def resumed(consumer, partitions):
        for one in partitions:
            write("assign", name, "read_committed", one.topic, one.partition)
        try:
            resume(consumer, group, partitions)
        except KafkaException as error:
            note(name, error)

    consumer = group_consumer(bootstrap, group)
    consumer.subscribe(["faults-plain"], on_assign=resumed)
    while not OVER["CONSUMERS"].is_set():
        following = {}
        for message in consumer.consume(500, 0.1):
            if message.error():
                note(name, KafkaException(message.error()))
                continue
            write("read", name, message.topic(), message.partition(), message.offset(), message.value().decode())
            following[message.partition()] = message.offset() + 1
        if not following:
            continue
        try:
            consumer.commit(
                offsets=[TopicPartition("faults-plain", p, o) for p, o in following.items()], asynchronous=False
            )
            for partition, offset in following.items():
                write("offset", group, "faults-plain", partition, offset, name)
        except KafkaException as error:
            # Not committed as far as this member knows: whoever is next reads it again.
            note(name, error)
    consumer.close()


def reader(name, isolation, rack, bootstrap):
    """Follows every partition from its first record on, in no group."""
    config = {"group.id": "faults-nobody", "isolation.level": isolation, "enable.auto.commit": False}
    # Offsets never go back, so an answer that says so is a fault.
    config |= {"auto.offset.reset": "error", "fetch.wait.max.ms": 100, "client.rack": rack}
    consumer = Consumer(common(bootstrap, **config))
    after = {(topic, p): 0 for topic, count in TOPICS.items() for p in range(count)}
    for topic, partition in after:
        write("assign", name, isolation, topic, partition)
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in after])
    while not OVER["CONSUMERS"].is_set():
        for one in consumer.consume(500, 0.1):
            key = (one.topic(), one.partition())
            if one.error():
                if one.error().name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
                    write("out-of-range", name, *key, after[key])
                    consumer.seek(TopicPartition(*key, after[key]))
                note(name, KafkaException(one.error()))
                continue
            write("read", name, *key, one.offset(), one.value().decode())
            after[key] = one.offset() + 1
    consumer.close()


def client(name, at, role, bootstrap, seed):
    """The phase in which a role's client ends, and what its thread runs."""
    kind, *rest = role.split(":")
    who = f"{name}-{kind}{at}"
    match kind:
        case "own":
            return "PRODUCERS", Own(who, bootstrap, seed).run
        case "plain":
            return "PRODUCERS", lambda: plain(who, "faults-plain", PACE, bootstrap, seed)
        case "source":
            return "PRODUCERS", lambda: plain(who, "faults-source", 2 * PACE, bootstrap, seed)
        case "pipe":
            return "PIPES", Pipe(who, bootstrap, seed).run
        case "member":
            return "CONSUMERS", lambda: member(who, bootstrap)
        case "reader":
            return "CONSUMERS", lambda: reader(who, rest[0], rest[1] if rest[1:] else "", bootstrap)
    raise SystemExit(f"no such role: {role}")


def main():
    name, bootstrap, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    # As a JVM does: where each thread stands.
    faulthandler.register(signal.SIGQUIT)
    threads = {phase: [] for phase in PHASES}
    for at, role in enumerate(sys.argv[4:]):
        phase, run = client(name, at, role, bootstrap, seed + at)
        threads[phase].append(threading.Thread(target=run))
    for all_of_phase in threads.values():
        for thread in all_of_phase:
            thread.start()
    for phase in PHASES:
        sys.stdin.readline()
        OVER[phase].set()
        for thread in threads[phase]:
            thread.join()
        write("done", name, phase)
    if LEFT:
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
