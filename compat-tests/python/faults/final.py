"""Reads everything there is, once all is quiet."""

import contextlib
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

PATIENCE = 90.0


class FinalReader:
    """A fresh read_committed reader for each question."""

    def __init__(self, bootstrap, topics):
        self.bootstrap = bootstrap
        self.partitions = [(topic, partition) for topic, count in topics.items() for partition in range(count)]

    def consumer(self, group="faults-final", **more):
        config = {
            "bootstrap.servers": self.bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "metadata.recovery.strategy": "none",
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        return contextlib.closing(Consumer(config | more))

    @staticmethod
    def insist(ask):
        """The cluster may be changing its leader just now."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return ask()
            except KafkaException:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def ends(self, partitions):
        with self.consumer() as asker:
            return {
                at: self.insist(lambda at=at: asker.get_watermark_offsets(TopicPartition(*at), timeout=10))[1]
                for at in partitions
            }

    def committed(self, wanted, strict=True):
        """(group, topic, partition) -> committed offset, -1 if none or, unless strict, if nobody can say now."""
        found = {}
        for group in {at[0] for at in wanted}:
            mine = [TopicPartition(topic, partition) for of, topic, partition in wanted if of == group]
            with self.consumer(group) as asker:
                try:
                    answer = self.insist(lambda: asker.committed(mine, timeout=10)) if strict else asker.committed(
                        mine, timeout=5
                    )
                except KafkaException:
                    answer = [TopicPartition(one.topic, one.partition, -1) for one in mine]
            found |= {(group, one.topic, one.partition): max(-1, one.offset) for one in answer}
        return found

    def read(self):
        """(topic, partition) -> [(offset, value)...], to the end of each."""
        found, left = {at: [] for at in self.partitions}, set(self.partitions)
        ends = self.ends(self.partitions)
        deadline = time.monotonic() + PATIENCE
        with self.consumer() as reader:
            reader.assign([TopicPartition(topic, partition, 0) for topic, partition in self.partitions])
            while left:
                if time.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no end of {sorted(left)}"))
                for message in reader.consume(1000, 0.5):
                    at = (message.topic(), message.partition())
                    if not message.error():
                        found[at].append((message.offset(), message.value().decode()))
                    elif message.error().code() == KafkaError._PARTITION_EOF and message.offset() >= ends[at]:
                        left.discard(at)
        return found
