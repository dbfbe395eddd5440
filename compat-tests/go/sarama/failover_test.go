package compat

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/IBM/sarama"
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

// application writes transactions over two topics, each again under another value for as long as it fails.
type application struct {
	t         *testing.T
	seed, id  string
	topics    []string
	one       sarama.SyncProducer
	committed []string
}

func newApplication(t *testing.T, seed string) *application {
	t.Helper()
	id := unique("failover")
	topics := []string{topic(t, seed, "failover-a", 1), topic(t, seed, "failover-b", 1)}
	return &application{t: t, seed: seed, id: id, topics: topics, one: transactional(t, seed, id, deadline)}
}

// work returns how many attempts failed.
func (a *application) work(value string, beforeCommit ...func()) int {
	a.t.Helper()
	for failures := range 4 {
		attempt := fmt.Sprintf("%s.%d", value, failures)
		err := a.try(attempt, failures == 0, beforeCommit)
		if err == nil {
			a.committed = append(a.committed, attempt)
			return failures
		}
		a.one = recovered(a.t, a.one, a.seed, a.id, deadline, err)
	}
	a.t.Fatal("the application cannot go on")
	return 0
}

func (a *application) try(attempt string, first bool, beforeCommit []func()) error {
	if err := a.one.BeginTxn(); err != nil {
		return err
	}
	for _, topic := range a.topics {
		if err := send(a.one, topic, attempt); err != nil {
			return err
		}
	}
	if first {
		for _, step := range beforeCommit {
			step()
		}
	}
	return commit(a.one)
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

func fill(t *testing.T, topic, label string) []string {
	t.Helper()
	one := producer(t, bootstrap)
	var wanted []string
	for p := range int32(partitions) {
		values := numbered(fmt.Sprintf("%s:%d:", label, p), 5)
		must(t, one.SendMessages(messages(topic, p, values...)))
		wanted = append(wanted, values...)
	}
	return wanted
}

// reads waits until members have handed on all that is wanted.
func reads(t *testing.T, ctx context.Context, what string, out chan string, seen map[string]int, wanted []string) {
	t.Helper()
	missing := func() int {
		count := 0
		for _, value := range wanted {
			if seen[value] == 0 {
				count++
			}
		}
		return count
	}
	for missing() > 0 {
		select {
		case value := <-out:
			seen[value]++
		case <-ctx.Done():
			t.Fatalf("%s: %d missing", what, missing())
		}
	}
}

// watch asks for the group's offset of the first partition all the time: an answer may be late or an error, never less
// than an answer before it.
func watch(ctx context.Context, cl sarama.Client, group, topic string, least int64) error {
	answers := 0
	for ctx.Err() == nil {
		offset, err := fetched(cl, group, topic, false)
		if err == nil {
			answers++
			if offset < least {
				return fmt.Errorf("told %d when %d was committed", offset, least)
			}
			least = offset
		}
		time.Sleep(20 * time.Millisecond)
	}
	if answers == 0 {
		return errors.New("no answer")
	}
	return nil
}

func groupSurvives(t *testing.T, how string) {
	needsThree(t)
	restored(t, "main")
	ctx := limited(t)
	topic, group := topic(t, bootstrap, "survivor", partitions), unique("survivor")
	out, seen := make(chan string, 1000), map[string]int{}
	joinedAs(t, group, topic, "", out)
	wanted := fill(t, topic, "one")
	reads(t, ctx, "all is read before", out, seen, wanted)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watched, struck := make(chan error, 1), make(chan error, 1)
	other := client(t, bootstrap)
	// The commit is confirmed to the member a moment after the record was handed on.
	least := committed(t, other, group, topic, true)
	go func() { watched <- watch(watching, other, group, topic, least) }()
	go func() { struck <- runBroker(how, "main", "leader") }()
	wanted = append(wanted, fill(t, topic, "two")...)
	reads(t, ctx, "all is read through the change", out, seen, wanted)
	must(t, <-struck)
	wanted = append(wanted, fill(t, topic, "three")...)
	reads(t, ctx, "all is read after", out, seen, wanted)
	stop()
	must(t, <-watched)
}

func TestGroupSurvivesLeaderKill(t *testing.T) { groupSurvives(t, "kill") }
func TestGroupSurvivesLeaderStop(t *testing.T) { groupSurvives(t, "stop") }

func TestStaticMembersSurviveLeaderKill(t *testing.T) {
	needsThree(t)
	restored(t, "main")
	ctx := limited(t)
	topic, group := topic(t, bootstrap, "static", partitions), unique("static")
	out, seen := make(chan string, 1000), map[string]int{}
	first, second := joinedAs(t, group, topic, "one", out), joinedAs(t, group, topic, "two", out)
	share := func(what string) {
		for first.owned() != 2 || second.owned() != 2 {
			if ctx.Err() != nil {
				t.Fatalf("%s: %d and %d", what, first.owned(), second.owned())
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	share("two members share")
	wanted := fill(t, topic, "one")
	reads(t, ctx, "all is read before", out, seen, wanted)
	broker(t, "kill", "main", "leader")
	wanted = append(wanted, fill(t, topic, "two")...)
	reads(t, ctx, "all is read after", out, seen, wanted)
	share("both still share")
	for _, one := range []*member{first, second} {
		if last, fenced := one.trouble(); fenced {
			t.Fatalf("a static member was fenced; its last error: %v", last)
		}
	}
}
