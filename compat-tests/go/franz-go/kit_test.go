// Package compat runs the cases of ../../cases.md with franz-go. This file is what they share: clients with short
// timeouts, topics, complete reads, the relay and the broker's life.
package compat

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// API keys, for the relay.
const (
	produceKey = 0
	endTxnKey  = 26
)

var (
	bootstrap = os.Getenv("BOOTSTRAP")
	relayed   = os.Getenv("RELAY_BOOTSTRAP")
	// Promises that Kafka itself does not make are asserted only where they are made.
	strict = os.Getenv("TARGET") == "katomic"
)

func unique(name string) string {
	random := make([]byte, 4)
	if _, err := rand.Read(random); err != nil {
		panic(err)
	}
	return name + "-" + hex.EncodeToString(random)
}

// limited is the context of one case.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// client makes one that is quick to try again, and closes it with the test.
func client(t *testing.T, seed string, more ...kgo.Opt) *kgo.Client {
	t.Helper()
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(seed, ",")...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0),
		kgo.MetadataMinAge(50 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
		kgo.FetchMaxWait(100 * time.Millisecond),
	}
	one, err := kgo.NewClient(append(options, more...)...)
	must(t, err)
	t.Cleanup(one.Close)
	return one
}

func transactional(t *testing.T, seed, id string, timeout time.Duration) *kgo.Client {
	t.Helper()
	return client(t, seed, kgo.TransactionalID(id), kgo.TransactionTimeout(timeout))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func topic(t *testing.T, seed, name string, partitions int32) string {
	t.Helper()
	made := unique(name)
	replicas, err := strconv.ParseInt(os.Getenv("REPLICAS"), 10, 16)
	must(t, err)
	answer, err := kadm.NewClient(client(t, seed)).CreateTopic(limited(t), partitions, int16(replicas), nil, made)
	must(t, errors.Join(err, answer.Err))
	return made
}

// send waits until all are acknowledged.
func send(ctx context.Context, cl *kgo.Client, topic string, partition int32, values ...string) error {
	var records []*kgo.Record
	for _, value := range values {
		records = append(records, &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)})
	}
	return cl.ProduceSync(ctx, records...).FirstErr()
}

func begin(t *testing.T, cl *kgo.Client) {
	t.Helper()
	must(t, cl.BeginTransaction())
}

// transaction runs one over the topics and ends it as told.
func transaction(
	ctx context.Context, cl *kgo.Client, how kgo.TransactionEndTry, values []string, topics ...string,
) error {
	if err := cl.BeginTransaction(); err != nil {
		return err
	}
	for _, topic := range topics {
		if err := send(ctx, cl, topic, 0, values...); err != nil {
			return err
		}
	}
	return cl.EndTransaction(ctx, how)
}

func reader(t *testing.T, seed string, topics ...string) *kgo.Client {
	t.Helper()
	from := map[string]map[int32]kgo.Offset{}
	for _, topic := range topics {
		from[topic] = map[int32]kgo.Offset{0: kgo.NewOffset().AtStart()}
	}
	return client(t, seed, kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
}

// poll offers every record, in order, until one is the last.
func poll(ctx context.Context, cl *kgo.Client, last func(*kgo.Record) bool) error {
	for {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("the records awaited did not come: %w", err)
		}
		for _, record := range fetches.Records() {
			if last(record) {
				return nil
			}
		}
	}
}

// readAll returns the values of each topic (one partition each) as a fresh read_committed reader sees them,
// complete. A record is put behind everything else in each, and the reader goes on until it has met all of those:
// so the end is told without end offsets, which count control batches on Kafka only.
func readAll(t *testing.T, seed string, topics ...string) map[string][]string {
	t.Helper()
	ctx := limited(t)
	end := unique("end")
	marker := client(t, seed)
	for _, topic := range topics {
		must(t, send(ctx, marker, topic, 0, end))
	}
	found, open := map[string][]string{}, len(topics)
	must(t, poll(ctx, reader(t, seed, topics...), func(record *kgo.Record) bool {
		switch value := string(record.Value); {
		case value == end:
			open--
		case !strings.HasPrefix(value, "end-"):
			found[record.Topic] = append(found[record.Topic], value)
		}
		return open == 0
	}))
	return found
}

// endOffset is the end of the topic's first partition for a read_committed reader.
func endOffset(t *testing.T, cl *kgo.Client, topic string) int64 {
	t.Helper()
	offsets, err := kadm.NewClient(cl).ListCommittedOffsets(limited(t), topic)
	must(t, err)
	offset, _ := offsets.Lookup(topic, 0)
	must(t, offset.Err)
	return offset.Offset
}

// committed is the group's offset, -1 if it has none. A stable one is waited for while one is pending.
func committed(t *testing.T, cl *kgo.Client, group, topic string, stable bool) int64 {
	t.Helper()
	ctx := limited(t)
	request := kmsg.NewOffsetFetchRequest()
	request.Group = group
	request.RequireStable = stable
	of := kmsg.NewOffsetFetchRequestTopic()
	of.Topic, of.Partitions = topic, []int32{0}
	request.Topics = append(request.Topics, of)
	for {
		response, err := request.RequestWith(ctx, cl)
		must(t, err)
		must(t, kerr.ErrorForCode(response.ErrorCode))
		partition := response.Topics[0].Partitions[0]
		err = kerr.ErrorForCode(partition.ErrorCode)
		if !errors.Is(err, kerr.UnstableOffsetCommit) {
			must(t, err)
			return partition.Offset
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("the offset did not become stable")
		}
	}
}

// relay commands the one in front of the second broker; see relay.py.
type relay struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func newRelay(t *testing.T) *relay {
	t.Helper()
	conn, err := net.Dial("tcp", os.Getenv("RELAY_CONTROL"))
	must(t, err)
	one := &relay{t, conn, bufio.NewReader(conn)}
	one.ask("clear")
	t.Cleanup(func() {
		one.ask("clear")
		conn.Close()
	})
	return one
}

func (r *relay) ask(command string) string {
	r.t.Helper()
	_, err := fmt.Fprintln(r.conn, command)
	must(r.t, err)
	answer, err := r.in.ReadString('\n')
	must(r.t, err)
	value, ok := strings.CutPrefix(strings.TrimSpace(answer), "ok")
	if !ok {
		r.t.Fatalf("relay: %s -> %s", command, answer)
	}
	return strings.TrimSpace(value)
}

// arm disturbs the nth frame of the API from now on; it returns the rule's number.
func (r *relay) arm(action, side string, api, nth int) string {
	r.t.Helper()
	return r.ask(fmt.Sprintf("arm %s %s %d %d", action, side, api, nth))
}

// cutResponse cuts the connection in place of the nth answer from now on to the API.
func (r *relay) cutResponse(api, nth int) string {
	r.t.Helper()
	return r.arm("cut", "response", api, nth)
}

// fired waits until the rule has met its frame, so that a case cannot pass without its disturbance.
func (r *relay) fired(rule string) {
	r.t.Helper()
	r.ask("wait " + rule + " 30")
}

// broker commands ../../broker.sh: a whole cluster, or one node of it.
func broker(t *testing.T, command ...string) {
	t.Helper()
	must(t, runBroker(command...))
}

func runBroker(command ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	output, err := exec.CommandContext(ctx, os.Getenv("BROKER"), command...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("broker.sh %v: %w: %s", command, err, output)
	}
	return nil
}
