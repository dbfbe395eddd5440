package compat

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
)

func begin(t *testing.T, one sarama.SyncProducer) {
	t.Helper()
	must(t, one.BeginTxn())
}

func TestTxnCommit(t *testing.T) {
	a, b := topic(t, bootstrap, "commit-a", 1), topic(t, bootstrap, "commit-b", 1)
	one := transactional(t, bootstrap, unique("commit"), deadline)
	begin(t, one)
	must(t, send(one, a, "1", "2", "3"))
	must(t, send(one, b, "4", "5"))
	other := client(t, bootstrap)
	if endOffset(t, other, a) != 0 || endOffset(t, other, b) != 0 {
		t.Fatal("visible before the commit")
	}
	must(t, one.CommitTxn())
	found := readAll(t, bootstrap, a, b)
	equal(t, found[a], []string{"1", "2", "3"})
	equal(t, found[b], []string{"4", "5"})

	must(t, transaction(one, true, []string{"6"}, a))
	equal(t, readAll(t, bootstrap, a)[a], []string{"1", "2", "3", "6"})
}

func TestTxnAbort(t *testing.T) {
	topic := topic(t, bootstrap, "abort", 1)
	one := transactional(t, bootstrap, unique("abort"), deadline)
	for _, value := range []string{"dropped-1", "kept", "dropped-2"} {
		must(t, transaction(one, value == "kept", []string{value}, topic))
	}
	equal(t, readAll(t, bootstrap, topic)[topic], []string{"kept"})
}

func TestTxnEmpty(t *testing.T) {
	topic := topic(t, bootstrap, "empty", 1)
	one := transactional(t, bootstrap, unique("empty"), deadline)
	steps := []string{"commit", "abort", "full-1", "commit", "abort", "abort", "full-2", "abort", "commit"}
	for _, step := range steps {
		begin(t, one)
		if strings.HasPrefix(step, "full") {
			must(t, send(one, topic, step))
		}
		if step == "abort" {
			must(t, one.AbortTxn())
		} else {
			must(t, one.CommitTxn())
		}
	}
	equal(t, readAll(t, bootstrap, topic)[topic], []string{"full-1", "full-2"})
}

// commitsAndAborts alternates, and returns what was committed.
func commitsAndAborts(t *testing.T, topic string, rounds int) []string {
	t.Helper()
	one := transactional(t, bootstrap, unique("alternating"), deadline)
	var kept []string
	for n := range rounds {
		values := numbered(fmt.Sprintf("%d-", n), 3)
		must(t, transaction(one, n%2 == 1, values, topic))
		if n%2 == 1 {
			kept = append(kept, values...)
		}
	}
	return kept
}

func TestAbortedNeverVisibleTailing(t *testing.T) {
	topic := topic(t, bootstrap, "tailing", 1)
	tailing, ended := make(chan struct{}), make(chan error, 1)
	var seen []string
	ctx := limited(t)
	go func() {
		ended <- poll(t, ctx, bootstrap, func(message *sarama.ConsumerMessage) bool {
			if seen = append(seen, string(message.Value)); len(seen) == 1 {
				close(tailing)
			}
			return string(message.Value) == "last"
		}, topic)
	}()
	plain := producer(t, bootstrap)
	must(t, send(plain, topic, "first"))
	select {
	case <-tailing:
	case err := <-ended:
		t.Fatal(err)
	}
	want := append([]string{"first"}, commitsAndAborts(t, topic, 20)...)
	must(t, send(plain, topic, "last"))
	must(t, <-ended)
	equal(t, seen, append(want, "last"))
}

func TestAbortedNeverVisibleFresh(t *testing.T) {
	topic := topic(t, bootstrap, "fresh", 1)
	kept := commitsAndAborts(t, topic, 20)
	equal(t, readAll(t, bootstrap, topic)[topic], kept)
}

func TestMultiTopicWholeOrAbsent(t *testing.T) {
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
	one, plain := transactional(t, bootstrap, unique("multi"), deadline), producer(t, bootstrap)
	ends := client(t, bootstrap)
	ended := make(chan error, 1)
	go func() {
		ended <- func() error {
			for n := range rounds {
				if err := transaction(one, kept(n), numbered(fmt.Sprintf("%d:", n), each), topics...); err != nil {
					return err
				}
			}
			for _, topic := range topics {
				if err := send(plain, topic, "last"); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	seen, open, newest := map[string][]string{}, len(topics), -1
	must(t, poll(t, limited(t), bootstrap, func(message *sarama.ConsumerMessage) bool {
		value := string(message.Value)
		if value == "last" {
			open--
			return open == 0
		}
		seen[message.Topic] = append(seen[message.Topic], value)
		n, err := strconv.Atoi(strings.Split(value, ":")[0])
		must(t, err)
		if strict && n > newest {
			newest = n
			for _, topic := range topics {
				if end := endOffset(t, ends, topic); end < each*upto[n] {
					t.Fatalf("transaction %d shows in part: %s ends at %d", n, topic, end)
				}
			}
		}
		return false
	}, topics...))
	must(t, <-ended)
	for _, topic := range topics {
		equal(t, seen[topic], whole)
	}
}

func offsets(topic string, offset int64) map[string][]*sarama.PartitionOffsetMetadata {
	return map[string][]*sarama.PartitionOffsetMetadata{
		topic: {{Partition: 0, Offset: offset, LeaderEpoch: -1}},
	}
}

func TestTxnOffsets(t *testing.T) {
	source, out := topic(t, bootstrap, "offsets-in", 1), topic(t, bootstrap, "offsets-out", 1)
	group := unique("offsets")
	other := client(t, bootstrap)
	must(t, send(producer(t, bootstrap), source, numbered("", 10)...))
	one := transactional(t, bootstrap, unique("offsets"), deadline)
	// The offsets carry the generation of a live member.
	held := joined(t, group, source)
	metadata := func() *sarama.ConsumerGroupMetadata {
		return sarama.NewConsumerGroupMetadataFromSession(held.session(t), group, nil)
	}
	transform := func(upto int64) {
		begin(t, one)
		must(t, send(one, out, strconv.FormatInt(upto, 10)))
		must(t, one.AddOffsetsToTxnWithGroupMetadata(offsets(source, upto), metadata()))
		if offset := committed(t, other, group, source, false); offset != -1 {
			t.Fatalf("offset %d before the commit", offset)
		}
	}
	transform(4)
	must(t, one.AbortTxn())
	if offset := committed(t, other, group, source, true); offset != -1 {
		t.Fatalf("offset %d after the abort", offset)
	}
	transform(10)
	must(t, one.CommitTxn())
	if offset := committed(t, other, group, source, true); offset != 10 {
		t.Fatalf("offset %d after the commit", offset)
	}
	equal(t, readAll(t, bootstrap, out)[out], []string{"10"})
}

func TestTxnOffsetsVisibleTogether(t *testing.T) {
	const rounds = 20
	source, out := topic(t, bootstrap, "together-in", 1), topic(t, bootstrap, "together-out", 1)
	group := unique("together")
	other := client(t, bootstrap)
	one := transactional(t, bootstrap, unique("together"), deadline)
	turn, ended := make(chan struct{}, 1), make(chan error, 1)
	turn <- struct{}{}
	ctx := limited(t)
	go func() {
		ended <- func() error {
			for n := range rounds {
				// One at a time: with a transaction always open a reader of stable offsets would get no turn.
				select {
				case <-turn:
				case <-ctx.Done():
					return ctx.Err()
				}
				if err := one.BeginTxn(); err != nil {
					return err
				}
				if err := send(one, out, strconv.Itoa(n)); err != nil {
					return err
				}
				if err := one.AddOffsetsToTxn(offsets(source, int64(n+1)), group); err != nil {
					return err
				}
				if err := one.CommitTxn(); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	n := 0
	must(t, poll(t, ctx, bootstrap, func(message *sarama.ConsumerMessage) bool {
		if string(message.Value) != strconv.Itoa(n) {
			t.Fatalf("output %q, want %d", message.Value, n)
		}
		n++
		if offset := committed(t, other, group, source, true); offset != int64(n) {
			t.Fatalf("output %d shows, the offset is %d", n-1, offset)
		}
		if n == rounds {
			return true
		}
		turn <- struct{}{}
		if strict {
			offset := committed(t, other, group, source, false)
			if end := endOffset(t, other, out); end < offset {
				t.Fatalf("offset %d shows, the output ends at %d", offset, end)
			}
		}
		return false
	}, out))
	must(t, <-ended)
}

func TestZombieFenced(t *testing.T) {
	topic, id := topic(t, bootstrap, "zombie", 1), unique("zombie")
	zombie := transactional(t, bootstrap, id, deadline)
	begin(t, zombie)
	must(t, send(zombie, topic, "of the zombie"))
	heir := transactional(t, bootstrap, id, deadline)
	must(t, transaction(heir, true, []string{"of the heir"}, topic))
	err := zombie.CommitTxn()
	if !errors.Is(err, sarama.ErrProducerFenced) && !errors.Is(err, sarama.ErrInvalidProducerEpoch) {
		t.Fatalf("the zombie learns %v", err)
	}
	if !is(zombie, sarama.ProducerTxnFlagFatalError) {
		t.Fatalf("the zombie may go on: %v", zombie.TxnStatus())
	}
	equal(t, readAll(t, bootstrap, topic)[topic], []string{"of the heir"})
}

func TestTxnTimeout(t *testing.T) {
	relay := newRelay(t)
	source, out := topic(t, relayed, "timeout-in", 1), topic(t, relayed, "timeout-out", 1)
	id, group, timeout := unique("timeout"), unique("timeout"), 2*time.Second
	one := transactional(t, relayed, id, timeout)
	begin(t, one)
	must(t, send(one, out, "too late"))
	must(t, one.AddOffsetsToTxn(offsets(source, 7), group))

	// The client sends the offsets with its commit: so its EndTxn is held until the transaction has ended by itself.
	held := relay.arm("hold", "request", endTxnKey, 1)
	ended := make(chan error, 1)
	go func() { ended <- commit(one) }()
	relay.fired(held)
	// A stable offset is not given while one is pending: this returns when the transaction has ended.
	other := client(t, relayed)
	if offset := committed(t, other, group, source, true); offset != -1 {
		t.Fatalf("offset %d of a transaction that timed out", offset)
	}
	relay.ask("release " + held)
	err := <-ended
	if err == nil {
		t.Fatal("the commit of a transaction that timed out succeeded")
	}
	one = recovered(t, one, relayed, id, timeout, err)
	must(t, transaction(one, true, []string{"in time"}, out))
	equal(t, readAll(t, relayed, out)[out], []string{"in time"})
	if offset := committed(t, other, group, source, true); offset != -1 {
		t.Fatalf("offset %d of a transaction that timed out", offset)
	}
}

func TestEndTxnCut(t *testing.T) {
	relay := newRelay(t)
	a, b := topic(t, relayed, "cut-a", 1), topic(t, relayed, "cut-b", 1)
	one := transactional(t, relayed, unique("cut"), deadline)
	values := []string{"0", "1", "2"}
	for _, value := range values {
		rule := relay.arm("cut", "response", endTxnKey, 1)
		must(t, transaction(one, true, []string{value}, a, b))
		relay.fired(rule)
	}
	found := readAll(t, relayed, a, b)
	equal(t, found[a], values)
	equal(t, found[b], values)
}

func TestBrokerKilledInTxn(t *testing.T) {
	a, b := topic(t, bootstrap, "killed-a", 1), topic(t, bootstrap, "killed-b", 1)
	// Longer than any restart, or Kafka would time it out at once.
	id, timeout := unique("killed"), deadline
	expected := []string{"before"}
	one := transactional(t, bootstrap, id, timeout)
	must(t, transaction(one, true, []string{"before"}, a, b))

	begin(t, one)
	must(t, send(one, a, "inside"))
	must(t, send(one, b, "inside"))
	broker(t, "kill", "main")
	broker(t, "start", "main")
	if err := commit(one); err == nil {
		expected = append(expected, "inside")
	} else {
		one = recovered(t, one, bootstrap, id, timeout, err)
	}
	must(t, transaction(one, true, []string{"after"}, a, b))
	expected = append(expected, "after")
	found := readAll(t, bootstrap, a, b)
	equal(t, found[a], expected)
	equal(t, found[b], expected)
}
