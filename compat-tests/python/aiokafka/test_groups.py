"""Consumer groups."""

import asyncio

import kit
from aiokafka.errors import CommitFailedError, IllegalStateError
from aiokafka.structs import TopicPartition

PARTITIONS = 4


class Member:
    """Commits each record, and counts it as processed only if that worked: so nothing is counted twice."""

    def __init__(self, consumer, processed):
        self.consumer, self.processed = consumer, processed
        self.task = asyncio.create_task(self.run())

    async def run(self):
        async for message in self.consumer:
            at = TopicPartition(message.topic, message.partition)
            try:
                await self.consumer.commit({at: message.offset + 1})
            except (CommitFailedError, IllegalStateError):
                # The generation ended: whoever owns the partition in the next one reads the record again.
                continue
            self.processed.append(kit.text(message))

    def owned(self):
        return len(self.consumer.assignment())

    async def leave(self):
        self.task.cancel()
        await asyncio.wait([self.task])
        await kit.within("leave", self.consumer.stop())


async def test_group_rebalance(clients):
    topic = await clients.create_topics("group", partitions=PARTITIONS)
    group = kit.unique("group")
    producer = await clients.plain_producer()
    processed, wanted = [], []

    async def fill(label):
        for partition in range(PARTITIONS):
            values = kit.numbered(f"{label}:{partition}:", 5)
            await kit.send(producer, topic, *values, partition=partition)
            wanted.extend(values)

    async def member():
        return Member(await clients.consumer(topic, group=group), processed)

    async def until(what, done):
        async def asked():
            return done()

        await kit.until(what, asked)

    await fill("one")
    first = await member()
    await until("a single member reads all", lambda: len(processed) == 20)
    second = await member()
    await until("two members share", lambda: (first.owned(), second.owned()) == (2, 2))
    await fill("two")
    await until("two members read all", lambda: len(processed) == 40)
    await second.leave()
    await until("the other takes over", lambda: first.owned() == PARTITIONS)
    await fill("three")
    await until("it reads all again", lambda: len(processed) == 60)
    await first.leave()
    await fill("four")
    third = await member()
    await until("a later member resumes", lambda: len(processed) >= 80)
    await third.leave()
    # Committed after each record, and nobody died: so nothing was read twice either.
    assert sorted(processed) == sorted(wanted)
