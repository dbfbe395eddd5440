package compat

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const partitions = 4

// member is a consumer of a group that knows how many partitions it owns.
type member struct {
	*kgo.Client
	owned atomic.Int32
}

func join(t *testing.T, group, topic string, more ...kgo.Opt) *member {
	t.Helper()
	one := new(member)
	count := func(sign int32) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			one.owned.Add(sign * int32(len(changed[topic])))
		}
	}
	one.Client = client(t, bootstrap, append(more,
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(300*time.Millisecond),
		kgo.SessionTimeout(6*time.Second),
		// So what was polled is committed before it can be given to another.
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(count(1)),
		kgo.OnPartitionsRevoked(count(-1)),
		kgo.OnPartitionsLost(count(-1)),
	)...)
	return one
}

func (m *member) leave() {
	m.CloseAllowingRebalance()
}

func TestGroupRebalance(t *testing.T) {
	ctx := limited(t)
	topic, group := topic(t, bootstrap, "group", partitions), unique("group")
	producer := client(t, bootstrap)
	var wanted, processed []string

	fill := func(label string) {
		for p := range int32(partitions) {
			values := numbered(fmt.Sprintf("%s:%d:", label, p), 5)
			must(t, send(ctx, producer, topic, p, values...))
			wanted = append(wanted, values...)
		}
	}
	// until polls all members in turn, committing what each has processed.
	until := func(what string, done func() bool, members ...*member) {
		t.Helper()
		for !done() {
			if ctx.Err() != nil {
				t.Fatalf("%s: %d processed", what, len(processed))
			}
			for _, one := range members {
				turn, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				for _, record := range one.PollRecords(turn, 10).Records() {
					must(t, one.CommitRecords(ctx, record))
					processed = append(processed, string(record.Value))
				}
				cancel()
				one.AllowRebalance()
			}
		}
	}

	fill("one")
	first := join(t, group, topic)
	until("a single member reads all", func() bool { return len(processed) == 20 }, first)
	second := join(t, group, topic)
	until("two members share", func() bool { return first.owned.Load() == 2 && second.owned.Load() == 2 }, first, second)
	fill("two")
	until("two members read all", func() bool { return len(processed) == 40 }, first, second)
	second.leave()
	until("the other takes over", func() bool { return first.owned.Load() == partitions }, first)
	fill("three")
	until("it reads all again", func() bool { return len(processed) == 60 }, first)
	first.leave()
	fill("four")
	third := join(t, group, topic)
	until("a later member resumes", func() bool { return len(processed) >= 80 }, third)
	third.leave()
	// Committed after each record, and nobody died: so nothing was read twice either.
	slices.Sort(wanted)
	slices.Sort(processed)
	equal(t, processed, wanted)
}
