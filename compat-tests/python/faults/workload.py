"""The processes of clients: started, followed while they run, ended phase by phase."""

import collections
import contextlib
import pathlib
import re
import signal
import subprocess
import threading

from history import kind_of

# A line that is neither cut nor part of a thread dump.
LINE = re.compile(r"\d+\t[a-z-]+\t.*\n")
# The event that says that a client came further.
SUCCESS = {"acked": 1, "committed": 1, "offset": 5}


class Workload:
    """One process; its history goes to a file, and its successes are counted on the way."""

    def __init__(self, name, command, arguments, state):
        self.name = name
        state = pathlib.Path(state)
        self.path = state / f"history-{name}.tsv"
        self.log = open(state / f"workload-{name}.log", "w")
        self.successes, self.reads, self.done = collections.Counter(), collections.Counter(), set()
        self.process = subprocess.Popen(
            [*command, name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.reader = threading.Thread(target=self.follow, daemon=True)
        self.reader.start()

    def follow(self):
        with open(self.path, "w") as raw:
            for line in self.process.stdout:
                if not LINE.match(line):
                    # Where a JVM's threads stand, or a line that was cut.
                    self.log.write(line)
                    continue
                raw.write(line)
                words = line.rstrip("\n").split("\t")
                kind = words[1] if words[1:] else ""
                if kind == "read":
                    self.reads[words[2]] += 1
                elif kind in SUCCESS:
                    self.successes[kind_of(words[6] if kind == "offset" else words[2])] += 1
                elif kind == "done":
                    self.done.add(words[3])

    def tell(self):
        """Ends the next phase."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def ended(self):
        """Why it ended before it was told to, or nothing."""
        code = self.process.poll()
        return None if code is None else f"workload {self.name} ended with {code}; see {self.log.name}"

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
