#!/usr/bin/env python3
"""Kills and restarts the broker under load, then holds what the clients were told against what can be read.

    drive.py --seconds N --seed S -- NAME COMMAND... [-- NAME COMMAND...]...

Each COMMAND is a workload (see journal.py for what it prints); it gets NAME, the bootstrap address and a seed as last
arguments. Called by scripts/crash.sh, which sets BOOTSTRAP, BROKER and STATE_DIR. The last line is the verdict.
"""

import argparse
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from journal import Journal, check

BOOTSTRAP = os.environ["BOOTSTRAP"]
TRANSACTIONAL = {"crash-a": 2, "crash-b": 2, "crash-c": 2}
PLAIN = {"crash-plain": 4}
SOURCE = {"crash-source": 1}
# How long anything may take that must happen, a restart included.
PATIENCE = 120.0


class Failed(Exception):
    """The run cannot go on; the text is the reason."""


def awaited(what, done, patience=PATIENCE):
    """Waits for the condition, or fails saying what did not happen."""
    end = time.monotonic() + patience
    while not done():
        if time.monotonic() > end:
            raise Failed(f"{what} did not happen within {patience:.0f} s")
        time.sleep(0.02)


class Workload:
    """One process of clients, whose events go into the common journal."""

    def __init__(self, name, command, seed, journal, lock):
        self.name = name
        state = pathlib.Path(os.environ["STATE_DIR"])
        self.log = open(state / f"workload-{name}.log", "w")
        self.raw = open(state / f"journal-{name}.tsv", "w")
        self.process = subprocess.Popen(
            [*command, name, BOOTSTRAP, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.error = None
        self.reader = threading.Thread(target=self.follow, args=(journal, lock), daemon=True)
        self.reader.start()

    def follow(self, journal, lock):
        try:
            for line in self.process.stdout:
                self.raw.write(line)
                with lock:
                    journal.add(line)
        except (ValueError, KeyError, IndexError) as error:
            self.error = error
            # What follows may explain it; and a full pipe would stop the workload.
            self.raw.writelines(self.process.stdout)

    def tell(self):
        """Ends the producers at the first call, the group member at the second."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def check(self):
        if self.error:
            raise Failed(f"workload {self.name} wrote nonsense: {self.error}")
        if self.process.poll() is not None:
            raise Failed(f"workload {self.name} ended with {self.process.returncode}; see {self.log.name}")

    def end(self):
        if self.process.poll() is None:
            # Where each thread stands goes to the output (Java) or the log (Python) of a workload that does not end.
            self.process.send_signal(signal.SIGQUIT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.log.close()
        self.raw.close()


def broker(command):
    run = subprocess.run([os.environ["BROKER"], command, "main"], timeout=PATIENCE, stdout=subprocess.DEVNULL)
    if run.returncode:
        raise Failed(f"the broker did not {command}")


def create_topics():
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
    topics = [NewTopic(name, count, 1) for name, count in (TRANSACTIONAL | PLAIN | SOURCE).items()]
    for future in admin.create_topics(topics).values():
        future.result(60)


def kill_and_restart(options, journal, workloads, lock):
    """The loop of the run; yields after each kill."""
    dice = random.Random(options.seed)
    began = time.monotonic()

    def progress():
        for workload in workloads:
            workload.check()
        with lock:
            return journal.progress()

    while time.monotonic() - began < options.seconds:
        # Every kill follows real work after the one before: else a run could be all kills and no load.
        before = progress()
        awaited("progress after the restart", lambda: all(now > was for now, was in zip(progress(), before)))
        time.sleep(dice.uniform(0.0, options.pause))
        broker("kill")
        yield
        time.sleep(dice.uniform(0.0, 0.3))
        broker("start")
        with lock:
            print(
                f"{time.monotonic() - began:6.1f} s  acked {len(journal.acked)}"
                f"  committed {journal.count('committed')}  aborted {journal.count('aborted')}"
                f"  unknown {journal.count('unknown')}  consumed {len(journal.read)}",
                flush=True,
            )


def consumer(group):
    return Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )


def mark_ends(topics):
    """Puts a last record behind everything in each partition; returns the partition's offset of it."""
    ends, failed = {}, []
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "enable.idempotence": True})

    def stored(error, message):
        if error:
            failed.append(error)
        else:
            ends[message.topic(), message.partition()] = message.offset()

    for topic, count in topics.items():
        for partition in range(count):
            producer.produce(topic, b"end|0", partition=partition, on_delivery=stored)
    if producer.flush(PATIENCE) or failed:
        raise Failed(f"the last records could not be written: {failed}")
    return ends


def read_to(ends):
    """All values of each partition in front of its last record, as a fresh read_committed reader sees them."""
    found, open_ends = {key: [] for key in ends}, set(ends)
    deadline = time.monotonic() + PATIENCE
    with contextlib.closing(consumer("crash-reader")) as reader:
        reader.assign([TopicPartition(topic, partition, 0) for topic, partition in ends])
        while open_ends:
            if time.monotonic() > deadline:
                raise Failed(f"the reader did not come to the end of {sorted(open_ends)}")
            for message in reader.consume(1000, 0.5):
                if message.error():
                    raise Failed(f"the reader was told {message.error()}")
                key = (message.topic(), message.partition())
                if message.offset() == ends[key]:
                    open_ends.discard(key)
                elif message.offset() < ends[key]:
                    found[key].append(message.value().decode())
    return found


def committed(group, topic, partition):
    with contextlib.closing(consumer(group)) as asker:
        return max(-1, asker.committed([TopicPartition(topic, partition)], timeout=60)[0].offset)


def finish(journal, workloads, lock):
    """Ends the workloads in order: producers, then the group once it has read everything; one more kill."""
    for workload in workloads:
        workload.tell()

    def producers_done():
        for workload in workloads:
            workload.check()
        with lock:
            return len(journal.done) == len(workloads)

    awaited("the end of all producers", producers_done)
    ends = mark_ends(TRANSACTIONAL | PLAIN)
    print("producers have ended; waiting for the group to read the rest", flush=True)

    def group_done():
        # Up to the last real record; the one behind it is for the fresh reader.
        with lock:
            return journal.acked <= journal.read

    with contextlib.suppress(Failed):  # the checker says what is missing
        awaited("the group's reading of everything", group_done, 60)
    for workload in workloads:
        workload.tell()
    awaited("the end of all workloads", lambda: all(w.process.poll() is not None for w in workloads), 60)
    for workload in workloads:
        workload.reader.join()
    broker("kill")
    broker("start")
    return ends


def verdict(journal, ends):
    """Reads everything with a fresh reader and returns the faults."""
    found = read_to(ends)
    plain = {key[1]: values for key, values in found.items() if key[0] in PLAIN}
    transactional = [value for key, values in found.items() if key[0] in TRANSACTIONAL for value in values]
    producers = {producer for producer, _ in journal.transactions}
    offsets = {name: committed(f"crash-offsets-{name}", "crash-source", 0) for name in producers}
    last = {}
    for partition, offset, _ in journal.offsets:
        last[partition] = max(offset, last.get(partition, 0))
    group = {p: (committed("crash-group", "crash-plain", p), last.get(p, 0)) for p in range(PLAIN["crash-plain"])}
    print(f"read {sum(map(len, plain.values()))} plain and {len(transactional)} transactional records", flush=True)
    return check(journal, plain, transactional, offsets, group)


def parse():
    """The options, and the command of each workload; `--` parts them."""
    groups = [[]]
    for word in sys.argv[1:]:
        if word == "--":
            groups.append([])
        else:
            groups[-1].append(word)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--pause", type=float, default=2.0, help="greatest time between progress and a kill")
    return parser.parse_args(groups[0]), groups[1:]


def main():
    options, commands = parse()
    journal, lock, workloads, kills = Journal(), threading.Lock(), [], 0
    try:
        create_topics()
        for at, (name, *command) in enumerate(commands):
            workloads.append(Workload(name, command, options.seed + 100 * at, journal, lock))
        for _ in kill_and_restart(options, journal, workloads, lock):
            kills += 1
            print(f"kill {kills:3}", end="  ")
        faults = verdict(journal, finish(journal, workloads, lock))
    except (Failed, KafkaException, subprocess.TimeoutExpired) as error:
        faults = [str(error)]
    finally:
        for workload in workloads:
            workload.end()
    for fault in faults:
        print(fault)
    counts = f"kills={kills} acked={len(journal.acked)} txns={journal.count('committed')}"
    unknown = journal.count("unknown", "commit")
    aborted, failed, consumed = journal.count("aborted"), len(journal.failed), len(journal.read)
    print(f"aborted={aborted} unknown={unknown} failed={failed} consumed={consumed}")
    if not faults and not (journal.acked and journal.count("committed") and kills):
        faults = ["nothing was tried"]
    if faults:
        print(f"crash: FAIL {counts} faults={len(faults)}: {faults[0]}")
        return 1
    print(f"crash: PASS {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
