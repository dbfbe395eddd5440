"""The checker finds each kind of fault, and nothing in a good history."""

import copy
import json
import unittest

from checker import KINDS, Checker, Final
from history import parse

A, B, PLAIN, SOURCE, OUT = ("a", 0), ("b", 0), ("plain", 0), ("source", 0), ("out", 0)
GOOD = """\
1 send w-plain0 plain 0 w-plain0.1|0
2 acked w-plain0 plain 0 w-plain0.1|0 0
3 send w-plain0 plain 0 w-plain0.1|1
4 acked w-plain0 plain 0 w-plain0.1|1 1
5 send w-plain0 plain 0 w-plain0.1|2
6 failed w-plain0 plain 0 w-plain0.1|2 unknown Timeout
7 send w-plain0 plain 0 w-plain0.1|3
8 failed w-plain0 plain 0 w-plain0.1|3 definite Full
10 begin p 0 2 g:n:0=1
11 commit p 0
12 committed p 0
13 look w
14 look-offsets w g:n:0=1
15 read w a 0 0 p|0|0|2
16 read w b 0 0 p|0|1|2
17 look-end w
20 begin p 1 2 g:n:0=2
21 aborted p 1 wanted
22 begin p 2 2 g:n:0=3
23 commit p 2
24 unknown p 2 Timeout
25 begin p 3 2 g:n:0=4
30 assign m read_committed plain 0
31 read m plain 0 0 w-plain0.1|0
32 read m plain 0 1 w-plain0.1|1
33 offset mg plain 0 2 m
34 resume mg plain 0 2 33
40 assign r read_uncommitted plain 0
41 read r plain 0 0 w-plain0.1|0
42 read r plain 0 1 w-plain0.1|1
50 send w-source0 source 0 s.1|0
51 acked w-source0 source 0 s.1|0 0
52 begin q 0 1 pipe:source:0=1
53 commit q 0
54 committed q 0
60 look w
61 look-offsets w g:n:0=1,pipe:source:0=1
62 read w out 0 0 q|0|0|1|s.1|0
63 look-end w
64 error p Timeout
65 done w CONSUMERS
"""
CONTENT = {
    PLAIN: [(0, "w-plain0.1|0"), (1, "w-plain0.1|1")],
    A: [(0, "p|0|0|2")],
    B: [(0, "p|0|1|2")],
    SOURCE: [(0, "s.1|0")],
    OUT: [(0, "q|0|0|1|s.1|0")],
}
OFFSETS = {("g", "n", 0): 1, ("pipe", "source", 0): 1}


def without(word):
    return "".join(line + "\n" for line in GOOD.splitlines() if not line.startswith(word))


def after(word, *more):
    """The good history with more lines behind the one that starts so; times are made up."""
    lines = []
    for line in GOOD.splitlines():
        lines.append(line)
        if line.startswith(word):
            lines += [f"{line.split()[0]} {one}" for one in more]
    return "\n".join(lines)


def faults(history=GOOD, content=CONTENT, offsets=OFFSETS, nodes=None, readers=(), atomic=True, **changed):
    checker = Checker(atomic)
    events = [parse(line.replace(" ", "\t")) for line in history.splitlines()]
    for event in sorted(events, key=lambda event: event[0]):
        checker.event(*event)
    content = copy.deepcopy(content) | changed.pop("put", {})
    final = Final(
        {"1": content} | (nodes or {}),
        offsets,
        readers,
        group=("mg", "plain", ["m"]),
        source="source",
        outputs=["out"],
    )
    # As a kept run is checked again.
    final = Final.from_json(json.loads(json.dumps(final.to_json())))
    return sorted(checker.finish(final).kinds)


class Check(unittest.TestCase):
    def test_a_good_history_has_no_fault(self):
        self.assertEqual(faults(), [])

    def test_an_unknown_transaction_may_be_whole(self):
        put = {A: CONTENT[A] + [(1, "p|2|0|2")], B: CONTENT[B] + [(1, "p|2|1|2")]}
        self.assertEqual(faults(put=put, offsets=OFFSETS | {("g", "n", 0): 3}), [])

    def test_a_record_of_unknown_fate_may_be_there(self):
        history = after("32 ", "read m plain 0 2 w-plain0.1|2")
        self.assertEqual(faults(history, put={PLAIN: CONTENT[PLAIN] + [(2, "w-plain0.1|2")]}), [])

    def test_lost_write(self):
        self.assertEqual(faults(put={PLAIN: CONTENT[PLAIN][:1]}), ["lost write"])
        gone = {A: [], B: []}
        self.assertEqual(faults(put=gone, offsets=OFFSETS | {("g", "n", 0): -1}), ["lost write"])

    def test_torn_transaction(self):
        self.assertIn("torn transaction", faults(put={B: []}))
        self.assertIn("torn transaction", faults(put={A: CONTENT[A] + [(1, "p|2|0|2")]}))

    def test_duplicate(self):
        twice = CONTENT[PLAIN] + [(2, "w-plain0.1|1")]
        self.assertEqual(faults(put={PLAIN: twice}), ["duplicate"])
        twice = {A: CONTENT[A] + [(1, "p|0|0|2")]}
        self.assertEqual(faults(put=twice), ["duplicate"])
        # Also when the second offset was read once, and is gone.
        history = after("42 ", "read r plain 0 2 w-plain0.1|1")
        self.assertEqual(faults(history), ["duplicate"])

    def test_inconsistent_offsets(self):
        history = after("42 ", "assign r read_committed plain 0", "read r plain 0 1 w-plain0.1|2")
        self.assertEqual(faults(history), ["inconsistent offsets"])
        # An acknowledged offset counts as one that was read.
        moved = {PLAIN: [(0, "w-plain0.1|0"), (2, "w-plain0.1|1")]}
        self.assertIn("inconsistent offsets", faults(after("7 ", "acked w plain 0 w-plain0.1|2 1"), put=moved))

    def test_nodes_differ(self):
        self.assertEqual(faults(nodes={"2": CONTENT}), [])
        self.assertEqual(faults(nodes={"2": CONTENT | {A: []}}), ["nodes differ"])
        other = CONTENT | {PLAIN: CONTENT[PLAIN] + [(2, "w-plain0.1|2")]}
        self.assertEqual(faults(nodes={"2": other}), ["nodes differ"])

    def test_aborted_read(self):
        put = {A: CONTENT[A] + [(1, "p|1|0|2")], B: CONTENT[B] + [(1, "p|1|1|2")]}
        self.assertEqual(faults(put=put, offsets=OFFSETS | {("g", "n", 0): 2}), ["aborted read"])
        self.assertIn("aborted read", faults(put={PLAIN: CONTENT[PLAIN] + [(2, "w-plain0.1|3")]}))
        # By anybody, at any time.
        history = after("42 ", "read r a 0 1 p|1|0|2")
        self.assertEqual(faults(history), ["aborted read", "uncommitted read"])
        self.assertEqual(faults(history, atomic=False), [])

    def test_uncommitted_read(self):
        history = after("22 ", "read r a 0 1 p|2|0|2")
        self.assertEqual(faults(history), ["uncommitted read"])
        self.assertEqual(faults(after("23 ", "read r a 0 1 p|2|0|2")), [])
        loose = "0 assign r read_uncommitted a 0\n" + history
        self.assertEqual(faults(loose, atomic=False), [])

    def test_never_sent(self):
        self.assertIn("never sent", faults(put={A: CONTENT[A] + [(1, "x|0|0|1")]}))
        self.assertIn("never sent", faults(put={("plain", 1): [(0, "w-plain0.1|2")]}))

    def test_out_of_order(self):
        swapped = [(0, "w-plain0.1|1"), (1, "w-plain0.1|0")]
        self.assertIn("out of order", faults(put={PLAIN: swapped}))

    def test_nonmonotonic_poll(self):
        self.assertEqual(faults(after("42 ", "read r plain 0 0 w-plain0.1|0")), ["nonmonotonic poll"])
        anew = after("42 ", "assign r read_committed plain 0", "read r plain 0 0 w-plain0.1|0")
        self.assertEqual(faults(anew), [])

    def test_skipped(self):
        history = without("42 ") + "43 read r plain 0 2 w-plain0.1|2"
        more = {PLAIN: CONTENT[PLAIN] + [(2, "w-plain0.1|2")]}
        self.assertEqual(faults(history, put=more), ["skipped", "unseen"])

    def test_unseen(self):
        self.assertEqual(faults(without("32 ")), ["unseen"])
        self.assertEqual(faults(readers=["r"]), ["unseen"])

    def test_out_of_range(self):
        self.assertEqual(faults(after("42 ", "out-of-range r plain 0 2")), ["out of range"])

    def test_group_offset_went_back(self):
        self.assertEqual(faults(GOOD.replace("34 resume mg plain 0 2 33", "34 resume mg plain 0 1 34")),
                         ["group offset went back"])
        self.assertEqual(faults(GOOD.replace("34 resume mg plain 0 2 33", "34 resume mg plain 0 1 33")), [])
        self.assertEqual(faults(after("33 ", "resume g n 0 0 33")), ["group offset went back"])

    def test_group_offset_apart(self):
        self.assertEqual(faults(offsets=OFFSETS | {("g", "n", 0): 2}), ["group offset apart"])
        self.assertEqual(faults(offsets={("g", "n", 0): 1}), ["group offset apart"])

    def test_records_before_their_offset(self):
        history = GOOD.replace("61 look-offsets w g:n:0=1", "61 look-offsets w g:n:0=-1")
        self.assertEqual(faults(history), ["group offset went back", "not together"])
        self.assertEqual(faults(history, atomic=False), ["group offset went back"])

    def test_offset_before_its_records(self):
        self.assertEqual(faults(GOOD.replace("16 read", "18 read")), ["not together"])
        self.assertEqual(faults(GOOD.replace("62 read", "64 read")), ["not together"])

    def test_half_a_transaction_stays_half(self):
        history = GOOD.replace("14 look-offsets w g:n:0=1", "14 look-offsets w ").replace("16 read w b", "64 read w b")
        self.assertEqual(faults(history), ["not together"])

    def test_not_exactly_once(self):
        self.assertIn("not exactly once", faults(put={SOURCE: CONTENT[SOURCE] + [(1, "s.1|1")]}))
        twice = GOOD + "70 begin q 1 1 pipe:source:0=1\n71 commit q 1\n72 committed q 1\n"
        put = {OUT: CONTENT[OUT] + [(1, "q|1|0|1|s.1|0")]}
        self.assertEqual(faults(twice, put=put), ["not exactly once"])

    def test_every_kind_has_a_test(self):
        tested = " ".join(name for name in dir(self)).replace("_", " ")
        by_driver = {"not finished", "node ended"}
        apart = {"not together": "half a transaction stays half"}
        for kind in KINDS.keys() - by_driver:
            self.assertIn(apart.get(kind, kind), tested)

    def test_a_cut_line_is_no_event(self):
        with self.assertRaises(ValueError):
            parse("12\tread\tr")


if __name__ == "__main__":
    unittest.main()
