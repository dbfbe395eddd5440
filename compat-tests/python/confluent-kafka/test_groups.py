"""Consumer groups."""

import time

import kit

PARTITIONS = 4


def test_group_rebalance():
    topic = kit.create_topics("group", partitions=PARTITIONS)
    group = kit.unique("group")
    producer = kit.plain_producer()
    processed = []

    def fill(label):
        for partition in range(PARTITIONS):
            kit.send(producer, topic, *[f"{label}:{partition}:{i}" for i in range(5)], partition=partition)

    def member():
        one = kit.consumer(group)
        one.subscribe([topic])
        return one

    def until(members, what, done):
        """Polls all members in turn, committing what each has processed, until done."""
        end, error = time.monotonic() + kit.DEADLINE, None
        while not done():
            if time.monotonic() > end:
                raise AssertionError(f"{what}: {len(processed)} processed, last error {error}")
            for one in members:
                message = one.poll(0.05)
                if message is None:
                    continue
                if message.error():
                    # The client goes on by itself; the error matters only if nothing comes of that.
                    error = message.error()
                    continue
                processed.append(kit.text(message))
                one.commit(message, asynchronous=False)

    def owned(*members):
        return [len(one.assignment()) for one in members]

    fill("one")
    first = member()
    until([first], "a single member reads all", lambda: len(processed) == 20)
    second = member()
    until([first, second], "two members share", lambda: owned(first, second) == [2, 2])
    fill("two")
    until([first, second], "two members read all", lambda: len(processed) == 40)
    second.close()
    until([first], "the other takes over", lambda: owned(first) == [4])
    fill("three")
    until([first], "it reads all again", lambda: len(processed) == 60)
    first.close()
    fill("four")
    third = member()
    until([third], "a later member resumes", lambda: len(processed) >= 80)
    third.close()
    # Committed after each record, and nobody died: so nothing was read twice either.
    wanted = [f"{label}:{p}:{i}" for label in ("one", "two", "three", "four") for p in range(4) for i in range(5)]
    assert sorted(processed) == sorted(wanted)
