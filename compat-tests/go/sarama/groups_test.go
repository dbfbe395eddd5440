package compat

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
)

const partitions = 4

// member is a consumer of a group. It commits each record and then hands it on.
type member struct {
	sarama.ConsumerGroup
	topic  string
	out    chan string
	stop   context.CancelFunc
	ended  chan struct{}
	lock   sync.Mutex
	active sarama.ConsumerGroupSession
	last   error
	fenced bool
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error { m.become(session); return nil }
func (m *member) Cleanup(_ sarama.ConsumerGroupSession) error     { m.become(nil); return nil }
func (m *member) become(session sarama.ConsumerGroupSession) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.active = session
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			if m.out == nil {
				continue
			}
			session.MarkMessage(message, "")
			session.Commit()
			m.out <- string(message.Value)
		case <-session.Context().Done():
			return nil
		}
	}
}

// note keeps an error: the client goes on by itself after it, so it matters only if nothing comes of that.
func (m *member) note(err error) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.last = err
	if os.Getenv("SARAMA_LOG") != "" {
		fmt.Fprintln(os.Stderr, "member:", err)
	}
	m.fenced = m.fenced || errors.Is(err, sarama.ErrFencedInstancedId)
}

func (m *member) trouble() (error, bool) {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.last, m.fenced
}

func (m *member) owned() int {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.active == nil {
		return 0
	}
	return len(m.active.Claims()[m.topic])
}

// session waits for a generation in which the member has something to do.
func (m *member) session(t *testing.T) sarama.ConsumerGroupSession {
	t.Helper()
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		m.lock.Lock()
		active := m.active
		m.lock.Unlock()
		if active != nil && len(active.Claims()) > 0 {
			return active
		}
	}
	t.Fatal("the member got no partition")
	return nil
}

// joined is a member that only belongs to the group.
func joined(t *testing.T, group, topic string) *member { return joinedAs(t, group, topic, "", nil) }

func joinedAs(t *testing.T, group, topic, instance string, out chan string) *member {
	t.Helper()
	how := config()
	how.Consumer.Group.InstanceId = instance
	inner, err := sarama.NewConsumerGroup(addresses(bootstrap), group, how)
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	one := &member{ConsumerGroup: inner, topic: topic, out: out, stop: stop, ended: make(chan struct{})}
	go func() {
		for err := range inner.Errors() {
			one.note(err)
		}
	}()
	go func() {
		defer close(one.ended)
		for ctx.Err() == nil {
			if err := inner.Consume(ctx, []string{topic}, one); errors.Is(err, sarama.ErrClosedConsumerGroup) {
				return
			} else if err != nil {
				one.note(err)
				time.Sleep(50 * time.Millisecond)
			}
		}
	}()
	t.Cleanup(func() { one.leave() })
	return one
}

func (m *member) leave() {
	m.stop()
	<-m.ended
	m.Close()
}

func TestGroupRebalance(t *testing.T) {
	ctx := limited(t)
	topic, group := topic(t, bootstrap, "group", partitions), unique("group")
	plain := producer(t, bootstrap)
	var wanted, processed []string
	out := make(chan string)

	fill := func(label string) {
		for p := range int32(partitions) {
			values := numbered(fmt.Sprintf("%s:%d:", label, p), 5)
			must(t, plain.SendMessages(messages(topic, p, values...)))
			wanted = append(wanted, values...)
		}
	}
	until := func(what string, done func() bool) {
		t.Helper()
		for !done() {
			select {
			case value := <-out:
				processed = append(processed, value)
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("%s: %d processed", what, len(processed))
			}
		}
	}

	fill("one")
	first := joinedAs(t, group, topic, "", out)
	until("a single member reads all", func() bool { return len(processed) == 20 })
	second := joinedAs(t, group, topic, "", out)
	until("two members share", func() bool { return first.owned() == 2 && second.owned() == 2 })
	fill("two")
	until("two members read all", func() bool { return len(processed) == 40 })
	second.leave()
	until("the other takes over", func() bool { return first.owned() == partitions })
	fill("three")
	until("it reads all again", func() bool { return len(processed) == 60 })
	first.leave()
	fill("four")
	third := joinedAs(t, group, topic, "", out)
	until("a later member resumes", func() bool { return len(processed) >= 80 })
	third.leave()
	// Committed after each record, and nobody died: so nothing was read twice either.
	slices.Sort(wanted)
	slices.Sort(processed)
	equal(t, processed, wanted)
}
