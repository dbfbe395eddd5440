package compat

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func roundTrip(t *testing.T, name string, codec kgo.CompressionCodec) {
	ctx := limited(t)
	topic := topic(t, bootstrap, "codec-"+name, 1)
	var sent []*kgo.Record
	for i := range 100 {
		sent = append(sent, &kgo.Record{
			Topic: topic,
			Key:   fmt.Appendf(nil, "key-%d", i),
			// Long and repetitive, so that a codec that grows the data is not taken for one that was not used.
			Value:   []byte(strings.Repeat(fmt.Sprintf("value-%d", i), 40)),
			Headers: []kgo.RecordHeader{{Key: "h", Value: []byte{0, 255}}, {Key: "null"}},
		})
	}
	sent = append(sent,
		&kgo.Record{Topic: topic, Value: []byte("no key")},
		&kgo.Record{Topic: topic, Key: []byte("tombstone")},
		&kgo.Record{Topic: topic, Key: []byte{}, Value: []byte{}},
	)
	producer := client(t, bootstrap, kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(50*time.Millisecond))
	must(t, producer.ProduceSync(ctx, sent...).FirstErr())

	same := func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
	n := 0
	must(t, poll(ctx, reader(t, bootstrap, topic), func(got *kgo.Record) bool {
		want := sent[n]
		if got.Offset != int64(n) || !same(got.Key, want.Key) || !same(got.Value, want.Value) ||
			len(got.Headers) != len(want.Headers) {
			t.Fatalf("record %d came back as %+v", n, got)
		}
		for i, header := range got.Headers {
			if header.Key != want.Headers[i].Key || !same(header.Value, want.Headers[i].Value) {
				t.Fatalf("record %d: header %+v", n, header)
			}
		}
		n++
		return n == len(sent)
	}))
}

func TestCodecNone(t *testing.T)   { roundTrip(t, "none", kgo.NoCompression()) }
func TestCodecGzip(t *testing.T)   { roundTrip(t, "gzip", kgo.GzipCompression()) }
func TestCodecSnappy(t *testing.T) { roundTrip(t, "snappy", kgo.SnappyCompression()) }
func TestCodecLz4(t *testing.T)    { roundTrip(t, "lz4", kgo.Lz4Compression()) }
func TestCodecZstd(t *testing.T)   { roundTrip(t, "zstd", kgo.ZstdCompression()) }

func TestIdempotentRetry(t *testing.T) {
	ctx := limited(t)
	relay := newRelay(t)
	topic := topic(t, relayed, "idempotent", 1)
	producer := client(t, relayed)
	rule := relay.cutResponse(produceKey, 3)
	var values []string
	for i := range 10 {
		values = append(values, fmt.Sprint(i))
		must(t, send(ctx, producer, topic, 0, values[i]))
	}
	relay.fired(rule)
	equal(t, readAll(t, relayed, topic)[topic], values)
}
