"""Failover: the leader of three nodes is killed or stopped around a transaction, and under a group."""

import contextlib
import os
import threading
import time

import kit
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

pytestmark = pytest.mark.skipif(os.environ["NODES"] != "3", reason="needs three nodes")


class Strike:
    """Takes the leader away beside the case, once `when` has returned, and then does `after`."""

    def __init__(self, how, cluster="main", when=None, after=None):
        self.failed = None

        def run():
            try:
                if when:
                    when()
                kit.broker(how, cluster, "leader")
                if after:
                    after()
            except Exception as error:
                self.failed = error

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def join(self):
        self.thread.join(120)
        assert not self.thread.is_alive() and self.failed is None, self.failed


class Application:
    """Writes transactions over two topics, each again under another value for as long as it fails."""

    def __init__(self, bootstrap=kit.BOOTSTRAP):
        self.bootstrap = bootstrap
        self.topics = kit.create_topics("failover-a", "failover-b", bootstrap=bootstrap)
        self.name = kit.unique("failover")
        self.committed = []
        self.renew()

    def renew(self):
        self.producer = kit.transactional_producer(self.name, self.bootstrap)

    def send(self, topic, value):
        failed = []
        self.producer.produce(topic, value, partition=0, on_delivery=lambda err, _: failed.append(err) if err else None)
        assert self.producer.flush(kit.DEADLINE) == 0, "no delivery report in time"
        if failed:
            raise KafkaException(failed[0])

    def work(self, value, before_commit=lambda: None):
        """Returns how many attempts failed."""
        for failures in range(4):
            attempt = f"{value}.{failures}"
            try:
                self.producer.begin_transaction()
                for topic in self.topics:
                    self.send(topic, attempt)
                if not failures:
                    before_commit()
                kit.commit(self.producer)
                self.committed.append(attempt)
                return failures
            except KafkaException as error:
                print(f"{attempt} failed: {error}")
                self.recover()
        raise AssertionError("the application cannot go on")

    def recover(self):
        """Aborts; makes a new producer if the client says that the error is fatal."""
        try:
            self.producer.abort_transaction(kit.DEADLINE)
        except KafkaException as error:
            print(f"the abort failed: {error}")
            assert error.args[0].fatal(), f"an error the application cannot act on: {error}"
            self.renew()

    def holds(self):
        found = kit.read_all(*self.topics, bootstrap=self.bootstrap)
        assert found == {topic: self.committed for topic in self.topics}


@contextlib.contextmanager
def restored(cluster="main"):
    """Whatever happens, the next case has all nodes."""
    try:
        yield
    finally:
        kit.broker("start", cluster)


def before_commit(how):
    with restored():
        application = Application()
        application.work("before")
        strikes = []

        def strike():
            strikes.append(Strike(how))
            if how == "kill":
                strikes[0].join()

        application.work("inside", strike)
        strikes[0].join()
        application.work("after")
        application.holds()


def test_leader_killed_before_commit():
    before_commit("kill")


def test_leader_stopped_before_commit():
    before_commit("stop")


def between_txns(how):
    with restored():
        application = Application()
        application.work("before")
        Strike(how).join()
        failures = application.work("first")
        assert not (kit.STRICT and how == "stop") or failures == 0, "a hand-over doomed an idle producer"
        application.work("after")
        application.holds()


def test_leader_killed_between_txns():
    between_txns("kill")


def test_leader_stopped_between_txns():
    between_txns("stop")


def around_end_txn(relay, how, side):
    with restored("relayed"):
        application = Application(kit.RELAYED)
        application.work("before")
        rule = relay.arm("hold", side, kit.END_TXN)
        strike = Strike(how, "relayed", lambda: relay.fired(rule), lambda: relay.ask("cut", rule))
        failures = application.work("inside")
        strike.join()
        # It had been executed, so the client must not be told otherwise.
        assert side == "request" or failures == 0, "a commit that was executed was reported as failed"
        application.work("after")
        application.holds()


def test_leader_killed_before_end_txn(relay):
    around_end_txn(relay, "kill", "request")


def test_leader_killed_after_end_txn(relay):
    around_end_txn(relay, "kill", "response")


def test_leader_stopped_after_end_txn(relay):
    around_end_txn(relay, "stop", "response")


PARTITIONS = 4


class Members:
    """Members of a group whose every record is committed before it counts as processed."""

    def __init__(self, topic, group, instances=(None,)):
        self.topic, self.processed, self.uncertain = topic, [], []
        self.committed = dict.fromkeys(range(PARTITIONS), -1)
        self.all = []
        for instance in instances:
            more = {"group.instance.id": instance, "session.timeout.ms": 10000} if instance else {}
            self.all.append(kit.consumer(group, **more))
            self.all[-1].subscribe([topic])

    def until(self, what, done):
        end, error = time.monotonic() + kit.DEADLINE, None
        while not done():
            assert time.monotonic() < end, f"{what}: {len(self.processed)} processed, last error {error}"
            for one in self.all:
                message = one.poll(0.05)
                if message is None:
                    continue
                if message.error():
                    error = message.error()
                    assert not error.fatal() and error.code() != KafkaError.FENCED_INSTANCE_ID, error
                    continue
                try:
                    one.commit(message, asynchronous=False)
                except KafkaException as refused:
                    # Perhaps executed: then nobody reads the record again.
                    error = refused
                    self.uncertain.append(kit.text(message))
                    continue
                self.processed.append(kit.text(message))
                self.committed[message.partition()] = message.offset() + 1

    def covers(self, wanted):
        return set(wanted) <= {*self.processed, *self.uncertain}


class Watcher:
    """Asks for the group's offsets all the time: an answer may be late or an error, never less than was committed."""

    def __init__(self, group, members):
        self.answers, self.wrong, self.over = 0, [], threading.Event()
        self.thread = threading.Thread(target=self.run, args=(group, members))
        self.thread.start()

    def run(self, group, members):
        reader = kit.consumer(group)
        while not self.over.is_set():
            known = dict(members.committed)
            try:
                told = reader.committed([TopicPartition(members.topic, p) for p in known], timeout=5)
            except KafkaException:
                continue
            for one in told:
                if one.error is None:
                    self.answers += 1
                    if max(one.offset, -1) < known[one.partition]:
                        self.wrong.append((one.partition, one.offset, known[one.partition]))
        reader.close()

    def stop(self):
        self.over.set()
        self.thread.join(60)
        assert self.answers and not self.wrong, f"{self.answers} answers, too low: {self.wrong[:5]}"


def fill(topic, label):
    producer, wanted = kit.plain_producer(), []
    for partition in range(PARTITIONS):
        values = [f"{label}:{partition}:{i}" for i in range(5)]
        kit.send(producer, topic, *values, partition=partition)
        wanted += values
    return wanted


def group_survives(how):
    with restored():
        topic, group = kit.create_topics("survivor", partitions=PARTITIONS), kit.unique("survivor")
        members = Members(topic, group)
        wanted = fill(topic, "one")
        members.until("all is read before", lambda: members.covers(wanted))
        watcher = Watcher(group, members)
        strike = Strike(how)
        wanted += fill(topic, "two")
        members.until("all is read through the change", lambda: members.covers(wanted))
        strike.join()
        wanted += fill(topic, "three")
        members.until("all is read after", lambda: members.covers(wanted))
        watcher.stop()
        assert len(members.processed) == len(set(members.processed)), "a committed record was read again"
        members.all[0].close()


def test_group_survives_leader_kill():
    group_survives("kill")


def test_group_survives_leader_stop():
    group_survives("stop")


def test_static_members_survive_leader_kill():
    with restored():
        topic, group = kit.create_topics("static", partitions=PARTITIONS), kit.unique("static")
        members = Members(topic, group, ("one", "two"))
        members.until("two members share", lambda: [len(one.assignment()) for one in members.all] == [2, 2])
        wanted = fill(topic, "one")
        members.until("all is read before", lambda: members.covers(wanted))
        kit.broker("kill", "main", "leader")
        wanted += fill(topic, "two")
        members.until("all is read after", lambda: members.covers(wanted))
        members.until("both still share", lambda: [len(one.assignment()) for one in members.all] == [2, 2])
        for one in members.all:
            one.close()
