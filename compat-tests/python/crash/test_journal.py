"""The checker finds each kind of fault, and nothing in a good history."""

import unittest

from journal import Journal, check

GOOD = """\
begin\tp\t0\t2
commit\tp\t0
committed\tp\t0
begin\tp\t1\t2
aborted\tp\t1
begin\tp\t2\t2
commit\tp\t2
unknown\tp\t2
begin\tp\t3\t2
acked\tq.1|0
acked\tq.1|1
failed\tq.1|2
read\t0\t0\tq.1|0
read\t0\t1\tq.1|1
offset\t0\t2\t100
resume\t0\t2\t200
"""


def faults(journal=GOOD, plain=("q.1|0", "q.1|1"), transactional=("p|0|0|2", "p|0|1|2"), offset=1, group=(2, 2)):
    events = Journal()
    for line in journal.splitlines():
        events.add(line)
    found = check(events, {0: list(plain)}, list(transactional), {"p": offset}, {0: group})
    return sorted({fault.split(":")[0] for fault in found})


class Check(unittest.TestCase):
    def test_a_good_history_has_no_fault(self):
        self.assertEqual(faults(), [])

    def test_an_unknown_transaction_may_be_whole(self):
        whole = ("p|0|0|2", "p|0|1|2", "p|2|0|2", "p|2|1|2")
        self.assertEqual(faults(transactional=whole, offset=3), [])

    def test_a_failed_record_may_be_there(self):
        self.assertEqual(faults(plain=("q.1|0", "q.1|1", "q.1|2")), [])

    def test_each_fault_is_found(self):
        both = ("p|0|0|2", "p|0|1|2")
        self.assertEqual(faults(plain=("q.1|0",)), ["acknowledged and lost"])
        self.assertEqual(faults(plain=("q.1|0", "q.1|0", "q.1|1")), ["stored more than once"])
        self.assertEqual(faults(plain=("q.1|1", "q.1|0")), ["out of order"])
        self.assertEqual(faults(transactional=(), offset=-1), ["committed and lost"])
        self.assertEqual(faults(transactional=("p|0|0|2",)), ["transaction torn"])
        self.assertEqual(faults(transactional=(*both, both[0])), ["transaction stored more than once"])
        self.assertEqual(faults(transactional=(*both, "p|1|0|2", "p|1|1|2"), offset=2), ["aborted and visible"])
        self.assertEqual(faults(transactional=(*both, "p|3|0|2", "p|3|1|2"), offset=4), ["aborted and visible"])
        self.assertEqual(faults(transactional=(*both, "p|2|0|2"), offset=3), ["transaction torn"])
        self.assertEqual(faults(transactional=(*both, "x|0|0|1")), ["never sent"])
        self.assertEqual(faults(offset=2), ["offset apart from its transaction"])
        self.assertEqual(faults(offset=-1), ["offset apart from its transaction"])
        self.assertEqual(faults(group=(1, 2)), ["group did not finish"])
        unread = GOOD.replace("read\t0\t1\tq.1|1\n", "")
        self.assertEqual(faults(unread), ["acknowledged and never consumed"])
        self.assertEqual(faults(GOOD.replace("resume\t0\t2", "resume\t0\t1")), ["group offset went back"])


if __name__ == "__main__":
    unittest.main()
