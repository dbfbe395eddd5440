"""What the clients were told while the broker was being killed, and how it is held against what can be read.

A workload writes one line an event, words parted by tabs:

    begin PRODUCER NUMBER COUNT        a transaction of COUNT records starts
    commit PRODUCER NUMBER             its commit is about to be asked for
    committed | aborted | unknown PRODUCER NUMBER      how it ended for the client
    acked VALUE | failed VALUE         a plain record was acknowledged, or its fate is unknown
    read PARTITION OFFSET VALUE        the group consumed it
    offset PARTITION OFFSET TIME       the group's offset was committed; TIME is when the answer was there
    resume PARTITION OFFSET TIME       the group's offset as a new owner found it; TIME is when it asked
    done NAME                          a workload's producers have ended

The record I of a transaction has the value PRODUCER|NUMBER|I|COUNT, a plain one PRODUCER.INSTANCE|NUMBER.
"""

import collections

LIMIT = 20  # faults told of each kind; one is enough to fail, and thousands help nobody


class Journal:
    """The events of all workloads."""

    def __init__(self):
        self.transactions = {}  # (producer, number) -> [state, count]
        self.acked, self.failed, self.read = set(), set(), set()
        self.offsets, self.resumes = [], []
        self.done = set()

    def add(self, line):
        kind, *words = line.rstrip("\n").split("\t")
        match kind:
            case "begin":
                self.transactions[words[0], int(words[1])] = ["begin", int(words[2])]
            case "commit" | "committed" | "aborted" | "unknown":
                self.transactions[words[0], int(words[1])][0] = kind
            case "acked":
                self.acked.add(words[0])
            case "failed":
                self.failed.add(words[0])
            case "read":
                self.read.add(words[2])
            case "offset":
                self.offsets.append(tuple(map(int, words)))
            case "resume":
                self.resumes.append(tuple(map(int, words)))
            case "done":
                self.done.add(words[0])
            case _:
                raise ValueError(f"no such event: {line!r}")

    def count(self, *states):
        return sum(state in states for state, _ in self.transactions.values())

    def progress(self):
        """How far each kind of client has come."""
        return len(self.acked), self.count("committed")


class Faults(list):
    """What is wrong, with a bound for each kind."""

    def __init__(self):
        super().__init__()
        self.kinds = collections.Counter()

    def add(self, kind, what):
        self.kinds[kind] += 1
        if self.kinds[kind] <= LIMIT:
            self.append(f"{kind}: {what}")


def check(journal, plain, transactional, group_offsets, group_ended_at):
    """All faults.

    plain            values of the plain topic, a list for each partition, as a fresh read_committed reader saw them
    transactional    values of the transactional topics, one list
    group_offsets    producer -> committed offset of its own group, -1 if none
    group_ended_at   partition -> (offset of the consumer group, offset behind the last record it was to read)
    """
    faults = Faults()
    check_plain(journal, plain, faults)
    visible = check_transactions(journal, transactional, faults)
    check_transaction_offsets(journal, visible, group_offsets, faults)
    check_group(journal, group_ended_at, faults)
    return faults


def check_plain(journal, plain, faults):
    counts = collections.Counter(value for values in plain.values() for value in values)
    for value in journal.acked:
        if counts[value] == 0:
            faults.add("acknowledged and lost", value)
    for value, count in counts.items():
        if count > 1:
            faults.add("stored more than once", f"{value} {count} times")
    for partition, values in plain.items():
        newest = {}
        for value in values:
            producer, number = value.split("|")
            if int(number) < newest.get(producer, -1):
                faults.add("out of order", f"{value} in partition {partition} after {newest[producer]}")
            newest[producer] = int(number)


def check_transactions(journal, transactional, faults):
    """Returns the numbers of the visible transactions of each producer."""
    found = collections.defaultdict(collections.Counter)
    for value in transactional:
        producer, number, index, _ = value.split("|")
        found[producer, int(number)][int(index)] += 1
    visible = collections.defaultdict(set)
    for key, (state, count) in journal.transactions.items():
        records = found.pop(key, {})
        name = f"{key[0]} transaction {key[1]} ({state})"
        if any(times > 1 for times in records.values()):
            faults.add("transaction stored more than once", name)
        if records and len(records) != count:
            faults.add("transaction torn", f"{name}: {len(records)} of {count} records")
        if state == "committed" and not records:
            faults.add("committed and lost", name)
        if state in ("begin", "aborted") and records:
            faults.add("aborted and visible", name)
        if records:
            visible[key[0]].add(key[1])
    for key in found:
        faults.add("never sent", key)
    return visible


def check_transaction_offsets(journal, visible, group_offsets, faults):
    for producer in {producer for producer, _ in journal.transactions}:
        want = max(visible[producer], default=-2) + 1
        if group_offsets.get(producer, -1) != want:
            faults.add(
                "offset apart from its transaction",
                f"{producer}: offset {group_offsets.get(producer)}, the last visible transaction wants {want}",
            )


def check_group(journal, group_ended_at, faults):
    for value in journal.acked - journal.read:
        faults.add("acknowledged and never consumed", value)
    for partition, (offset, end) in group_ended_at.items():
        if offset < end:
            faults.add("group did not finish", f"partition {partition}: offset {offset}, end {end}")
    for partition, found, asked in journal.resumes:
        known = max((o for p, o, answered in journal.offsets if p == partition and answered < asked), default=-1)
        if found < known:
            faults.add("group offset went back", f"partition {partition}: {known} was acknowledged, then {found}")
