"""How long the clients stood still, and what they were told."""

import collections

from history import kind_of

SECOND = 1e9


class Report:
    """Takes the same events as the checker."""

    def __init__(self):
        self.invoked = {}
        # kind of client -> [(time of the success, time of the request)]
        self.successes = collections.defaultdict(list)
        self.slowest = collections.Counter()
        self.counts = collections.Counter()

    def event(self, time, kind, words):
        if kind == "send":
            self.invoked[words[3]] = time
        elif kind == "begin":
            self.invoked[words[0], words[1]] = time
        elif kind == "acked":
            self.success(time, words[0], self.invoked[words[3]])
        elif kind == "committed":
            self.success(time, words[0], self.invoked[words[0], words[1]])
        elif kind == "offset":
            self.success(time, words[4], time)
        if kind in ("acked", "failed", "committed", "aborted", "unknown", "read", "look-end"):
            self.counts[kind] += 1

    def success(self, time, name, invoked):
        kind = kind_of(name)
        self.successes[kind].append((time, invoked))
        self.slowest[kind] = max(self.slowest[kind], time - invoked)

    def lines(self, began, ended, leader_kills):
        """For people: unavailability by kind of client, and how fast writes went on after each kill of the leader."""
        for kind, all_of in sorted(self.successes.items()):
            times = [began] + sorted(time for time, _ in all_of if began <= time <= ended) + [ended]
            gap = max((b - a for a, b in zip(times, times[1:])), default=0)
            yield (
                f"{kind:24} {len(all_of):7} successes  longest unavailability {gap / SECOND:6.2f} s"
                f"  slowest {self.slowest[kind] / SECOND:6.2f} s"
            )
        for kind, all_of in sorted(self.successes.items()):
            if not kind.endswith(("plain", "own")):
                continue
            waits = sorted(self.after(all_of, kill) for kill in leader_kills)
            if waits:
                told = ", ".join(f"{wait:.2f}" for wait in waits)
                yield f"{kind:24} first success after a kill of the leader, s: median {waits[len(waits) // 2]:.2f}  [{told}]"

    @staticmethod
    def after(successes, kill):
        return min((time - kill for time, invoked in successes if invoked >= kill), default=float("inf")) / SECOND
