package compat

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
)

func roundTrip(t *testing.T, name string, codec sarama.CompressionCodec) {
	topic := topic(t, bootstrap, "codec-"+name, 1)
	var sent []*sarama.ProducerMessage
	for i := range 100 {
		sent = append(sent, &sarama.ProducerMessage{
			Topic: topic,
			Key:   sarama.StringEncoder(fmt.Sprintf("key-%d", i)),
			// Long and repetitive, so that a codec that grows the data is not taken for one that was not used.
			Value:   sarama.StringEncoder(strings.Repeat(fmt.Sprintf("value-%d", i), 40)),
			Headers: []sarama.RecordHeader{{Key: []byte("h"), Value: []byte{0, 255}}, {Key: []byte("null")}},
		})
	}
	sent = append(sent,
		&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("no key")},
		&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("tombstone")},
		&sarama.ProducerMessage{Topic: topic, Key: sarama.ByteEncoder{}, Value: sarama.ByteEncoder{}},
	)
	one := producer(t, bootstrap, func(how *sarama.Config) {
		how.Producer.Compression = codec
		how.Producer.Flush.Frequency = 50 * time.Millisecond
		how.Producer.Flush.Messages = len(sent)
	})
	must(t, one.SendMessages(sent))

	bytesOf := func(from sarama.Encoder) []byte {
		if from == nil {
			return nil
		}
		encoded, err := from.Encode()
		must(t, err)
		return encoded
	}
	same := func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
	n := 0
	must(t, poll(t, limited(t), bootstrap, func(got *sarama.ConsumerMessage) bool {
		want := sent[n]
		if got.Offset != int64(n) || !same(got.Key, bytesOf(want.Key)) || !same(got.Value, bytesOf(want.Value)) ||
			len(got.Headers) != len(want.Headers) {
			t.Fatalf("record %d came back as %+v", n, got)
		}
		for i, header := range got.Headers {
			if !same(header.Key, want.Headers[i].Key) || !same(header.Value, want.Headers[i].Value) {
				t.Fatalf("record %d: header %+v", n, header)
			}
		}
		n++
		return n == len(sent)
	}, topic))
}

func TestCodecNone(t *testing.T)   { roundTrip(t, "none", sarama.CompressionNone) }
func TestCodecGzip(t *testing.T)   { roundTrip(t, "gzip", sarama.CompressionGZIP) }
func TestCodecSnappy(t *testing.T) { roundTrip(t, "snappy", sarama.CompressionSnappy) }
func TestCodecLz4(t *testing.T)    { roundTrip(t, "lz4", sarama.CompressionLZ4) }
func TestCodecZstd(t *testing.T)   { roundTrip(t, "zstd", sarama.CompressionZSTD) }

func TestIdempotentRetry(t *testing.T) {
	relay := newRelay(t)
	topic := topic(t, relayed, "idempotent", 1)
	one := producer(t, relayed)
	rule := relay.arm("cut", "response", produceKey, 3)
	var values []string
	for i := range 10 {
		values = append(values, fmt.Sprint(i))
		must(t, send(one, topic, values[i]))
	}
	relay.fired(rule)
	equal(t, readAll(t, relayed, topic)[topic], values)
}
