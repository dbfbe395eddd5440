// Transactions: whole, absent, fenced, timed out, cut, and killed in the middle.
'use strict'

const assert = require('node:assert/strict')
const { test } = require('node:test')
const kit = require('./kit.js')

const CASE = { timeout: 180_000 }

test('txn_commit', CASE, async t => {
  const [a, b] = [await kit.topic(t, 'commit-a'), await kit.topic(t, 'commit-b')]
  const producer = await kit.transactional(t, kit.unique('commit'))
  const admin = await kit.admin(t)
  const txn = await producer.transaction()
  await kit.send(txn, a, '1', '2', '3')
  await kit.send(txn, b, '4', '5')
  assert.equal(await kit.endOffset(admin, a), 0)
  assert.equal(await kit.endOffset(admin, b), 0)
  await txn.commit()
  assert.deepEqual(await kit.readAll(t, [a, b]), { [a]: ['1', '2', '3'], [b]: ['4', '5'] })

  await kit.transaction(producer, 'commit', ['6'], a)
  assert.deepEqual(await kit.readAll(t, [a]), { [a]: ['1', '2', '3', '6'] })
})

test('txn_abort', CASE, async t => {
  const topic = await kit.topic(t, 'abort')
  const producer = await kit.transactional(t, kit.unique('abort'))
  for (const value of ['dropped-1', 'kept', 'dropped-2']) {
    await kit.transaction(producer, value === 'kept' ? 'commit' : 'abort', [value], topic)
  }
  assert.deepEqual(await kit.readAll(t, [topic]), { [topic]: ['kept'] })
})

test('txn_empty', CASE, async t => {
  const topic = await kit.topic(t, 'empty')
  const producer = await kit.transactional(t, kit.unique('empty'))
  for (const step of ['commit', 'abort', 'full-1', 'commit', 'abort', 'abort', 'full-2', 'abort', 'commit']) {
    const full = step.startsWith('full')
    await kit.transaction(producer, step === 'abort' ? 'abort' : 'commit', [step], ...(full ? [topic] : []))
  }
  assert.deepEqual(await kit.readAll(t, [topic]), { [topic]: ['full-1', 'full-2'] })
})

/** Alternates, and returns what was committed. */
async function commitsAndAborts(producer, topic, rounds) {
  const kept = []
  for (let n = 0; n < rounds; n++) {
    const values = kit.numbered(`${n}-`, 3)
    await kit.transaction(producer, n % 2 ? 'commit' : 'abort', values, topic)
    if (n % 2) kept.push(...values)
  }
  return kept
}

test('aborted_never_visible_tailing', CASE, async t => {
  const topic = await kit.topic(t, 'tailing')
  const seen = []
  let tails
  const tailing = new Promise(resolve => (tails = resolve))
  const ended = kit.poll(t, [topic], message => {
    seen.push(kit.text(message))
    tails()
    return kit.text(message) === 'last'
  })
  const plain = await kit.producer(t)
  await kit.send(plain, topic, 'first')
  await Promise.race([tailing, ended])
  const kept = await commitsAndAborts(await kit.transactional(t, kit.unique('tailing')), topic, 20)
  await kit.send(plain, topic, 'last')
  await ended
  assert.deepEqual(seen, ['first', ...kept, 'last'])
})

test('aborted_never_visible_fresh', CASE, async t => {
  const topic = await kit.topic(t, 'fresh')
  const kept = await commitsAndAborts(await kit.transactional(t, kit.unique('fresh')), topic, 20)
  assert.deepEqual(await kit.readAll(t, [topic]), { [topic]: kept })
})

test('multi_topic_whole_or_absent', CASE, async t => {
  const [rounds, each] = [40, 3]
  const topics = []
  for (const name of ['multi-a', 'multi-b', 'multi-c']) topics.push(await kit.topic(t, name))
  const kept = Array.from({ length: rounds }, (_, n) => n).filter(n => n % 4 !== 3)
  const producer = await kit.transactional(t, kit.unique('multi'))
  const plain = await kit.producer(t)
  const admin = await kit.admin(t)

  async function write() {
    for (let n = 0; n < rounds; n++) {
      await kit.transaction(producer, kept.includes(n) ? 'commit' : 'abort', kit.numbered(`${n}:`, each), ...topics)
    }
    for (const topic of topics) await kit.send(plain, topic, 'last')
  }

  const seen = Object.fromEntries(topics.map(topic => [topic, []]))
  const open = new Set(topics)
  let newest = -1
  const read = kit.poll(t, topics, async (message, topic) => {
    const value = kit.text(message)
    if (value === 'last') {
      open.delete(topic)
      return open.size === 0
    }
    seen[topic].push(value)
    const n = Number(value.split(':')[0])
    if (kit.STRICT && n > newest) {
      newest = n
      const covered = each * (kept.indexOf(n) + 1)
      for (const topic of topics) {
        assert.ok((await kit.endOffset(admin, topic)) >= covered, `transaction ${n} shows in part`)
      }
    }
    return false
  })
  await Promise.all([write(), read])
  const whole = kept.flatMap(n => kit.numbered(`${n}:`, each))
  for (const topic of topics) assert.deepEqual(seen[topic], whole)
})

const offsets = (topic, offset) => [{ topic, partitions: [{ partition: 0, offset: String(offset) }] }]

test('txn_offsets', CASE, async t => {
  const [source, out] = [await kit.topic(t, 'offsets-in'), await kit.topic(t, 'offsets-out')]
  const group = kit.unique('offsets')
  const admin = await kit.admin(t)
  await kit.send(await kit.producer(t), source, ...kit.numbered('', 10))
  const producer = await kit.transactional(t, kit.unique('offsets'))

  async function transform(upto) {
    const txn = await producer.transaction()
    await kit.send(txn, out, String(upto))
    await txn.sendOffsets({ consumerGroupId: group, topics: offsets(source, upto) })
    assert.equal(await kit.committed(admin, group, source), -1)
    return txn
  }

  await (await transform(4)).abort()
  assert.equal(await kit.committed(admin, group, source), -1)
  await (await transform(10)).commit()
  await kit.within('the offset', until(async () => (await kit.committed(admin, group, source)) === 10))
  assert.deepEqual(await kit.readAll(t, [out]), { [out]: ['10'] })
})

/** Kafka answers a commit before its markers are written, and kafkajs cannot ask for stable offsets: so it asks again. */
async function until(done) {
  while (!(await done())) await kit.sleep(20)
}

test('txn_offsets_visible_together', CASE, async t => {
  const rounds = 20
  const [source, out] = [await kit.topic(t, 'together-in'), await kit.topic(t, 'together-out')]
  const group = kit.unique('together')
  const admin = await kit.admin(t)
  const producer = await kit.transactional(t, kit.unique('together'))

  async function write() {
    for (let n = 0; n < rounds; n++) {
      const txn = await producer.transaction()
      await kit.send(txn, out, String(n))
      await txn.sendOffsets({ consumerGroupId: group, topics: offsets(source, n + 1) })
      await txn.commit()
    }
  }

  let n = 0
  const read = kit.poll(t, [out], async message => {
    assert.equal(kit.text(message), String(n))
    n++
    if (kit.STRICT) {
      const offset = await kit.committed(admin, group, source)
      assert.ok(offset >= n, `output ${n - 1} shows, the offset is ${offset}`)
      assert.ok((await kit.endOffset(admin, out)) >= offset, `offset ${offset} shows without its output`)
    } else {
      await until(async () => (await kit.committed(admin, group, source)) >= n)
    }
    return n === rounds
  })
  await Promise.all([write(), read])
})

test('zombie_fenced', CASE, async t => {
  const topic = await kit.topic(t, 'zombie')
  const id = kit.unique('zombie')
  const zombie = await kit.transactional(t, id)
  const txn = await zombie.transaction()
  await kit.send(txn, topic, 'of the zombie')
  const heir = await kit.transactional(t, id)
  await kit.transaction(heir, 'commit', ['of the heir'], topic)
  await assert.rejects(txn.commit(), error => {
    assert.ok(['INVALID_PRODUCER_EPOCH', 'PRODUCER_FENCED'].includes(error.type), `${error.type}: ${error.message}`)
    return true
  })
  assert.ok(!txn.isActive())
  await assert.rejects(zombie.transaction(), 'the zombie may go on')
  assert.deepEqual(await kit.readAll(t, [topic]), { [topic]: ['of the heir'] })
})

test('txn_timeout', CASE, async t => {
  const [source, out] = [await kit.topic(t, 'timeout-in'), await kit.topic(t, 'timeout-out')]
  const [id, group] = [kit.unique('timeout'), kit.unique('timeout')]
  const admin = await kit.admin(t)
  let producer = await kit.transactional(t, id, { timeout: 2000 })
  const txn = await producer.transaction()
  await kit.send(txn, out, 'too late')
  await txn.sendOffsets({ consumerGroupId: group, topics: offsets(source, 7) })
  // kafkajs cannot ask for stable offsets, whose release would tell the end of the transaction: so its time must pass.
  const end = Date.now() + 4000
  while (Date.now() < end) {
    assert.equal(await kit.committed(admin, group, source), -1)
    await kit.sleep(100)
  }
  const failure = await txn.commit().then(() => assert.fail('the commit succeeded'), error => error)
  producer = await kit.recovered(t, producer, txn, failure, id, { timeout: 2000 })
  await kit.transaction(producer, 'commit', ['in time'], out)
  assert.deepEqual(await kit.readAll(t, [out]), { [out]: ['in time'] })
  assert.equal(await kit.committed(admin, group, source), -1)
})

test('end_txn_cut', CASE, async t => {
  const relay = await kit.Relay.open(t)
  const [a, b] = [
    await kit.topic(t, 'cut-a', { bootstrap: kit.RELAYED }),
    await kit.topic(t, 'cut-b', { bootstrap: kit.RELAYED }),
  ]
  const id = kit.unique('cut')
  const values = ['0', '1', '2']
  let producer = await kit.transactional(t, id, { bootstrap: kit.RELAYED })
  for (const value of values) {
    const rule = await relay.arm('cut', 'response', kit.END_TXN)
    // kafkajs does not send EndTxn again: the commit fails with a connection error, and the application has to make a
    // new producer and look. The transaction is there.
    await assert.rejects(kit.transaction(producer, 'commit', [value], a, b), { name: /KafkaJSConnection/ })
    await relay.fired(rule)
    producer = await kit.transactional(t, id, { bootstrap: kit.RELAYED })
  }
  await kit.transaction(producer, 'commit', ['3'], a, b)
  const whole = [...values, '3']
  assert.deepEqual(await kit.readAll(t, [a, b], kit.RELAYED), { [a]: whole, [b]: whole })
})

test('broker_killed_in_txn', CASE, async t => {
  const [a, b] = [await kit.topic(t, 'killed-a'), await kit.topic(t, 'killed-b')]
  const id = kit.unique('killed')
  let producer = await kit.transactional(t, id)
  await kit.transaction(producer, 'commit', ['before'], a, b)

  const txn = await producer.transaction()
  await kit.send(txn, a, 'inside')
  await kit.send(txn, b, 'inside')
  await kit.broker('kill', 'main')
  await kit.broker('start', 'main')
  const failure = await kit.within('commit', txn.commit()).then(() => null, error => error)
  if (failure) producer = await kit.recovered(t, producer, txn, failure, id)
  await kit.transaction(producer, 'commit', ['after'], a, b)
  const found = await kit.readAll(t, [a, b])
  // A connection error leaves open whether the commit was executed; any other outcome is what was reported.
  const open = failure?.name.startsWith('KafkaJSConnection') && found[a].includes('inside')
  const expected = ['before', ...(!failure || open ? ['inside'] : []), 'after']
  assert.deepEqual(found, { [a]: expected, [b]: expected })
})
