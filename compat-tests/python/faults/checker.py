"""Holds what the clients were told against what can be read, in the manner of the Jepsen Kafka workload.

Every kind of fault that it knows is a key of KINDS. A history is good if none is found.
"""

import collections

from history import claims, transaction_of

LIMIT = 10  # told of each kind; one is enough to fail, and thousands help nobody

KINDS = {
    "lost write": "acknowledged or committed, and cannot be read",
    "torn transaction": "some records of a transaction can be read, others not",
    "duplicate": "one value at two offsets",
    "inconsistent offsets": "two values at one offset",
    "nodes differ": "a node's answer lacks or adds what another's has",
    "aborted read": "a value of an aborted transaction, or of a write that surely failed, was read",
    "uncommitted read": "a value was read before its commit was asked for",
    "never sent": "a value that nobody wrote, or not there",
    "out of order": "two records of one producer are swapped",
    "nonmonotonic poll": "a consumer was given an offset again, or an earlier one",
    "skipped": "a consumer was given a later record without an earlier one",
    "unseen": "a consumer that read to the end never got a record",
    "out of range": "a consumer was told that an offset does not exist",
    "group offset went back": "a group's offset was lower than known before it was asked for",
    "group offset apart": "a group's offset in the end is not that of the last visible transaction",
    "not together": "a transaction's records and offsets were not visible together",
    "not exactly once": "a record of the source was processed twice, or never",
    "not finished": "what had to be done when all was well again was not",
    "node ended": "a node ended by itself",
}


class Faults:
    """What is wrong, with a bound for each kind."""

    def __init__(self):
        self.told = []
        self.kinds = collections.Counter()

    def add(self, kind, what):
        if kind not in KINDS:
            raise KeyError(kind)
        self.kinds[kind] += 1
        if self.kinds[kind] <= LIMIT:
            self.told.append(f"{kind}: {what}")


class Transaction:
    """One transaction as its client knows it."""

    __slots__ = ("state", "count", "claims", "asked")

    def __init__(self, count, sets):
        self.state, self.count, self.claims, self.asked = "begin", count, sets, None

    def may_show(self):
        return self.state in ("commit", "committed", "unknown")


class Final:
    """What can be read in the end.

    nodes      name -> {(topic, partition): [(offset, value)...]}, by a read_committed reader of each node; the first counts
    offsets    (group, topic, partition) -> committed offset
    readers    names of consumers that had the time to read everything
    group      the group that reads the plain topic, if any; and its topic
    """

    def __init__(self, nodes, offsets, readers=(), group=None, source=None, outputs=()):
        self.nodes, self.offsets, self.readers, self.group = nodes, offsets, readers, group
        self.source, self.outputs = source, outputs
        self.first = next(iter(nodes.values()))

    def to_json(self):
        nodes = {name: [[*at, records] for at, records in content.items()] for name, content in self.nodes.items()}
        offsets = [[*at, offset] for at, offset in self.offsets.items()]
        return [nodes, offsets, self.readers, self.group, self.source, self.outputs]

    @classmethod
    def from_json(cls, told):
        nodes, offsets, *rest = told
        nodes = {
            name: {(topic, partition): [tuple(record) for record in records] for topic, partition, records in content}
            for name, content in nodes.items()
        }
        return cls(nodes, {(group, topic, partition): o for group, topic, partition, o in offsets}, *rest)


class Checker:
    """Takes the events in order of time, then the end."""

    def __init__(self, atomic=True):
        # Kafka proper lets readers see a transaction partition by partition, and unfinished ones if they ask for it.
        self.atomic = atomic
        self.faults = Faults()
        self.sent, self.acked, self.surely_failed = {}, {}, set()
        self.transactions = {}
        self.at = {}  # (topic, partition, offset) -> value
        self.isolation = {}
        self.sessions = []  # (name, topic, partition, [offsets])
        self.open = {}  # (name, topic, partition) -> its session's offsets
        self.seen = collections.defaultdict(set)  # name -> values
        self.known = {}  # (group, topic, partition) -> [(time, offset)], both growing
        self.asked = []  # (group, topic, partition), offset found, time asked
        self.by_claim = collections.defaultdict(set)
        self.witness = {}
        self.errors = collections.Counter()

    def event(self, time, kind, words):
        getattr(self, "on_" + kind.replace("-", "_"))(time, *words)

    # ---- what was written

    def on_send(self, time, name, topic, partition, value):
        self.sent[value] = (topic, int(partition), time)

    def on_acked(self, time, name, topic, partition, value, offset):
        self.acked[value] = time
        if int(offset) >= 0:
            self.place(topic, int(partition), int(offset), value)

    def on_failed(self, time, name, topic, partition, value, fate, why):
        if fate == "definite":
            self.surely_failed.add(value)
        self.errors[name, why] += 1

    def on_init(self, time, name):
        pass

    def on_begin(self, time, name, number, count, sets):
        key = (name, int(number))
        self.transactions[key] = Transaction(int(count), claims(sets))
        for claim in self.transactions[key].claims.items():
            self.by_claim[claim].add(key)

    def on_commit(self, time, name, number):
        transaction = self.transactions[name, int(number)]
        transaction.state, transaction.asked = "commit", time

    def on_committed(self, time, name, number):
        transaction = self.transactions[name, int(number)]
        transaction.state = "committed"
        for at, offset in transaction.claims.items():
            self.learn(time, at, offset)

    def on_aborted(self, time, name, number, why):
        self.transactions[name, int(number)].state = "aborted"

    def on_unknown(self, time, name, number, why):
        self.transactions[name, int(number)].state = "unknown"

    # ---- what was read

    def place(self, topic, partition, offset, value):
        known = self.at.setdefault((topic, partition, offset), value)
        if known != value:
            self.faults.add("inconsistent offsets", f"{topic}-{partition}@{offset}: {known} and {value}")

    def on_assign(self, time, name, isolation, topic, partition):
        self.isolation[name] = isolation
        self.open.pop((name, topic, int(partition)), None)

    def on_read(self, time, name, topic, partition, offset, value):
        partition, offset = int(partition), int(offset)
        self.place(topic, partition, offset, value)
        self.seen[name].add(value)
        key = (name, topic, partition)
        if key not in self.open:
            self.open[key] = []
            self.sessions.append((*key, self.open[key]))
        self.open[key].append(offset)
        transaction = self.transactions.get(transaction_of(value))
        if transaction and transaction.asked is None:
            if self.atomic or self.isolation.get(name) != "read_uncommitted":
                self.faults.add("uncommitted read", f"{value} by {name} at {topic}-{partition}@{offset}")
        if name in self.witness:
            self.witness[name].read(value)

    def on_out_of_range(self, time, name, topic, partition, offset):
        self.faults.add("out of range", f"{name}: {topic}-{partition}@{offset}")

    def on_error(self, time, name, why):
        self.errors[name, why] += 1

    def on_done(self, time, name, phase):
        pass

    # ---- group offsets

    def learn(self, time, at, offset):
        facts = self.known.setdefault(at, [])
        if not facts or facts[-1][1] < offset:
            facts.append((time, offset))

    def on_offset(self, time, group, topic, partition, offset, name):
        self.learn(time, (group, topic, int(partition)), int(offset))

    def on_resume(self, time, group, topic, partition, offset, asked):
        at = (group, topic, int(partition))
        self.asked.append((at, int(offset), int(asked)))
        self.learn(time, at, int(offset))

    # ---- the witness

    def on_look(self, time, name):
        self.witness.setdefault(name, Witness(self, name)).look(time)

    def on_look_offsets(self, time, name, sets):
        found = claims(sets)
        witness = self.witness[name]
        for at, offset in found.items():
            self.asked.append((at, offset, witness.began))
            self.learn(time, at, offset)
        witness.offsets(found)

    def on_look_end(self, time, name):
        self.witness[name].end()

    # ---- the end

    def finish(self, final):
        self.check_content(final)
        self.check_nodes(final)
        self.check_reads(final)
        self.check_sessions(final)
        self.check_groups(final)
        self.check_exactly_once(final)
        return self.faults

    def check_content(self, final):
        """Everything acknowledged is there, once, in order; transactions whole or absent."""
        counts, found = collections.Counter(), collections.defaultdict(set)
        for (topic, partition), records in final.first.items():
            latest = {}
            for offset, value in records:
                self.place(topic, partition, offset, value)
                counts[value] += 1
                key = transaction_of(value)
                if key:
                    found[key].add(value)
                    continue
                self.check_sent(topic, partition, value)
                producer, number = value.rsplit("|", 1)
                if int(number) < latest.get(producer, -1):
                    self.faults.add("out of order", f"{value} behind {producer}|{latest[producer]}")
                latest[producer] = int(number)
        for value in self.acked.keys() - counts.keys():
            self.faults.add("lost write", f"{value} was acknowledged")
        places = collections.Counter(self.at.values())
        for value, count in places.items():
            if count > 1 or counts[value] > 1:
                self.faults.add("duplicate", f"{value} at {max(count, counts[value])} offsets")
        self.visible = set()
        for key, transaction in self.transactions.items():
            has = len(found.pop(key, ()))
            if has == transaction.count:
                self.visible.add(key)
            elif has:
                self.faults.add("torn transaction", f"{key}: {has} of {transaction.count} ({transaction.state})")
            elif transaction.state == "committed":
                self.faults.add("lost write", f"transaction {key} was committed")
        for key in found:
            self.faults.add("never sent", f"transaction {key}")

    def check_sent(self, topic, partition, value):
        if self.sent.get(value, ())[:2] != (topic, partition):
            self.faults.add("never sent", f"{value} in {topic}-{partition}")

    def check_nodes(self, final):
        for name, content in final.nodes.items():
            for at in final.first.keys() | content.keys():
                mine, first = set(content.get(at, ())), set(final.first.get(at, ()))
                if mine != first:
                    self.faults.add("nodes differ", f"{name} {at}: lacks {len(first - mine)}, adds {len(mine - first)}")

    def check_reads(self, final):
        """Nothing that was read at any time may be of an aborted transaction or a failed write."""
        everywhere = [(name, values) for name, values in self.seen.items()]
        everywhere += [
            (f"the reader of {name}", {value for records in content.values() for _, value in records})
            for name, content in final.nodes.items()
        ]
        for name, values in everywhere:
            loose = not self.atomic and self.isolation.get(name) == "read_uncommitted"
            for value in values:
                key = transaction_of(value)
                if key is None:
                    wrong = value in self.surely_failed
                elif key in self.transactions:
                    wrong = not loose and not self.transactions[key].may_show()
                else:
                    wrong = False
                    self.faults.add("never sent", f"{value}, read by {name}")
                if wrong:
                    self.faults.add("aborted read", f"{value} by {name}")

    def check_sessions(self, final):
        offsets = {at: [offset for offset, _ in records] for at, records in final.first.items()}
        index = {at: {offset: i for i, offset in enumerate(all_of)} for at, all_of in offsets.items()}
        for name, topic, partition, session in self.sessions:
            places = index.get((topic, partition), {})
            last = None
            for offset in session:
                if last is not None and offset <= last:
                    self.faults.add("nonmonotonic poll", f"{name} {topic}-{partition}: {offset} after {last}")
                elif last in places and offset in places and places[offset] != places[last] + 1:
                    count = places[offset] - places[last] - 1
                    self.faults.add("skipped", f"{name} {topic}-{partition}: {count} between {last} and {offset}")
                last = offset
        every = {value for records in final.first.values() for _, value in records}
        for name in final.readers:
            for value in sorted(every - self.seen[name]):
                self.faults.add("unseen", f"{value} by {name}")
        if final.group:
            group, topic, names = final.group
            got = set().union(*(self.seen[name] for name in names))
            for (of, partition), records in final.first.items():
                for value in (value for _, value in records if of == topic):
                    if value not in got:
                        self.faults.add("unseen", f"{value} by the group {group}")

    def check_groups(self, final):
        for at, offset, asked in self.asked:
            known = max((o for time, o in self.known.get(at, ()) if time < asked), default=-1)
            if offset < known:
                self.faults.add("group offset went back", f"{at}: {known} was known, then {offset}")
        wanted = {}
        for key in self.visible:
            for at, offset in self.transactions[key].claims.items():
                wanted[at] = max(offset, wanted.get(at, -1))
        claimed = {at for at, _ in self.by_claim}
        for at in claimed:
            if final.offsets.get(at, -1) != wanted.get(at, -1):
                self.faults.add(
                    "group offset apart",
                    f"{at}: {final.offsets.get(at, -1)}, the last visible transaction set {wanted.get(at, -1)}",
                )

    def check_exactly_once(self, final):
        if not final.source:
            return
        source = {v for (topic, _), records in final.first.items() if topic == final.source for _, v in records}
        for output in final.outputs:
            made = collections.Counter(
                value.split("|", 4)[4]
                for (topic, _), records in final.first.items()
                if topic == output
                for _, value in records
            )
            for value in source | made.keys():
                if made[value] != 1 or value not in source:
                    self.faults.add("not exactly once", f"{value}: {made[value]} times in {output}")


class Witness:
    """What one witness has seen so far; its looks are in order."""

    def __init__(self, checker, name):
        self.checker, self.name = checker, name
        self.began = 0
        self.counts = collections.Counter()  # transaction -> records seen
        self.highest = {}  # (group, topic, partition) -> offset that what was seen implies
        self.partial = set()
        self.before, self.expected = set(), {}

    def add(self, what):
        if self.checker.atomic:
            self.checker.faults.add("not together", f"{self.name}: {what}")

    def look(self, time):
        self.began = time
        self.before = set(self.partial)

    def offsets(self, found):
        self.expected = found
        for at, offset in self.highest.items():
            # An open transaction can keep an offset from being told.
            if found.get(at, offset) < offset:
                self.add(f"records that set {at} to {offset} were visible, and its offset was {found[at]}")

    def read(self, value):
        key = transaction_of(value)
        transaction = self.checker.transactions.get(key)
        if transaction is None:
            return
        self.counts[key] += 1
        if self.counts[key] < transaction.count:
            self.partial.add(key)
        else:
            self.partial.discard(key)
        # One record is enough: from then on the offsets must be there too.
        for at, offset in transaction.claims.items():
            self.highest[at] = max(offset, self.highest.get(at, -1))

    def end(self):
        for key in self.before & self.partial:
            self.add(f"transaction {key}: {self.counts[key]} of {self.checker.transactions[key].count} records")
        for claim in self.expected.items():
            setters = self.checker.by_claim.get(claim)
            # An offset that no transaction sets is a plain commit's.
            if setters and not any(self.counts[key] >= self.checker.transactions[key].count for key in setters):
                self.add(f"{claim[0]} was at {claim[1]}, and no transaction that set it was visible: {sorted(setters)}")
        self.before, self.expected = set(), {}
