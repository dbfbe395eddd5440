#!/usr/bin/env python3
"""A TCP relay between Kafka clients and the brokers of one cluster that can disturb single frames.

    relay.py --listen HOST:PORT,... --upstream HOST:PORT,... --control HOST:PORT

The i-th address it listens on leads to the i-th broker; frames are counted over all of them.
It rewrites nothing: a broker behind it must advertise the relay's address, so that a client that
reconnects comes back through the relay. Frames are told apart by their length prefix, requests by
their API key, responses by the correlation id of the request they answer.

The control port takes one command a line and answers one line, `ok [VALUE]`, `timeout` or `error TEXT`:

    arm ACTION SIDE KEY N   disturb the N-th frame from now on of API KEY; SIDE is request or response;
                            the value is the rule's number
        hold     keep it, and all behind it in that direction, until `release`; a held request still
                 reaches the broker when the client has left meanwhile
        drop     swallow it
        double   send it twice (a request's second answer is swallowed: the client never asked for it)
        cut      close both ends instead of passing it on
    wait RULE SECONDS       answer once the rule has met its frame
    release RULE            let a held frame go
    cut RULE                close both ends of the connection of a held frame instead
    seen SIDE KEY           how many such frames came by since the start
    clear                   forget rules that have not fired, release what is held
"""

import argparse
import asyncio
import collections
import contextlib

FRAME_MAX = 128 << 20
ACTIONS = ("hold", "drop", "double", "cut")
SIDES = ("request", "response")


class Rule:
    """One disturbance, spent on the frame that brings `left` to zero."""

    def __init__(self, action, side, key, nth):
        self.action, self.side, self.key, self.left = action, side, key, nth
        self.fired = asyncio.Event()
        self.released = asyncio.Event()


class Rules:
    """All rules armed so far, in order, and the frames counted."""

    def __init__(self):
        self.rules = []
        self.seen = collections.Counter()

    def arm(self, action, side, key, nth):
        if action not in ACTIONS or side not in SIDES or int(nth) < 1:
            raise ValueError(f"no such rule: {action} {side} {nth}")
        self.rules.append(Rule(action, side, int(key), int(nth)))
        return len(self.rules) - 1

    def met(self, side, key):
        """The rule that this frame sets off, if any. Every armed rule counts every frame."""
        self.seen[side, key] += 1
        due = None
        for rule in self.rules:
            if rule.side == side and rule.key == key and rule.left > 0:
                rule.left -= 1
                if rule.left == 0 and due is None:
                    due = rule
                    rule.fired.set()
        return due

    def clear(self):
        for rule in self.rules:
            rule.left = 0
            rule.released.set()


async def read_frame(reader):
    """One frame with its length prefix; None at the end of the stream."""
    try:
        head = await reader.readexactly(4)
        length = int.from_bytes(head, "big", signed=True)
        if not 0 <= length <= FRAME_MAX:
            return None
        return head + await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class Pipe:
    """One client connection and its twin to the broker."""

    def __init__(self, door, client, broker):
        self.door, self.rules = door, door.rules
        self.client_reader, self.client_writer = client
        self.broker_reader, self.broker_writer = broker
        # Requests on their way, oldest first: (correlation id, API key, whether the answer is swallowed).
        self.asked = collections.deque()

    def close(self):
        for writer in (self.client_writer, self.broker_writer):
            # A reset rather than an orderly end, as a broken network gives.
            with contextlib.suppress(Exception):
                writer.transport.abort()

    async def run(self):
        requests = asyncio.create_task(self.requests())
        responses = asyncio.create_task(self.responses())
        await requests
        # The client has left. What the broker was sent is sent; its answers have no reader any more.
        responses.cancel()
        self.close()

    async def requests(self):
        while (frame := await read_frame(self.client_reader)) is not None:
            key = int.from_bytes(frame[4:6], "big")
            correlation = frame[8:12]
            rule = self.rules.met("request", key)
            action = rule.action if rule else "pass"
            if action == "cut":
                return self.close()
            if action == "drop":
                continue
            if action == "hold":
                await rule.released.wait()
                if rule.action == "cut":
                    await self.door.check()
                    return self.close()
            self.asked.append((correlation, key, False))
            self.broker_writer.write(frame)
            if action == "double":
                self.asked.append((correlation, key, True))
                self.broker_writer.write(frame)
            try:
                await self.broker_writer.drain()
            except ConnectionError:
                return None
        return None

    async def responses(self):
        while (frame := await read_frame(self.broker_reader)) is not None:
            # A request without an answer (Produce with acks=0) leaves its entry behind: skip to the match.
            key, swallowed = -1, False
            while self.asked:
                correlation, key, swallowed = self.asked.popleft()
                if correlation == frame[4:8]:
                    break
            if swallowed:
                continue
            rule = self.rules.met("response", key)
            action = rule.action if rule else "pass"
            if action == "cut":
                return self.close()
            if action == "drop":
                continue
            if action == "hold":
                await rule.released.wait()
                if rule.action == "cut":
                    await self.door.check()
                    return self.close()
            with contextlib.suppress(ConnectionError):
                self.client_writer.write(frame * 2 if action == "double" else frame)
                await self.client_writer.drain()
        # The broker closed: so does the client's end, which ends `requests` too.
        await self.door.check()
        return self.close()


class Door:
    """Where clients come in for one broker: shut while the broker is gone, as its own port would be."""

    def __init__(self, rules, listen, upstream):
        self.rules, self.listen, self.upstream = rules, listen, upstream
        self.server = None

    async def open(self):
        self.server = await asyncio.start_server(self.accepted, *self.listen)

    async def accepted(self, reader, writer):
        try:
            broker = await asyncio.open_connection(*self.upstream)
        except OSError:
            writer.transport.abort()
            return await self.check()
        return await Pipe(self, (reader, writer), broker).run()

    async def alive(self):
        try:
            _, writer = await asyncio.open_connection(*self.upstream)
        except OSError:
            return False
        writer.close()
        return True

    async def check(self):
        """A connection of the broker's broke: perhaps the broker is gone."""
        if self.server is None or await self.alive() or self.server is None:
            return
        self.server.close()
        self.server = None
        self.returning = asyncio.create_task(self.reopen())

    async def reopen(self):
        while not await self.alive():
            await asyncio.sleep(0.05)
        await self.open()


async def control(rules, reader, writer):
    """Serves one control connection."""
    while line := (await reader.readline()).decode().split():
        try:
            match line:
                case ["arm", action, side, key, nth]:
                    answer = f"ok {rules.arm(action, side, key, nth)}"
                case ["wait", rule, seconds]:
                    await asyncio.wait_for(rules.rules[int(rule)].fired.wait(), float(seconds))
                    answer = "ok"
                case ["release", rule]:
                    rules.rules[int(rule)].released.set()
                    answer = "ok"
                case ["cut", rule]:
                    rules.rules[int(rule)].action = "cut"
                    rules.rules[int(rule)].released.set()
                    answer = "ok"
                case ["seen", side, key]:
                    answer = f"ok {rules.seen[side, int(key)]}"
                case ["clear"]:
                    rules.clear()
                    answer = "ok"
                case _:
                    answer = f"error no such command: {' '.join(line)}"
        except asyncio.TimeoutError:
            answer = "timeout"
        except (ValueError, IndexError) as error:
            answer = f"error {error}"
        writer.write(f"{answer}\n".encode())
        await writer.drain()
    writer.close()


def address(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


def addresses(text):
    return [address(one) for one in text.split(",")]


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("listen", "upstream"):
        parser.add_argument(f"--{option}", type=addresses, required=True, metavar="HOST:PORT,...")
    parser.add_argument("--control", type=address, required=True, metavar="HOST:PORT")
    options = parser.parse_args()
    if len(options.listen) != len(options.upstream):
        parser.error("as many addresses to listen on as brokers")
    rules = Rules()

    async def controlled(reader, writer):
        await control(rules, reader, writer)

    server = await asyncio.start_server(controlled, *options.control)
    for listen, upstream in zip(options.listen, options.upstream):
        await Door(rules, listen, upstream).open()
    print("relay: ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
