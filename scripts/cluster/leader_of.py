#!/usr/bin/env python3
"""leader_of.py HOST PORT TOPIC: epoch and leader of the topic's first partition as that node sees it."""

import socket
import struct
import sys


def string(text):
    return struct.pack(">h", len(text)) + text.encode()


class Answer:
    """Kafka's primitive types, read one after another."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, kind):
        (value,) = struct.unpack_from(">" + kind, self.data, self.at)
        self.at += struct.calcsize(kind)
        return value

    def skip_string(self):
        self.at += max(0, self.number("h"))


def main():
    host, port, topic = sys.argv[1:]
    with socket.create_connection((host, int(port)), 1) as connection:
        connection.settimeout(1)
        # Metadata v7 without auto-creation.
        request = struct.pack(">hhi", 3, 7, 1) + string("faults") + struct.pack(">i", 1) + string(topic) + b"\0"
        connection.sendall(struct.pack(">i", len(request)) + request)
        stream = connection.makefile("rb")
        answer = Answer(stream.read(struct.unpack(">i", stream.read(4))[0]))
    answer.number("i"), answer.number("i")
    for _ in range(answer.number("i")):
        answer.number("i"), answer.skip_string(), answer.number("i"), answer.skip_string()
    answer.skip_string(), answer.number("i"), answer.number("i")
    error = answer.number("h")
    answer.skip_string(), answer.number("b")
    if error or not answer.number("i"):
        return 1
    answer.number("h"), answer.number("i")
    leader, epoch = answer.number("i"), answer.number("i")
    print(epoch, leader)
    return 0


if __name__ == "__main__":
    sys.exit(main())
