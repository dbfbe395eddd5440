"""Cases from public trackers that need three nodes (../../cases-log.md); librdkafka stands for all clients here."""

import os
import threading

import kit
import pytest
from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from test_failover import PARTITIONS, Members, Watcher, fill, restored

pytestmark = pytest.mark.skipif(os.environ["NODES"] != "3", reason="needs three nodes")


@pytest.mark.timeout(420)
def test_public_tx01_leader_lost_after_each_step():
    """The record and the offset of a transaction are both there, or the commit fails and neither is."""
    for how in ("kill", "stop"):
        for step in ("init", "begin", "produce", "offsets"):
            with restored():
                out, source = kit.create_topics("tx01-out", "tx01-in")
                group = kit.unique("tx01")
                producer = kit.transactional_producer(kit.unique("tx01"))

                def done(this, step=step, how=how):
                    if this == step:
                        kit.broker(how, "main", "leader")

                done("init")
                try:
                    producer.begin_transaction()
                    done("begin")
                    kit.send(producer, out, "record")
                    done("produce")
                    member = kit.consumer(group)
                    producer.send_offsets_to_transaction(
                        [TopicPartition(source, 0, 7)], member.consumer_group_metadata(), kit.DEADLINE
                    )
                    done("offsets")
                    kit.commit(producer)
                    committed = True
                except (KafkaException, AssertionError) as error:
                    print(f"{how} after {step}: {error}")
                    producer.abort_transaction(kit.DEADLINE)
                    committed = False
                assert kit.read_all(out) == (["record"] if committed else []), (how, step)
                offset = kit.committed(kit.consumer(group), source)
                assert (offset == 7) == committed and (committed or offset < 0), (how, step, offset)


def test_public_co06_topic_ids_and_leader_epochs():
    """Topic ids outlive a leader, a topic created again has another; leader epochs grow, and consumers go on."""
    name, admins = kit.create_topics("co06"), []

    def admin():
        # A new one each time: librdkafka's waits for the controller that it knew, also while that is gone. Kept, since one
        # that nothing holds is closed under its own request.
        admins.append(AdminClient({"bootstrap.servers": kit.BOOTSTRAP}))
        return admins[-1]

    def topic_id():
        return str(admin().describe_topics(TopicCollection([name]), request_timeout=30)[name].result(60).topic_id)

    with restored():
        reader = Consumer(
            {"bootstrap.servers": kit.BOOTSTRAP, "group.id": kit.unique("co06"), "auto.offset.reset": "error"} | kit.QUICK
        )
        reader.assign([TopicPartition(name, 0, 0)])

        def one(value):
            kit.send(kit.plain_producer(), name, value)
            message = next(kit.polled(reader))
            assert kit.text(message) == value
            return message.leader_epoch()

        first, before = topic_id(), one("before")
        kit.broker("kill", "main", "leader")
        after = one("after")
        # Base64 of no bits set is a row of As.
        assert topic_id() == first and first.strip("A=")
        assert before is not None and after > before, (before, after)
        reader.close()
    admin().delete_topics([name])[name].result(60)
    for _ in range(600):
        try:
            admin().create_topics([NewTopic(name, 1, 3)])[name].result(30)
            break
        except KafkaException:
            # Kafka deletes in the background.
            continue
    assert topic_id() != first


def test_public_ad08_a_fresh_topic_is_usable_at_any_node():
    nodes = kit.BOOTSTRAP.split(",")
    producers = [kit.plain_producer(node) for node in nodes]
    for n in range(30):
        name = kit.create_topics("ad08", bootstrap=nodes[n % 3])
        kit.send(producers[(n // 3) % 3], name, "first")
    assert kit.read_all(name) == ["first"]


@pytest.mark.timeout(420)
def test_public_fe03_no_partition_is_left_behind():
    """Leaders come and go under three members: every record is read, every committed offset reaches the end."""
    topic, group = kit.create_topics("fe03", partitions=PARTITIONS), kit.unique("fe03")
    members = Members(topic, group, (None, None, None))
    # Members that look for their offsets while a leader dies may read from the beginning, by librdkafka's own timer (findings.md).
    members.until("every member has its partitions", lambda: all(one.assignment() for one in members.all))
    wanted = fill(topic, "before")
    members.until("all is read before", lambda: members.covers(wanted))
    watcher = Watcher(group, members)
    for n, how in enumerate(("stop", "kill", "stop", "kill")):
        with restored():
            struck = threading.Thread(target=kit.broker, args=(how, "main", "leader"))
            struck.start()
            wanted += fill(topic, f"round{n}")
            members.until(f"all is read through round {n}", lambda: members.covers(wanted))
            struck.join()
    wanted += fill(topic, "last")
    members.until("all is read in the end", lambda: members.covers(wanted))
    watcher.stop()
    for one in members.all:
        one.close()
    reader = kit.consumer(group)
    told = reader.committed([TopicPartition(topic, p) for p in range(PARTITIONS)], timeout=30)
    assert [one.offset for one in told] == [30] * PARTITIONS
