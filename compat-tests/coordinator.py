#!/usr/bin/env python3
"""Prints the id of the node that coordinates transactions (or groups), by asking the nodes given.

    coordinator.py [--group] HOST:PORT...

A cluster of compat-tests has one transaction partition and one offsets partition, so one node coordinates all ids; on
Katomic it is the Raft leader, which leads every partition too.
"""

import socket
import struct
import sys
import time

FIND_COORDINATOR, VERSION = 10, 1


def ask(address, kind):
    """The node id in the answer, or None if this node cannot tell."""
    host, port = address.rsplit(":", 1)
    key = b"any"
    body = struct.pack(">h", len(key)) + key + struct.pack(">b", kind)
    frame = struct.pack(">hhih", FIND_COORDINATOR, VERSION, 7, -1) + body
    with socket.create_connection((host, int(port)), timeout=2) as conn:
        conn.sendall(struct.pack(">i", len(frame)) + frame)
        stream = conn.makefile("rb")
        answer = stream.read(struct.unpack(">i", stream.read(4))[0])
    _, _, error = struct.unpack_from(">iih", answer)
    at = 10
    (length,) = struct.unpack_from(">h", answer, at)
    (node,) = struct.unpack_from(">i", answer, at + 2 + max(length, 0))
    return node if error == 0 else None


def main():
    arguments = sys.argv[1:]
    kind = 0 if "--group" in arguments else 1
    addresses = [one for one in arguments if one != "--group"]
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for address in addresses:
            try:
                node = ask(address, kind)
            except (OSError, struct.error):
                continue
            if node is not None:
                print(node)
                return 0
        time.sleep(0.1)
    print("coordinator.py: no node told within a minute", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
