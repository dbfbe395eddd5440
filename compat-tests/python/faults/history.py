"""What the clients asked and were told while the cluster was disturbed.

A workload writes one line an event, words parted by tabs; the first is the time in nanoseconds of the machine's
monotonic clock, taken when the line is written: before the request for what is asked, after the answer for what is told.

    send NAME TOPIC PARTITION VALUE              a plain record is handed to a producer
    acked NAME TOPIC PARTITION VALUE OFFSET      it was acknowledged
    failed NAME TOPIC PARTITION VALUE definite|unknown CLASS     it was not: it cannot be there, or its fate is unknown
    init NAME                                    a transactional producer has its epoch
    begin NAME NUMBER COUNT CLAIMS               a transaction of COUNT records starts; CLAIMS are the group offsets it sets
    commit NAME NUMBER                           its commit is about to be asked for
    committed NAME NUMBER | aborted NAME NUMBER WHY | unknown NAME NUMBER WHY      how it ended for the client
    assign NAME ISOLATION TOPIC PARTITION        a consumer starts to read a partition (anew)
    read NAME TOPIC PARTITION OFFSET VALUE       it got a record
    out-of-range NAME TOPIC PARTITION OFFSET     it was told that this offset does not exist
    offset GROUP TOPIC PARTITION OFFSET NAME     the group's offset was committed
    resume GROUP TOPIC PARTITION OFFSET ASKED    where the group stands; asked for at time ASKED
    look NAME                                    the witness is about to ask for all group offsets
    look-offsets NAME CLAIMS                     it has them, and asks where the partitions end
    look-end NAME                                it has read everything up to there
    error NAME CLASS                             whatever a client reported
    done NAME PHASE                              the clients of a phase have ended

CLAIMS are `GROUP:TOPIC:PARTITION=OFFSET`, parted by commas. The record I of a transaction has the value
NAME|NUMBER|I|COUNT, with |SOURCE behind it if it was made from a record; a plain one NAME.INSTANCE|N.
"""

import heapq
import re

# How many words follow the kind.
WORDS = {
    "send": 4,
    "acked": 5,
    "failed": 6,
    "init": 1,
    "begin": 4,
    "commit": 2,
    "committed": 2,
    "aborted": 3,
    "unknown": 3,
    "assign": 4,
    "read": 5,
    "out-of-range": 4,
    "offset": 5,
    "resume": 5,
    "look": 1,
    "look-offsets": 2,
    "look-end": 1,
    "error": 2,
    "done": 2,
}


def parse(line):
    """(time, kind, words); a line that is cut or unknown is an error."""
    time, kind, *words = line.rstrip("\n").split("\t")
    if WORDS.get(kind) != len(words):
        raise ValueError(f"no such event: {line!r}")
    return int(time), kind, words


def claims(text):
    """(group, topic, partition) -> offset"""
    found = {}
    for one in filter(None, text.split(",")):
        at, offset = one.rsplit("=", 1)
        group, topic, partition = at.rsplit(":", 2)
        found[group, topic, int(partition)] = int(offset)
    return found


def merged(files):
    """All events of all workloads in the order of time."""
    return heapq.merge(*(map(parse, file) for file in files), key=lambda event: event[0])


def transaction_of(value):
    """(name, number), or nothing for a plain value."""
    words = value.split("|", 4)
    return (words[0], int(words[1])) if len(words) >= 4 else None


def kind_of(name):
    """java-4.4-own3 is of the kind java-4.4-own."""
    return re.sub(r"\d+$", "", name)
