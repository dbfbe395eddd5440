"""What the cases share: clients with short timeouts, topics, complete reads, the relay and the brokers' life."""

import asyncio
import contextlib
import os
import socket
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

BOOTSTRAP = os.environ["BOOTSTRAP"]
RELAYED = os.environ["RELAY_BOOTSTRAP"]
# Promises that Kafka itself does not make are asserted only where they are made.
STRICT = os.environ["TARGET"] == "katomic"

# API keys, for the relay.
PRODUCE, END_TXN = 0, 26

DEADLINE = 60.0


def unique(name):
    """A topic, group or transactional id that no other run has."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def numbered(prefix, count):
    return [f"{prefix}{i}" for i in range(count)]


async def within(what, awaitable, seconds=DEADLINE):
    """Fails if it takes longer than any client may."""
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except asyncio.TimeoutError:
        raise AssertionError(f"{what}: nothing within {seconds} s") from None


class Clients:
    """Everything that a case opened."""

    def __init__(self):
        self.made = []

    async def stop(self):
        for one in reversed(self.made):
            await close(one)

    async def started(self, client):
        self.made.append(client)
        await within("start", client.start())
        return client

    async def create_topics(self, *names, partitions=1, bootstrap=BOOTSTRAP):
        """Creates topics under unique names and returns those, one or a list."""
        made = [unique(name) for name in names]
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await within("start", admin.start())
        try:
            replicas = int(os.environ["REPLICAS"])
            answer = await admin.create_topics([NewTopic(name, partitions, replicas) for name in made])
            assert all(topic[1] == 0 for topic in answer.topic_errors), answer
        finally:
            await admin.close()
        return made if len(made) > 1 else made[0]

    async def plain_producer(self, bootstrap=BOOTSTRAP, **config):
        """An idempotent producer."""
        config = {"retry_backoff_ms": 50, "request_timeout_ms": 15000, "enable_idempotence": True} | config
        return await self.started(AIOKafkaProducer(bootstrap_servers=bootstrap, **config))

    async def transactional_producer(self, transactional_id, bootstrap=BOOTSTRAP, **config):
        """A transactional producer that has its producer id."""
        return await self.plain_producer(bootstrap, transactional_id=transactional_id, **config)

    async def consumer(self, *topics, group=None, bootstrap=BOOTSTRAP, isolation="read_committed", **config):
        """A consumer that starts at the beginning and commits nothing by itself."""
        return await self.started(
            AIOKafkaConsumer(
                *topics,
                bootstrap_servers=bootstrap,
                group_id=group,
                isolation_level=isolation,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                fetch_max_wait_ms=100,
                retry_backoff_ms=50,
                request_timeout_ms=15000,
                session_timeout_ms=6000,
                heartbeat_interval_ms=300,
                **config,
            )
        )

    async def reader(self, *topics, bootstrap=BOOTSTRAP, isolation="read_committed"):
        """Reads the topics' first partitions from the beginning, outside any group."""
        reader = await self.consumer(bootstrap=bootstrap, isolation=isolation)
        reader.assign([TopicPartition(topic, 0) for topic in topics])
        await reader.seek_to_beginning()
        return reader

    async def read_all(self, *topics, bootstrap=BOOTSTRAP):
        """The values of each topic (one partition each) as a fresh reader sees them, complete.

        A record is put behind everything else in each, and the reader goes on until it has met all of those: so the
        end is told without end offsets, which count control batches on Kafka only.
        """
        end = unique("end")
        marker = await self.plain_producer(bootstrap)
        for topic in topics:
            await send(marker, topic, end)
        left, found = set(topics), {topic: [] for topic in topics}
        async for message in polled(await self.reader(*topics, bootstrap=bootstrap)):
            if text(message) == end:
                left.discard(message.topic)
                if not left:
                    break
            elif not text(message).startswith("end-"):
                found[message.topic].append(text(message))
        return found[topics[0]] if len(topics) == 1 else found


async def close(client):
    """Stops a client, also one whose background task has failed: then `stop` raises, or would wait for ever."""
    with contextlib.suppress(Exception):
        await asyncio.wait_for(client.stop(), 10)


async def send(producer, topic, *values, partition=0):
    """Sends and waits until all are acknowledged."""
    sent = [await producer.send(topic, value.encode(), partition=partition) for value in values]
    await within("the acknowledgement", asyncio.gather(*sent))


def text(message):
    return message.value.decode() if message.value is not None else None


async def polled(reader, deadline=DEADLINE):
    """The messages of a consumer, as they come; ends in an error at the deadline."""
    end = asyncio.get_running_loop().time() + deadline
    while (left := end - asyncio.get_running_loop().time()) > 0:
        with contextlib.suppress(asyncio.TimeoutError):
            yield await asyncio.wait_for(reader.getone(), left)
    raise AssertionError("the records awaited did not come")


async def transaction(producer, end, values, *topics):
    """One transaction over the topics, ended as told."""
    await producer.begin_transaction()
    for topic in topics:
        await send(producer, topic, *values)
    if end == "commit":
        await within("commit", producer.commit_transaction())
    else:
        await within("abort", producer.abort_transaction())


async def end_offset(reader, topic):
    """The end of the topic's first partition at the reader's isolation level."""
    at = TopicPartition(topic, 0)
    return (await within("the end", reader.end_offsets([at])))[at]


async def committed(member, topic):
    """The group's offset as it stands, None if it has none: aiokafka cannot ask for stable ones."""
    return await within("the offset", member.committed(TopicPartition(topic, 0)))


async def until(what, done):
    """Asks again until the answer is yes."""

    async def asked():
        while not await done():
            await asyncio.sleep(0.02)

    await within(what, asked())


def offsets(topic, offset):
    return {TopicPartition(topic, 0): OffsetAndMetadata(offset, "")}


async def recover(clients, producer, error, transactional_id, **config):
    """What an application does after a failed transaction: abort it, or start again if the client refuses that.

    Returns the producer to go on with.
    """
    assert isinstance(error, KafkaError), f"an error the application cannot act on: {error!r}"
    print(f"the transaction failed: {error!r}")
    try:
        await within("abort", producer.abort_transaction())
        return producer
    except (KafkaError, AssertionError, RuntimeError) as refused:
        # aiokafka refuses by assertion to leave its fatal state.
        print(f"the abort failed: {refused!r}")
        await close(producer)
        return await clients.transactional_producer(transactional_id, **config)


class Relay:
    """Commands for the relay in front of the second cluster."""

    def __init__(self):
        host, port = os.environ["RELAY_CONTROL"].rsplit(":", 1)
        self.lines = socket.create_connection((host, int(port)), timeout=DEADLINE).makefile("rw")

    def ask(self, *words):
        print(*words, file=self.lines, flush=True)
        answer = self.lines.readline().split()
        assert answer and answer[0] == "ok", f"relay: {words} -> {answer}"
        return answer[1] if len(answer) > 1 else None

    def arm(self, action, side, key, nth=1):
        return self.ask("arm", action, side, key, nth)

    async def fired(self, rule):
        """Waits until the rule has met its frame, so that a case cannot pass without its disturbance."""
        await asyncio.to_thread(self.ask, "wait", rule, 30)


async def broker(*command):
    """Commands ../../broker.sh: a whole cluster, or one node of it."""
    process = await asyncio.create_subprocess_exec(os.environ["BROKER"], *command)
    assert await within(f"broker.sh {command}", process.wait(), 120) == 0
