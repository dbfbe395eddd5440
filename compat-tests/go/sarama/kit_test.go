// Package compat runs the cases of ../../cases.md with sarama. This file is what they share: clients with short
// timeouts, topics, complete reads, the relay and the brokers' life.
package compat

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
)

// API keys, for the relay.
const (
	produceKey = 0
	endTxnKey  = 26
)

const deadline = time.Minute

var (
	bootstrap = os.Getenv("BOOTSTRAP")
	relayed   = os.Getenv("RELAY_BOOTSTRAP")
	// Promises that Kafka itself does not make are asserted only where they are made.
	strict = os.Getenv("TARGET") == "katomic"
)

// SARAMA_LOG=1 shows what the library does.
func init() {
	if os.Getenv("SARAMA_LOG") != "" {
		sarama.Logger = log.New(os.Stderr, "", log.Ltime|log.Lmicroseconds)
	}
}

func unique(name string) string {
	random := make([]byte, 4)
	if _, err := rand.Read(random); err != nil {
		panic(err)
	}
	return name + "-" + hex.EncodeToString(random)
}

// limited is the context of one case.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*deadline)
	t.Cleanup(cancel)
	return ctx
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

func numbered(prefix string, count int) []string {
	var values []string
	for i := range count {
		values = append(values, prefix+strconv.Itoa(i))
	}
	return values
}

func addresses(seed string) []string { return strings.Split(seed, ",") }

// config is of a client that speaks the newest versions it knows, is quick to try again, and goes on trying for
// longer than any change of a leader takes.
func config() *sarama.Config {
	one := sarama.NewConfig()
	one.Version = sarama.MaxVersion
	one.Net.DialTimeout = 5 * time.Second
	one.Net.ReadTimeout = 15 * time.Second
	one.Net.WriteTimeout = 15 * time.Second
	// Few, as the library has it by default: it looks for the leader of __consumer_offsets while no coordinator is
	// available, also where there is no such topic, and waits for all of these retries.
	one.Metadata.Retry.Max = 5
	one.Metadata.Retry.Backoff = 100 * time.Millisecond
	one.Admin.Timeout = 30 * time.Second
	one.Admin.Retry.Max = 50
	one.Producer.Partitioner = sarama.NewManualPartitioner
	one.Producer.RequiredAcks = sarama.WaitForAll
	one.Producer.Return.Successes = true
	one.Producer.Retry.Max = 200
	one.Producer.Retry.Backoff = 100 * time.Millisecond
	one.Producer.Idempotent = true
	one.Net.MaxOpenRequests = 1
	one.Producer.Transaction.Retry.Max = 200
	one.Producer.Transaction.Retry.Backoff = 50 * time.Millisecond
	one.Consumer.IsolationLevel = sarama.ReadCommitted
	one.Consumer.MaxWaitTime = 100 * time.Millisecond
	one.Consumer.Retry.Backoff = 100 * time.Millisecond
	one.Consumer.Offsets.Initial = sarama.OffsetOldest
	one.Consumer.Offsets.AutoCommit.Enable = false
	one.Consumer.Offsets.Retry.Max = 20
	one.Consumer.Group.Session.Timeout = 6 * time.Second
	one.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	one.Consumer.Group.Rebalance.Timeout = 6 * time.Second
	one.Consumer.Group.Rebalance.Retry.Max = 50
	one.Consumer.Group.Rebalance.Retry.Backoff = 200 * time.Millisecond
	one.Consumer.Return.Errors = true
	return one
}

func client(t *testing.T, seed string) sarama.Client {
	t.Helper()
	one, err := sarama.NewClient(addresses(seed), config())
	must(t, err)
	t.Cleanup(func() { one.Close() })
	return one
}

func producer(t *testing.T, seed string, change ...func(*sarama.Config)) sarama.SyncProducer {
	t.Helper()
	one, err := newProducer(seed, change...)
	must(t, err)
	t.Cleanup(func() { one.Close() })
	return one
}

func newProducer(seed string, change ...func(*sarama.Config)) (sarama.SyncProducer, error) {
	how := config()
	for _, one := range change {
		one(how)
	}
	one, err := sarama.NewSyncProducer(addresses(seed), how)
	return &closedOnce{SyncProducer: one}, err
}

// closedOnce may be closed by a case and by its clean-up: the library's own panics the second time.
type closedOnce struct {
	sarama.SyncProducer
	once sync.Once
}

func (p *closedOnce) Close() (err error) {
	p.once.Do(func() { err = p.SyncProducer.Close() })
	return err
}

// transactional has its producer id.
func transactional(t *testing.T, seed, id string, timeout time.Duration) sarama.SyncProducer {
	t.Helper()
	return producer(t, seed, func(how *sarama.Config) {
		how.Producer.Transaction.ID = id
		how.Producer.Transaction.Timeout = timeout
	})
}

func topic(t *testing.T, seed, name string, partitions int32) string {
	t.Helper()
	made := unique(name)
	replicas, err := strconv.ParseInt(os.Getenv("REPLICAS"), 10, 16)
	must(t, err)
	admin, err := sarama.NewClusterAdmin(addresses(seed), config())
	must(t, err)
	defer admin.Close()
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: int16(replicas)}
	must(t, admin.CreateTopic(made, detail, false))
	return made
}

func messages(topic string, partition int32, values ...string) []*sarama.ProducerMessage {
	var all []*sarama.ProducerMessage
	for _, value := range values {
		all = append(all, &sarama.ProducerMessage{
			Topic: topic, Partition: partition, Value: sarama.StringEncoder(value),
		})
	}
	return all
}

// send waits until all are acknowledged.
func send(one sarama.SyncProducer, topic string, values ...string) error {
	return one.SendMessages(messages(topic, 0, values...))
}

func is(one sarama.SyncProducer, flag sarama.ProducerTxnStatusFlag) bool {
	return one.TxnStatus()&flag != 0
}

// commit asks again for as long as the client does not say that the transaction must be aborted or the producer
// replaced: what the library's example of transactions does.
func commit(one sarama.SyncProducer) error {
	end := time.Now().Add(deadline)
	for {
		err := one.CommitTxn()
		if err == nil || time.Now().After(end) ||
			is(one, sarama.ProducerTxnFlagAbortableError) || is(one, sarama.ProducerTxnFlagFatalError) {
			return err
		}
	}
}

// transaction runs one over the topics and ends it as told.
func transaction(one sarama.SyncProducer, committed bool, values []string, topics ...string) error {
	if err := one.BeginTxn(); err != nil {
		return err
	}
	for _, topic := range topics {
		if err := send(one, topic, values...); err != nil {
			return err
		}
	}
	if committed {
		return commit(one)
	}
	return one.AbortTxn()
}

// recovered is what an application does after a failed transaction, by the state that the client says it is in:
// it aborts, or starts again with a new producer if the error is fatal.
func recovered(
	t *testing.T, one sarama.SyncProducer, seed, id string, timeout time.Duration, failure error,
) sarama.SyncProducer {
	t.Helper()
	t.Logf("the transaction failed: %v (%v)", failure, one.TxnStatus())
	if !is(one, sarama.ProducerTxnFlagFatalError) {
		err := one.AbortTxn()
		if err == nil {
			return one
		}
		t.Logf("the abort failed: %v (%v)", err, one.TxnStatus())
	}
	if !is(one, sarama.ProducerTxnFlagFatalError) {
		t.Fatalf("an error the application cannot act on: %v", failure)
	}
	one.Close()
	return transactional(t, seed, id, timeout)
}

// poll offers every record of the topics' first partitions, in order within each, until one is the last.
func poll(t *testing.T, ctx context.Context, seed string, last func(*sarama.ConsumerMessage) bool, topics ...string) error {
	t.Helper()
	consumer, err := sarama.NewConsumerFromClient(client(t, seed))
	if err != nil {
		return err
	}
	var trouble atomic.Value
	all := make(chan *sarama.ConsumerMessage)
	stopped := make(chan struct{})
	defer close(stopped)
	for _, topic := range topics {
		part, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
		if err != nil {
			return err
		}
		defer part.AsyncClose()
		// The client goes on by itself after an error; it matters only if nothing comes of that.
		go func() {
			for err := range part.Errors() {
				trouble.Store(err)
			}
		}()
		go func() {
			for message := range part.Messages() {
				select {
				case all <- message:
				case <-stopped:
					// Whatever was fetched already is taken off, so that the consumer can close.
				}
			}
		}()
	}
	for {
		select {
		case message := <-all:
			if last(message) {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("the records awaited did not come; the last error: %v", trouble.Load())
		}
	}
}

// readAll returns the values of each topic (one partition each) as a fresh read_committed reader sees them,
// complete. A record is put behind everything else in each, and the reader goes on until it has met all of those:
// so the end is told without end offsets, which count control batches on Kafka only.
func readAll(t *testing.T, seed string, topics ...string) map[string][]string {
	t.Helper()
	end := unique("end")
	marker := producer(t, seed)
	for _, topic := range topics {
		must(t, send(marker, topic, end))
	}
	found, open := map[string][]string{}, len(topics)
	must(t, poll(t, limited(t), seed, func(message *sarama.ConsumerMessage) bool {
		switch value := string(message.Value); {
		case value == end:
			open--
		case !strings.HasPrefix(value, "end-"):
			found[message.Topic] = append(found[message.Topic], value)
		}
		return open == 0
	}, topics...))
	return found
}

// endOffset is the end of the topic's first partition for a read_committed reader.
func endOffset(t *testing.T, cl sarama.Client, topic string) int64 {
	t.Helper()
	leader, err := cl.Leader(topic, 0)
	must(t, err)
	request := sarama.NewOffsetRequest(cl.Config().Version)
	request.IsolationLevel = sarama.ReadCommitted
	request.AddBlock(topic, 0, sarama.OffsetNewest, 1)
	response, err := leader.GetAvailableOffsets(request)
	must(t, err)
	block := response.GetBlock(topic, 0)
	if block == nil || block.Err != sarama.ErrNoError {
		t.Fatalf("the end of %s: %+v", topic, block)
	}
	return block.Offset
}

// fetched asks once for the group's offset; -1 if it has none.
func fetched(cl sarama.Client, group, topic string, stable bool) (int64, error) {
	coordinator, err := cl.Coordinator(group)
	if err != nil {
		return 0, err
	}
	request := sarama.NewOffsetFetchRequest(cl.Config().Version, group, map[string][]int32{topic: {0}})
	request.RequireStable = stable
	response, err := coordinator.FetchOffset(request)
	if err == nil && response.GroupError() != sarama.ErrNoError {
		err = response.GroupError()
	}
	if err != nil {
		_ = coordinator.Close()
		_ = cl.RefreshCoordinator(group)
		return 0, err
	}
	block := response.GetGroupBlock(group, topic, 0)
	if block == nil {
		return 0, errors.New("no answer for the partition")
	}
	if block.Err != sarama.ErrNoError {
		return 0, block.Err
	}
	return block.Offset, nil
}

// committed is the group's offset, -1 if it has none. A stable one is waited for while one is pending, and every
// error that a client retries is retried.
func committed(t *testing.T, cl sarama.Client, group, topic string, stable bool) int64 {
	t.Helper()
	end := time.Now().Add(deadline)
	for {
		offset, err := fetched(cl, group, topic, stable)
		if err == nil {
			return offset
		}
		if time.Now().After(end) {
			t.Fatalf("the offset did not become stable: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// relay commands the one in front of the second cluster; see relay.py.
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
