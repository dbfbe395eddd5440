package compat

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

func numbered(prefix string, count int) []string {
	var values []string
	for i := range count {
		values = append(values, prefix+strconv.Itoa(i))
	}
	return values
}

func TestTxnCommit(t *testing.T) {
	ctx := limited(t)
	a, b := topic(t, bootstrap, "commit-a", 1), topic(t, bootstrap, "commit-b", 1)
	producer := transactional(t, bootstrap, unique("commit"), time.Minute)
	begin(t, producer)
	must(t, send(ctx, producer, a, 0, "1", "2", "3"))
	must(t, send(ctx, producer, b, 0, "4", "5"))
	other := client(t, bootstrap)
	if endOffset(t, other, a) != 0 || endOffset(t, other, b) != 0 {
		t.Fatal("visible before the commit")
	}
	must(t, producer.EndTransaction(ctx, kgo.TryCommit))
	found := readAll(t, bootstrap, a, b)
	equal(t, found[a], []string{"1", "2", "3"})
	equal(t, found[b], []string{"4", "5"})

	must(t, transaction(ctx, producer, kgo.TryCommit, []string{"6"}, a))
	equal(t, readAll(t, bootstrap, a)[a], []string{"1", "2", "3", "6"})
}

func TestTxnAbort(t *testing.T) {
	ctx := limited(t)
	topic := topic(t, bootstrap, "abort", 1)
	producer := transactional(t, bootstrap, unique("abort"), time.Minute)
	for _, value := range []string{"dropped-1", "kept", "dropped-2"} {
		must(t, transaction(ctx, producer, value == "kept", []string{value}, topic))
	}
	equal(t, readAll(t, bootstrap, topic)[topic], []string{"kept"})
}

func TestTxnEmpty(t *testing.T) {
	ctx := limited(t)
	topic := topic(t, bootstrap, "empty", 1)
	producer := transactional(t, bootstrap, unique("empty"), time.Minute)
	steps := []string{"commit", "abort", "full-1", "commit", "abort", "abort", "full-2", "abort", "commit"}
	for _, step := range steps {
		begin(t, producer)
		if strings.HasPrefix(step, "full") {
			must(t, send(ctx, producer, topic, 0, step))
		}
		must(t, producer.EndTransaction(ctx, step != "abort"))
	}
	equal(t, readAll(t, bootstrap, topic)[topic], []string{"full-1", "full-2"})
}

// commitsAndAborts alternates, and returns what was committed.
func commitsAndAborts(t *testing.T, topic string, rounds int) []string {
	producer := transactional(t, bootstrap, unique("alternate"), time.Minute)
	var kept []string
	for n := range rounds {
		values := numbered(fmt.Sprintf("%d-", n), 3)
		must(t, transaction(limited(t), producer, n%2 == 1, values, topic))
		if n%2 == 1 {
			kept = append(kept, values...)
		}
	}
	return kept
}

func TestAbortedNeverVisibleTailing(t *testing.T) {
	ctx := limited(t)
	topic := topic(t, bootstrap, "tailing", 1)
	tailing, ended := make(chan struct{}), make(chan error, 1)
	var seen []string
	consumer := reader(t, bootstrap, topic)
	go func() {
		ended <- poll(ctx, consumer, func(record *kgo.Record) bool {
			if seen = append(seen, string(record.Value)); len(seen) == 1 {
				close(tailing)
			}
			return string(record.Value) == "last"
		})
	}()
	plain := client(t, bootstrap)
	must(t, send(ctx, plain, topic, 0, "first"))
	select {
	case <-tailing:
	case err := <-ended:
		t.Fatal(err)
	}
	want := append([]string{"first"}, commitsAndAborts(t, topic, 20)...)
	must(t, send(ctx, plain, topic, 0, "last"))
	must(t, <-ended)
	equal(t, seen, append(want, "last"))
}

func TestAbortedNeverVisibleFresh(t *testing.T) {
	topic := topic(t, bootstrap, "fresh", 1)
	kept := commitsAndAborts(t, topic, 20)
	equal(t, readAll(t, bootstrap, topic)[topic], kept)
}

func TestMultiTopicWholeOrAbsent(t *testing.T) {
	ctx := limited(t)
	const rounds, each = 40, 3
	var topics, whole []string
	for _, name := range []string{"multi-a", "multi-b", "multi-c"} {
		topics = append(topics, topic(t, bootstrap, name, 1))
	}
	// How many transactions are committed once this one is, for those that are.
	upto, kept := map[int]int64{}, func(n int) bool { return n%4 != 3 }
	for n := range rounds {
		if kept(n) {
			upto[n] = int64(len(upto) + 1)
			whole = append(whole, numbered(fmt.Sprintf("%d:", n), each)...)
		}
	}
	producer, plain := transactional(t, bootstrap, unique("multi"), time.Minute), client(t, bootstrap)
	ended := make(chan error, 1)
	go func() {
		ended <- func() error {
			for n := range rounds {
				values := numbered(fmt.Sprintf("%d:", n), each)
				if err := transaction(ctx, producer, kgo.TransactionEndTry(kept(n)), values, topics...); err != nil {
					return err
				}
			}
			for _, topic := range topics {
				if err := send(ctx, plain, topic, 0, "last"); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	seen, open, newest := map[string][]string{}, len(topics), -1
	must(t, poll(ctx, reader(t, bootstrap, topics...), func(record *kgo.Record) bool {
		value := string(record.Value)
		if value == "last" {
			open--
			return open == 0
		}
		seen[record.Topic] = append(seen[record.Topic], value)
		n, err := strconv.Atoi(strings.Split(value, ":")[0])
		must(t, err)
		if strict && n > newest {
			newest = n
			for _, topic := range topics {
				if end := endOffset(t, plain, topic); end < each*upto[n] {
					t.Fatalf("transaction %d shows in part: %s ends at %d", n, topic, end)
				}
			}
		}
		return false
	}))
	must(t, <-ended)
	for _, topic := range topics {
		equal(t, seen[topic], whole)
	}
}

// session consumes source in group and produces in the same transactions.
func session(t *testing.T, group, source string) *kgo.GroupTransactSession {
	t.Helper()
	one, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.TransactionalID(unique("session")),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0),
		kgo.MetadataMinAge(50*time.Millisecond),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(300*time.Millisecond),
		kgo.SessionTimeout(6*time.Second),
	)
	must(t, err)
	t.Cleanup(one.Close)
	return one
}

// end ends the session's transaction and requires that it came out as asked.
func end(ctx context.Context, session *kgo.GroupTransactSession, how kgo.TransactionEndTry) error {
	done, err := session.End(ctx, how)
	if err == nil && done != bool(how) {
		err = fmt.Errorf("commit %t ended as %t", how, done)
	}
	return err
}

func TestTxnOffsets(t *testing.T) {
	ctx := limited(t)
	source, out := topic(t, bootstrap, "offsets-in", 1), topic(t, bootstrap, "offsets-out", 1)
	group := unique("offsets")
	other := client(t, bootstrap)
	must(t, send(ctx, other, source, 0, numbered("", 10)...))
	session := session(t, group, source)

	// transform reads up to a number of records into a transaction that has one output.
	transform := func(records int) {
		must(t, session.Begin())
		for n := 0; n < records; {
			fetches := session.PollRecords(ctx, records-n)
			must(t, fetches.Err())
			n += fetches.NumRecords()
		}
		must(t, send(ctx, session.Client(), out, 0, strconv.Itoa(records)))
		if offset := committed(t, other, group, source, false); offset != -1 {
			t.Fatalf("offset %d before the commit", offset)
		}
	}
	transform(4)
	must(t, end(ctx, session, kgo.TryAbort))
	if offset := committed(t, other, group, source, true); offset != -1 {
		t.Fatalf("offset %d after the abort", offset)
	}
	// The abort took the session back to the beginning.
	transform(10)
	must(t, end(ctx, session, kgo.TryCommit))
	if offset := committed(t, other, group, source, true); offset != 10 {
		t.Fatalf("offset %d after the commit", offset)
	}
	equal(t, readAll(t, bootstrap, out)[out], []string{"10"})
}

func TestTxnOffsetsVisibleTogether(t *testing.T) {
	ctx := limited(t)
	const rounds = 20
	source, out := topic(t, bootstrap, "together-in", 1), topic(t, bootstrap, "together-out", 1)
	group := unique("together")
	other := client(t, bootstrap)
	session := session(t, group, source)
	ended := make(chan error, 1)
	go func() {
		ended <- func() error {
			for n := 0; n < rounds; {
				fetches := session.PollRecords(ctx, 1)
				if err := fetches.Err(); err != nil {
					return err
				}
				if fetches.NumRecords() == 0 {
					continue
				}
				if err := session.Begin(); err != nil {
					return err
				}
				if err := send(ctx, session.Client(), out, 0, strconv.Itoa(n)); err != nil {
					return err
				}
				if err := end(ctx, session, kgo.TryCommit); err != nil {
					return err
				}
				n++
			}
			return nil
		}()
	}()
	// One at a time: with a transaction always open a reader of stable offsets would get no turn.
	must(t, send(ctx, other, source, 0, "0"))
	n := 0
	must(t, poll(ctx, reader(t, bootstrap, out), func(record *kgo.Record) bool {
		if string(record.Value) != strconv.Itoa(n) {
			t.Fatalf("output %q, want %d", record.Value, n)
		}
		n++
		if offset := committed(t, other, group, source, true); offset != int64(n) {
			t.Fatalf("output %d shows, the offset is %d", n-1, offset)
		}
		if n == rounds {
			return true
		}
		must(t, send(ctx, other, source, 0, strconv.Itoa(n)))
		if strict {
			offset := committed(t, other, group, source, false)
			if end := endOffset(t, other, out); end < offset {
				t.Fatalf("offset %d shows, the output ends at %d", offset, end)
			}
		}
		return false
	}))
	must(t, <-ended)
}

func TestZombieFenced(t *testing.T) {
	ctx := limited(t)
	topic, id := topic(t, bootstrap, "zombie", 1), unique("zombie")
	zombie := transactional(t, bootstrap, id, time.Minute)
	begin(t, zombie)
	must(t, send(ctx, zombie, topic, 0, "of the zombie"))
	heir := transactional(t, bootstrap, id, time.Minute)
	must(t, transaction(ctx, heir, kgo.TryCommit, []string{"of the heir"}, topic))
	err := zombie.EndTransaction(ctx, kgo.TryCommit)
	if !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
		t.Fatalf("the zombie learns %v", err)
	}
	equal(t, readAll(t, bootstrap, topic)[topic], []string{"of the heir"})
}

// goOn is what an application does after a failed transaction: abort it and try the next one, with a new client
// if this one cannot. It returns the client that worked.
func goOn(t *testing.T, cl *kgo.Client, id string, timeout time.Duration, value string, topics ...string) *kgo.Client {
	t.Helper()
	ctx := limited(t)
	err := cl.EndTransaction(ctx, kgo.TryAbort)
	if err == nil {
		err = transaction(ctx, cl, kgo.TryCommit, []string{value}, topics...)
	}
	if err == nil {
		return cl
	}
	t.Logf("a new client is needed: %v", err)
	cl.Close()
	cl = transactional(t, bootstrap, id, timeout)
	must(t, transaction(ctx, cl, kgo.TryCommit, []string{value}, topics...))
	return cl
}

func TestTxnTimeout(t *testing.T) {
	ctx := limited(t)
	source, out := topic(t, bootstrap, "timeout-in", 1), topic(t, bootstrap, "timeout-out", 1)
	id, group, timeout := unique("timeout"), unique("timeout"), 2*time.Second
	producer := transactional(t, bootstrap, id, timeout)
	begin(t, producer)
	must(t, send(ctx, producer, out, 0, "too late"))

	// An offset in the open transaction, by hand: the client itself sends offsets only when it ends one. By requests of
	// the first protocol, in which the group is added first.
	old := client(t, bootstrap, kgo.MaxVersions(kversion.V3_0_0()))
	pid, epoch, err := producer.ProducerID(ctx)
	must(t, err)
	add := kmsg.NewAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = id, pid, epoch, group
	added, err := add.RequestWith(ctx, old)
	must(t, err)
	must(t, kerr.ErrorForCode(added.ErrorCode))
	offsets := kmsg.NewTxnOffsetCommitRequest()
	offsets.TransactionalID, offsets.ProducerID, offsets.ProducerEpoch, offsets.Group = id, pid, epoch, group
	of := kmsg.NewTxnOffsetCommitRequestTopic()
	of.Topic = source
	partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	partition.Offset = 7
	of.Partitions = append(of.Partitions, partition)
	offsets.Topics = append(offsets.Topics, of)
	staged, err := offsets.RequestWith(ctx, old)
	must(t, err)
	must(t, kerr.ErrorForCode(staged.Topics[0].Partitions[0].ErrorCode))

	// A stable offset is not given while one is pending: this returns when the transaction has ended.
	if offset := committed(t, old, group, source, true); offset != -1 {
		t.Fatalf("offset %d of a transaction that timed out", offset)
	}
	if err := producer.EndTransaction(ctx, kgo.TryCommit); err == nil {
		t.Fatal("the commit of a transaction that timed out succeeded")
	}
	goOn(t, producer, id, timeout, "in time", out)
	equal(t, readAll(t, bootstrap, out)[out], []string{"in time"})
	if offset := committed(t, old, group, source, true); offset != -1 {
		t.Fatalf("offset %d of a transaction that timed out", offset)
	}
}

func TestEndTxnCut(t *testing.T) {
	ctx := limited(t)
	relay := newRelay(t)
	a, b := topic(t, relayed, "cut-a", 1), topic(t, relayed, "cut-b", 1)
	producer := transactional(t, relayed, unique("cut"), time.Minute)
	values := []string{"0", "1", "2"}
	for _, value := range values {
		rule := relay.cutResponse(endTxnKey, 1)
		must(t, transaction(ctx, producer, kgo.TryCommit, []string{value}, a, b))
		relay.fired(rule)
	}
	found := readAll(t, relayed, a, b)
	equal(t, found[a], values)
	equal(t, found[b], values)
}

func TestBrokerKilledInTxn(t *testing.T) {
	ctx := limited(t)
	a, b := topic(t, bootstrap, "killed-a", 1), topic(t, bootstrap, "killed-b", 1)
	// Longer than any restart, or Kafka would time it out at once.
	id, timeout := unique("killed"), time.Minute
	expected := []string{"before"}
	producer := transactional(t, bootstrap, id, timeout)
	must(t, transaction(ctx, producer, kgo.TryCommit, []string{"before"}, a, b))

	begin(t, producer)
	must(t, send(ctx, producer, a, 0, "inside"))
	must(t, send(ctx, producer, b, 0, "inside"))
	broker(t, "kill", "main")
	broker(t, "start", "main")
	err := producer.EndTransaction(ctx, kgo.TryCommit)
	if err == nil {
		expected = append(expected, "inside")
	} else {
		t.Logf("the commit after the restart: %v", err)
	}
	goOn(t, producer, id, timeout, "after", a, b)
	expected = append(expected, "after")
	found := readAll(t, bootstrap, a, b)
	equal(t, found[a], expected)
	equal(t, found[b], expected)
}
