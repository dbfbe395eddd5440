package compat

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func needsThree(t *testing.T) {
	t.Helper()
	if os.Getenv("NODES") != "3" {
		t.Skip("needs three nodes")
	}
}

// restored gives the next case all nodes, whatever happens.
func restored(t *testing.T, cluster string) {
	t.Cleanup(func() { must(t, runBroker("start", cluster)) })
}

// patient is the context of a case that waits for a new leader more than once.
func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// application writes transactions over two topics, each again under another value for as long as it fails.
type application struct {
	t         *testing.T
	seed, id  string
	topics    []string
	one       *kgo.Client
	committed []string
}

func newApplication(t *testing.T, seed string) *application {
	t.Helper()
	id := unique("failover")
	topics := []string{topic(t, seed, "failover-a", 1), topic(t, seed, "failover-b", 1)}
	return &application{t: t, seed: seed, id: id, topics: topics, one: transactional(t, seed, id, time.Minute)}
}

// work returns how many attempts failed.
func (a *application) work(value string, beforeCommit ...func()) int {
	a.t.Helper()
	ctx := patient(a.t)
	for failures := range 4 {
		attempt := fmt.Sprintf("%s.%d", value, failures)
		asked, err := a.try(ctx, attempt, failures == 0, beforeCommit)
		if err == nil {
			a.committed = append(a.committed, attempt)
			return failures
		}
		a.t.Logf("%s failed: %v", attempt, err)
		a.recover(ctx)
		// Not an answer of the broker: the outcome is unknown until the abort, or a new client, has ended whatever was
		// open. Now the application can look.
		var told *kerr.Error
		if asked && !errors.As(err, &told) && a.isThere(attempt) {
			a.committed = append(a.committed, attempt)
			return failures
		}
	}
	a.t.Fatal("the application cannot go on")
	return 0
}

func (a *application) try(ctx context.Context, attempt string, first bool, beforeCommit []func()) (asked bool, err error) {
	if err := a.one.BeginTransaction(); err != nil {
		return false, err
	}
	for _, topic := range a.topics {
		if err := send(ctx, a.one, topic, 0, attempt); err != nil {
			return false, err
		}
	}
	if first {
		for _, step := range beforeCommit {
			step()
		}
	}
	return true, a.one.EndTransaction(ctx, kgo.TryCommit)
}

// recover aborts, or makes a new client if this one cannot.
func (a *application) recover(ctx context.Context) {
	a.t.Helper()
	if err := a.one.AbortBufferedRecords(ctx); err == nil {
		if err = a.one.EndTransaction(ctx, kgo.TryAbort); err == nil {
			return
		}
		a.t.Logf("the abort failed: %v", err)
	}
	a.one.Close()
	a.one = transactional(a.t, a.seed, a.id, time.Minute)
}

func (a *application) isThere(attempt string) bool {
	a.t.Helper()
	found := readAll(a.t, a.seed, a.topics...)
	count := 0
	for _, topic := range a.topics {
		for _, value := range found[topic] {
			if value == attempt {
				count++
			}
		}
	}
	if count == 1 {
		a.t.Fatalf("%s is there in part", attempt)
	}
	return count == 2
}

func (a *application) holds() {
	a.t.Helper()
	found := readAll(a.t, a.seed, a.topics...)
	for _, topic := range a.topics {
		equal(a.t, found[topic], a.committed)
	}
}

func beforeCommit(t *testing.T, how string) {
	needsThree(t)
	restored(t, "main")
	one := newApplication(t, bootstrap)
	one.work("before")
	struck := make(chan error, 1)
	one.work("inside", func() {
		go func() { struck <- runBroker(how, "main", "leader") }()
		if how == "kill" {
			must(t, <-struck)
			struck <- nil
		}
	})
	must(t, <-struck)
	one.work("after")
	one.holds()
}

func TestLeaderKilledBeforeCommit(t *testing.T)  { beforeCommit(t, "kill") }
func TestLeaderStoppedBeforeCommit(t *testing.T) { beforeCommit(t, "stop") }

func betweenTxns(t *testing.T, how string) {
	needsThree(t)
	restored(t, "main")
	one := newApplication(t, bootstrap)
	one.work("before")
	broker(t, how, "main", "leader")
	if failures := one.work("first"); strict && how == "stop" && failures > 0 {
		t.Fatal("a hand-over doomed an idle producer")
	}
	one.work("after")
	one.holds()
}

func TestLeaderKilledBetweenTxns(t *testing.T)  { betweenTxns(t, "kill") }
func TestLeaderStoppedBetweenTxns(t *testing.T) { betweenTxns(t, "stop") }

func aroundEndTxn(t *testing.T, how, side string) {
	needsThree(t)
	restored(t, "relayed")
	relay := newRelay(t)
	one := newApplication(t, relayed)
	one.work("before")
	rule := relay.arm("hold", side, endTxnKey, 1)
	struck := make(chan error, 1)
	go func() {
		relay.fired(rule)
		err := runBroker(how, "relayed", "leader")
		relay.ask("cut " + rule)
		struck <- err
	}()
	failures := one.work("inside")
	must(t, <-struck)
	// It had been executed, so the client must not be told otherwise.
	if side == "response" && failures > 0 {
		t.Fatal("a commit that was executed was reported as failed")
	}
	one.work("after")
	one.holds()
}

func TestLeaderKilledBeforeEndTxn(t *testing.T) { aroundEndTxn(t, "kill", "request") }
func TestLeaderKilledAfterEndTxn(t *testing.T)  { aroundEndTxn(t, "kill", "response") }
func TestLeaderStoppedAfterEndTxn(t *testing.T) { aroundEndTxn(t, "stop", "response") }

// reader is a member whose every record is committed before it counts as processed.
type groupReader struct {
	lock      sync.Mutex
	processed map[string]int
	uncertain map[string]bool
	committed map[int32]int64
	fenced    bool
}

// run polls until the context ends; any number of members may share it.
func (g *groupReader) run(ctx context.Context, t *testing.T, one *member) {
	for ctx.Err() == nil {
		turn, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		fetches := one.PollRecords(turn, 10)
		cancel()
		fetches.EachError(func(_ string, _ int32, err error) { g.note(err) })
		for _, record := range fetches.Records() {
			err := one.CommitRecords(ctx, record)
			g.note(err)
			g.lock.Lock()
			if err == nil {
				g.processed[string(record.Value)]++
				g.committed[record.Partition] = record.Offset + 1
			} else {
				// Perhaps executed: then nobody reads the record again.
				g.uncertain[string(record.Value)] = true
			}
			g.lock.Unlock()
		}
		one.AllowRebalance()
	}
}

func (g *groupReader) note(err error) {
	g.lock.Lock()
	defer g.lock.Unlock()
	g.fenced = g.fenced || errors.Is(err, kerr.FencedInstanceID)
}

func (g *groupReader) until(ctx context.Context, t *testing.T, what string, wanted []string) {
	t.Helper()
	for {
		g.lock.Lock()
		missing := 0
		for _, value := range wanted {
			if g.processed[value] == 0 && !g.uncertain[value] {
				missing++
			}
		}
		g.lock.Unlock()
		if missing == 0 {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: %d missing", what, missing)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// watch asks for the group's offsets all the time: an answer may be late or an error, never less than was committed.
func (g *groupReader) watch(ctx context.Context, cl *kgo.Client, group, topic string) error {
	answers := 0
	for ctx.Err() == nil {
		g.lock.Lock()
		known := map[int32]int64{}
		for partition, offset := range g.committed {
			known[partition] = offset
		}
		g.lock.Unlock()
		request := kmsg.NewOffsetFetchRequest()
		request.Group = group
		of := kmsg.NewOffsetFetchRequestTopic()
		of.Topic, of.Partitions = topic, []int32{0, 1, 2, 3}
		request.Topics = append(request.Topics, of)
		turn, cancel := context.WithTimeout(ctx, 5*time.Second)
		response, err := request.RequestWith(turn, cl)
		cancel()
		if err != nil || response.ErrorCode != 0 || len(response.Topics) == 0 {
			continue
		}
		for _, one := range response.Topics[0].Partitions {
			if one.ErrorCode != 0 {
				continue
			}
			answers++
			if least, ok := known[one.Partition]; ok && one.Offset < least {
				return fmt.Errorf("partition %d: told %d when %d was committed", one.Partition, one.Offset, least)
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	if answers == 0 {
		return errors.New("no answer")
	}
	return nil
}

func fill(ctx context.Context, t *testing.T, topic, label string) []string {
	t.Helper()
	one := client(t, bootstrap)
	var wanted []string
	for p := range int32(partitions) {
		values := numbered(fmt.Sprintf("%s:%d:", label, p), 5)
		must(t, send(ctx, one, topic, p, values...))
		wanted = append(wanted, values...)
	}
	return wanted
}

func newGroupReader() *groupReader {
	return &groupReader{processed: map[string]int{}, uncertain: map[string]bool{}, committed: map[int32]int64{}}
}

func groupSurvives(t *testing.T, how string) {
	needsThree(t)
	restored(t, "main")
	ctx := patient(t)
	topic, group := topic(t, bootstrap, "survivor", partitions), unique("survivor")
	running, stop := context.WithCancel(ctx)
	defer stop()
	one, state := join(t, group, topic), newGroupReader()
	ended, watched, struck := make(chan struct{}), make(chan error, 1), make(chan error, 1)
	go func() { state.run(running, t, one); close(ended) }()
	wanted := fill(ctx, t, topic, "one")
	state.until(ctx, t, "all is read before", wanted)
	other := client(t, bootstrap)
	go func() { watched <- state.watch(running, other, group, topic) }()
	go func() { struck <- runBroker(how, "main", "leader") }()
	wanted = append(wanted, fill(ctx, t, topic, "two")...)
	state.until(ctx, t, "all is read through the change", wanted)
	must(t, <-struck)
	wanted = append(wanted, fill(ctx, t, topic, "three")...)
	state.until(ctx, t, "all is read after", wanted)
	stop()
	must(t, <-watched)
	<-ended
	for value, times := range state.processed {
		if times > 1 {
			t.Fatalf("%s was committed and read again", value)
		}
	}
	one.leave()
}

func TestGroupSurvivesLeaderKill(t *testing.T) { groupSurvives(t, "kill") }
func TestGroupSurvivesLeaderStop(t *testing.T) { groupSurvives(t, "stop") }

func TestStaticMembersSurviveLeaderKill(t *testing.T) {
	needsThree(t)
	restored(t, "main")
	ctx := patient(t)
	topic, group := topic(t, bootstrap, "static", partitions), unique("static")
	running, stop := context.WithCancel(ctx)
	state := newGroupReader()
	var members []*member
	var ended sync.WaitGroup
	for _, name := range []string{"one", "two"} {
		one := join(t, group, topic, kgo.InstanceID(name))
		members = append(members, one)
		ended.Go(func() { state.run(running, t, one) })
	}
	share := func(what string) {
		t.Helper()
		for members[0].owned.Load() != 2 || members[1].owned.Load() != 2 {
			if ctx.Err() != nil {
				t.Fatalf("%s: %d and %d", what, members[0].owned.Load(), members[1].owned.Load())
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	share("two members share")
	wanted := fill(ctx, t, topic, "one")
	state.until(ctx, t, "all is read before", wanted)
	broker(t, "kill", "main", "leader")
	wanted = append(wanted, fill(ctx, t, topic, "two")...)
	state.until(ctx, t, "all is read after", wanted)
	share("both still share")
	stop()
	ended.Wait()
	if state.fenced {
		t.Fatal("a static member was fenced")
	}
}
