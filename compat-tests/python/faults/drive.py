#!/usr/bin/env python3
"""Disturbs a cluster under load, then holds what the clients were told against what can be read.

    drive.py --cluster DIR --script CLUSTER_SH --seconds N --seed S ... -- NAME COMMAND... [-- NAME COMMAND...]...

Each COMMAND is a workload (see history.py for what it prints); it gets NAME, the bootstrap addresses, a seed and its
roles as last arguments. Called by scripts/faults.sh. With --again a kept run is
checked once more: drive.py --cluster DIR --again. The last line is the verdict; the exit code is 1 on failure.
"""

import argparse
import collections
import contextlib
import json
import pathlib
import subprocess
import sys
import time

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from checker import Checker, Final
from final import FinalReader
from history import merged
from nemesis import Cannot, Cluster, Nemesis
from report import Report
from workload import Workload

TOPICS = {
    "faults-plain": 4,
    "faults-source": 4,
    "faults-a": 2,
    "faults-b": 2,
    "faults-c": 2,
    "faults-out-a": 2,
    "faults-out-b": 2,
}
NOTHING = {"faults-nothing": 1}
ROLES = {
    "java-4.4": "own pipe plain source member reader:read_committed reader:read_uncommitted:rack-1 witness",
    "java-3.7": "own pipe plain member reader:read_committed:rack-2",
    "librdkafka": "own pipe plain member reader:read_uncommitted:rack-3",
}
PATIENCE = 120.0


class Failed(Exception):
    """The run cannot go on; the text is the reason."""


class Run:
    """One run: cluster, nemesis, workloads."""

    def __init__(self, options, commands):
        self.options, self.state = options, pathlib.Path(options.cluster)
        self.cluster = Cluster(options.script, options.cluster, options.nodes)
        self.log = open(self.state / "faults.tsv", "w")
        self.nemesis = Nemesis(self.cluster, options.seed, list(filter(None, options.faults.split(","))), self.note)
        self.leader_kills, self.done, self.workloads = [], collections.Counter(), []
        self.commands, self.began = commands, 0
        self.bootstrap = self.cluster.call("bootstrap")
        self.not_finished = []

    def note(self, *words):
        now = time.monotonic_ns()
        print(now, *words, sep="\t", file=self.log, flush=True)
        if words[0] == "leader-killed":
            self.leader_kills.append(now)

    def create_topics(self):
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        copies = min(3, self.options.nodes)
        topics = [NewTopic(name, count, copies) for name, count in (TOPICS | NOTHING).items()]
        end = time.monotonic() + PATIENCE
        while True:
            try:
                for future in admin.create_topics(topics, request_timeout=20).values():
                    future.result(30)
                return
            except KafkaException as error:
                if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
                    return
                if time.monotonic() > end:
                    raise Failed(f"the topics were not created: {error}") from error
                time.sleep(0.5)

    def start_workloads(self):
        roles = {name: ROLES[name].split() for name, *_ in self.commands}
        owners = [f"{name}-{role}{at}" for name in roles for at, role in enumerate(roles[name]) if role == "own"]
        self.groups = ["faults-pipe"] + [f"faults-own-{owner}" for owner in owners]
        for at, (name, *command) in enumerate(self.commands):
            words = [f"witness:{','.join(self.groups)}" if role == "witness" else role for role in roles[name]]
            arguments = [self.bootstrap, str(self.options.seed + 100 * at), *words]
            self.workloads.append(Workload(name, command, arguments, self.state))
        self.kinds = {f"{n}-{r.split(':')[0]}" for n in roles for r in roles[n]}
        # Members of one group share its partitions; one of them may have none.
        self.kinds = {kind for kind in self.kinds if kind.endswith(("own", "plain", "source"))}

    def progress(self):
        for workload in self.workloads:
            if why := workload.ended():
                raise Failed(why)
        total = sum((workload.successes for workload in self.workloads), collections.Counter())
        shared = collections.Counter()
        for kind, count in total.items():
            if kind.endswith(("pipe", "member")):
                shared[kind.rsplit("-", 1)[1]] += count
        return {kind: total[kind] for kind in self.kinds} | {kind: shared[kind] for kind in ("pipe", "member")}

    def recover(self, what, patience=None):
        """Waits until every kind of client has come further; says how long that took."""
        patience = patience or self.options.patience
        before, began = self.progress(), time.monotonic()
        while True:
            stuck = [kind for kind, count in self.progress().items() if count <= before[kind]]
            if not stuck:
                return time.monotonic() - began
            if time.monotonic() - began > patience:
                raise Failed(f"no progress within {patience:.0f} s after {what}: {', '.join(sorted(stuck))}")
            self.cluster.check_alive()
            time.sleep(0.1)

    def disturb(self):
        began = time.monotonic()
        self.began = time.monotonic_ns()
        while time.monotonic() - began < self.options.seconds and self.nemesis.faults:
            time.sleep(self.nemesis.dice.uniform(0.2, 3.0))
            names, hold = self.nemesis.round()
            self.done.update(names)
            took = self.recover(" + ".join(names))
            counts = sum((workload.successes for workload in self.workloads), collections.Counter())
            print(
                f"{time.monotonic() - began:6.1f} s  {' + '.join(names):42} held {hold:4.1f} s  all go on after"
                f" {took:5.2f} s  ({sum(counts.values())} successes)",
                flush=True,
            )
        self.ended = time.monotonic_ns()

    def awaited(self, what, done, patience=PATIENCE):
        """True once done; a wait in vain is a finding, not the end."""
        end = time.monotonic() + patience
        while not done():
            if time.monotonic() > end:
                self.not_finished.append(f"{what} within {patience:.0f} s")
                print(f"  NOT FINISHED: {what}", flush=True)
                return False
            self.cluster.check_alive()
            time.sleep(0.2)
        return True

    def end_phase(self, phase):
        for workload in self.workloads:
            workload.tell()
        return self.awaited(
            f"the end of {phase.lower()}", lambda: all(phase in w.done or w.ended() for w in self.workloads)
        )

    def finish(self):
        """Quiescence: producers end, pipes and groups process the rest, readers read to the end."""
        reader = FinalReader(self.bootstrap, TOPICS)
        self.end_phase("PRODUCERS")
        pipe = [("faults-pipe", "faults-source", p) for p in range(TOPICS["faults-source"])]
        group = [("faults-group", "faults-plain", p) for p in range(TOPICS["faults-plain"])]
        for what in (pipe, group):
            ends = reader.ends([(topic, partition) for _, topic, partition in what])
            self.awaited(
                f"{what[0][0]} at the end of what it reads",
                lambda what=what, ends=ends: all(
                    offset >= ends[at[1:]] for at, offset in reader.committed(what, strict=False).items()
                ),
            )
        self.end_phase("PIPES")
        first = reader.read()
        count = sum(map(len, first.values()))
        readers = [
            f"{w.name}-{role.split(':')[0]}{at}"
            for w in self.workloads
            for at, role in enumerate(ROLES[w.name].split())
            if role.startswith(("reader", "witness"))
        ]
        reads = lambda: sum((w.reads for w in self.workloads), collections.Counter())  # noqa: E731
        self.awaited("all readers at the end", lambda: all(reads()[name] >= count for name in readers), 60)
        self.end_phase("CONSUMERS")
        nodes = {"the leader": first}
        for node in self.cluster.nodes:
            if content := self.read_from(reader, node):
                nodes[f"node {node}"] = content
        owned = [(group, "faults-nothing", 0) for group in self.groups if group != "faults-pipe"]
        offsets = reader.committed(pipe + owned)
        members = [
            f"{w.name}-member{at}" for w in self.workloads for at, r in enumerate(ROLES[w.name].split()) if r == "member"
        ]
        return Final(
            nodes,
            offsets,
            readers,
            ("faults-group", "faults-plain", members),
            "faults-source",
            ("faults-out-a", "faults-out-b"),
        )

    def read_from(self, reader, node):
        """Everything as this node has it: it is made the leader, by a transfer or by killing who leads before it."""
        for _ in range(8):
            leader = self.cluster.leader()
            if leader == node:
                return reader.read()
            if self.options.nodes < 3:
                return None
            with contextlib.suppress(Cannot):
                self.cluster.call("transfer", node, check=False)
                if self.cluster.leader() == node:
                    continue
            if leader:
                self.cluster.kill(leader)
                time.sleep(1.5)
                self.cluster.start(leader)
            time.sleep(2)
        print(f"faults: node {node} never led in the end; what it holds was not read", flush=True)
        return None


def verdict(directory, final, atomic):
    """Holds the histories in a directory against the end, if the run came to it."""
    checker, report = Checker(atomic), Report()
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(path)) for path in sorted(pathlib.Path(directory).glob("history-*.tsv"))]
        for event in merged(files):
            checker.event(*event)
            report.event(*event)
    faults = checker.finish(final) if final else checker.faults
    return faults, checker, report


def again(options):
    """What a kept run is worth, with the checker as it is now."""
    path = pathlib.Path(options.cluster) / "final.json"
    final = Final.from_json(json.loads(path.read_text())) if path.exists() else None
    faults, checker, _ = verdict(options.cluster, final, options.atomic)
    print("\n".join(faults.told))
    print(f"faults: {dict(faults.kinds) or 'none'} in {len(checker.transactions)} transactions, {len(checker.acked)} acks")
    return 1 if faults.kinds else 0


def parse():
    """The options, and the command of each workload; `--` parts them."""
    groups = [[]]
    for word in sys.argv[1:]:
        if word == "--":
            groups.append([])
        else:
            groups[-1].append(word)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--script")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", default="", help="names, parted by commas; all if none")
    parser.add_argument("--atomic", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--patience", type=float, default=60, help="how long a client may stand still once all is well")
    parser.add_argument("--again", action="store_true", help="only check what a kept run left in DIR")
    return parser.parse_args(groups[0]), groups[1:]


def tell(run, faults, checker, report):
    if report.counts and run.began:
        print("\n".join(report.lines(run.began, getattr(run, "ended", time.monotonic_ns()), run.leader_kills)))
    for (name, why), count in checker.errors.most_common(12):
        print(f"told {count:6} x {why} ({name})")
    states = collections.Counter(transaction.state for transaction in checker.transactions.values())
    unknown = states["unknown"] + states["commit"]
    print(f"faults: {dict(sorted(run.done.items()))}")
    for fault in faults.told:
        print(fault)
    counts = (
        f"faults={sum(run.done.values())} leader-kills={len(run.leader_kills)} acked={len(checker.acked)}"
        f" committed={states['committed']} aborted={states['aborted']} unknown={unknown}"
        f" failed={report.counts['failed']} reads={report.counts['read']} looks={report.counts['look-end']}"
    )
    if not faults.kinds and not (checker.acked and states["committed"] and report.counts["look-end"]):
        faults.add("not finished", "nothing was tried")
    kinds = ", ".join(f"{kind} x {count}" for kind, count in sorted(faults.kinds.items()))
    print(f"faults: {'FAIL' if kinds else 'PASS'} seed={run.options.seed} {counts}{': ' + kinds if kinds else ''}")
    return 1 if kinds else 0


def main():
    options, commands = parse()
    if options.again:
        return again(options)
    run, final, broken = Run(options, commands), None, None
    try:
        run.create_topics()
        run.start_workloads()
        run.recover("the start", max(PATIENCE, run.options.patience))
        run.disturb()
        print("all faults are healed; the clients come to an end", flush=True)
        final = run.finish()
    except (Failed, KafkaException, RuntimeError, subprocess.TimeoutExpired) as error:
        broken = str(error)
        print(f"  {broken}", flush=True)
    finally:
        for workload in run.workloads:
            workload.end()
    if final:
        (run.state / "final.json").write_text(json.dumps(final.to_json()))
    faults, checker, report = verdict(options.cluster, final, options.atomic)
    for what in filter(None, [broken, *run.not_finished]):
        faults.add("not finished", what)
    for what in run.cluster.deaths:
        faults.add("node ended", what)
    return tell(run, faults, checker, report)


if __name__ == "__main__":
    sys.exit(main())
