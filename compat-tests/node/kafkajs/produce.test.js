// Produce and fetch outside transactions.
'use strict'

const assert = require('node:assert/strict')
const { test } = require('node:test')
const kit = require('./kit.js')

async function roundTrip(t, codec) {
  const topic = await kit.topic(t, `codec-${codec.toLowerCase()}`)
  // Long and repetitive, so that a codec that grows the data is not taken for one that was not used.
  const sent = Array.from({ length: 100 }, (_, i) => ({
    key: Buffer.from(`key-${i}`),
    value: Buffer.from(`value-${i}`.repeat(40)),
    // No null among them: kafkajs cannot encode one.
    headers: { h: Buffer.from([0, 255]), empty: Buffer.from('') },
  }))
  sent.push({ key: null, value: Buffer.from('no key'), headers: {} })
  sent.push({ key: Buffer.from('tombstone'), value: null, headers: {} })
  sent.push({ key: Buffer.from(''), value: Buffer.from(''), headers: {} })
  const producer = await kit.producer(t)
  const messages = sent.map(one => ({ ...one, partition: 0 }))
  await producer.send({ topic, acks: -1, compression: kit.CompressionTypes[codec], messages })

  const got = []
  await kit.poll(t, [topic], message => {
    assert.equal(message.offset, String(got.length))
    got.push({ key: message.key, value: message.value, headers: { ...message.headers } })
    return got.length === sent.length
  })
  assert.deepEqual(got, sent)
}

for (const codec of ['None', 'GZIP', 'Snappy', 'LZ4', 'ZSTD']) {
  test(`codec_${codec.toLowerCase()}`, { timeout: 180_000 }, t => roundTrip(t, codec))
}

test('idempotent_retry', { timeout: 180_000 }, async t => {
  const relay = await kit.Relay.open(t)
  const topic = await kit.topic(t, 'idempotent', { bootstrap: kit.RELAYED })
  const producer = await kit.producer(t, kit.RELAYED)
  const rule = await relay.arm('cut', 'response', kit.PRODUCE, 3)
  const values = kit.numbered('', 10)
  for (const value of values) await kit.send(producer, topic, value)
  await relay.fired(rule)
  assert.deepEqual((await kit.readAll(t, [topic], kit.RELAYED))[topic], values)
})
