// What the cases share: clients with short timeouts, topics, complete reads, the relay and the brokers' life.
'use strict'

const assert = require('node:assert/strict')
const crypto = require('node:crypto')
const net = require('node:net')
const readline = require('node:readline')
const { after } = require('node:test')
const { execFile } = require('node:child_process')
const { promisify } = require('node:util')
const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = require('kafkajs')

// The client brings gzip only. The other codecs are plug-ins: JavaScript, WebAssembly or a prebuilt binary, so that nothing
// has to be compiled.
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
const lz4 = require('lz4-napi')
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => lz4.compressFrame(encoder.buffer),
  decompress: async buffer => lz4.decompressFrame(buffer),
})
const zstd = require('@bokuweb/zstd-wasm')
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => zstd.init().then(() => Buffer.from(zstd.compress(encoder.buffer, 3))),
  decompress: async buffer => zstd.init().then(() => Buffer.from(zstd.decompress(buffer))),
})

const BOOTSTRAP = process.env.BOOTSTRAP
const RELAYED = process.env.RELAY_BOOTSTRAP
// Promises that Kafka itself does not make are asserted only where they are made.
const STRICT = process.env.TARGET === 'katomic'

// API keys, for the relay.
const PRODUCE = 0
const END_TXN = 26

const DEADLINE = 60_000

// A client that a failed case left behind must not keep the process alive.
after(() => setTimeout(() => process.exit(), 5000).unref())

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))
const unique = name => `${name}-${crypto.randomBytes(4).toString('hex')}`
const numbered = (prefix, count) => Array.from({ length: count }, (_, i) => `${prefix}${i}`)

/** Fails if the promise takes longer than any client may. */
async function within(what, promise, ms = DEADLINE) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new assert.AssertionError({ message: `${what}: nothing within ${ms} ms` })), ms)
  })
  try {
    return await Promise.race([promise, late])
  } finally {
    clearTimeout(timer)
  }
}

/** A client that is quick to try again, and goes on trying for longer than any change of a leader takes. */
function kafka(bootstrap = BOOTSTRAP) {
  return new Kafka({
    clientId: 'compat',
    brokers: bootstrap.split(','),
    logLevel: process.env.KAFKAJS_LOG ? logLevel.DEBUG : logLevel.NOTHING,
    connectionTimeout: 2000,
    requestTimeout: 15000,
    retry: { initialRetryTime: 50, maxRetryTime: 400, retries: 100 },
  })
}

/** Everything that a case opened, closed after it. */
function closing(t, client) {
  t.after(() => within('disconnect', client.disconnect(), 10_000).catch(() => {}))
  return client
}

async function admin(t, bootstrap = BOOTSTRAP) {
  const one = closing(t, kafka(bootstrap).admin())
  await one.connect()
  return one
}

async function topic(t, name, { partitions = 1, bootstrap = BOOTSTRAP } = {}) {
  const made = unique(name)
  const one = await admin(t, bootstrap)
  await one.createTopics({
    topics: [{ topic: made, numPartitions: partitions, replicationFactor: Number(process.env.REPLICAS) }],
  })
  return made
}

/** An idempotent producer. */
async function producer(t, bootstrap = BOOTSTRAP, options = {}) {
  const one = closing(t, kafka(bootstrap).producer({ idempotent: true, maxInFlightRequests: 1, ...options }))
  await one.connect()
  return one
}

/** A transactional producer; kafkajs asks for the producer id with its first transaction. */
const transactional = (t, id, { bootstrap = BOOTSTRAP, timeout = 60_000 } = {}) =>
  producer(t, bootstrap, { transactionalId: id, transactionTimeout: timeout })

const records = (values, partition = 0) => values.map(value => ({ value, partition }))

/** Sends and waits until all are acknowledged; `to` is a producer or a transaction. */
const send = (to, topic, ...values) =>
  within('send', to.send({ topic, acks: -1, messages: records(values) }))

/** One transaction over the topics, ended as told. */
async function transaction(producer, end, values, ...topics) {
  const txn = await within('begin', producer.transaction())
  for (const topic of topics) await send(txn, topic, ...values)
  await within(end, txn[end]())
}

/**
 * Offers every record of a topic or more, in order within each partition, until `last` says so. kafkajs reads as a
 * member of a group only, so this is a group of its own.
 */
async function poll(t, topics, last, { bootstrap = BOOTSTRAP, readUncommitted = false } = {}) {
  const reader = closing(
    t,
    kafka(bootstrap).consumer({
      groupId: unique('reader'),
      readUncommitted,
      maxWaitTimeInMs: 100,
      sessionTimeout: 6000,
      heartbeatInterval: 300,
      rebalanceTimeout: 6000,
    })
  )
  await reader.connect()
  await reader.subscribe({ topics, fromBeginning: true })
  try {
    await within(
      'the records awaited did not come',
      new Promise((resolve, reject) => {
        let over = false
        reader
          .run({
            autoCommit: false,
            eachMessage: async ({ topic, partition, message }) => {
              if (over) return
              try {
                if ((over = await last(message, topic, partition))) resolve()
              } catch (error) {
                over = true
                reject(error)
              }
            },
          })
          .catch(reject)
      })
    )
  } finally {
    await within('disconnect', reader.disconnect(), 20_000)
  }
}

const text = message => message.value?.toString() ?? null

/**
 * The values of each topic (one partition each) as a fresh read_committed reader sees them, complete. A record is put
 * behind everything else in each, and the reader goes on until it has met all of those: so the end is told without
 * end offsets, which count control batches on Kafka only.
 */
async function readAll(t, topics, bootstrap = BOOTSTRAP) {
  const end = unique('end')
  const marker = await producer(t, bootstrap)
  for (const topic of topics) await send(marker, topic, end)
  const found = Object.fromEntries(topics.map(topic => [topic, []]))
  const open = new Set(topics)
  await poll(
    t,
    topics,
    (message, topic) => {
      const value = text(message)
      if (value === end) open.delete(topic)
      else if (!value.startsWith('end-')) found[topic].push(value)
      return open.size === 0
    },
    { bootstrap }
  )
  return found
}

/** The end of the topic's first partition for a read_committed reader, as kafkajs asks by default. */
const endOffset = async (admin, topic) => Number((await admin.fetchTopicOffsets(topic))[0].offset)

/** The group's offset as it stands, -1 if it has none: kafkajs cannot ask for stable ones. */
async function committed(admin, group, topic) {
  const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
  return Number(found.partitions[0].offset)
}

/**
 * What an application does after a failed transaction: abort it if the client still lets it, or start again with a new
 * producer. (After a failed commit kafkajs refuses everything on that producer, so there it is always a new one.)
 */
async function recovered(t, producer, txn, failure, id, options = {}) {
  t.diagnostic(`the transaction failed: ${failure.name}: ${failure.message}`)
  assert.ok(failure.name.startsWith('KafkaJS'), `an error of the client: ${failure.stack}`)
  if (txn?.isActive()) {
    try {
      await within('abort', txn.abort())
      return producer
    } catch (error) {
      t.diagnostic(`the abort failed: ${error.name}: ${error.message}`)
    }
  }
  await within('disconnect', producer.disconnect()).catch(() => {})
  // kafkajs gives up at the first connection error of its InitProducerId, so the application asks again.
  for (const end = Date.now() + DEADLINE; ; await sleep(200)) {
    try {
      return await within('connect', transactional(t, id, options))
    } catch (error) {
      if (Date.now() > end) throw error
      t.diagnostic(`a new producer did not connect: ${error.name}: ${error.message}`)
    }
  }
}

/** Commands for the relay in front of the second cluster. */
class Relay {
  static async open(t) {
    const [host, port] = process.env.RELAY_CONTROL.split(':')
    const relay = new Relay()
    relay.socket = net.connect(Number(port), host)
    relay.lines = readline.createInterface({ input: relay.socket })[Symbol.asyncIterator]()
    await relay.ask('clear')
    t.after(async () => {
      await relay.ask('clear')
      relay.socket.end()
    })
    return relay
  }

  async ask(command) {
    this.socket.write(`${command}\n`)
    const answer = (await this.lines.next()).value ?? ''
    assert.match(answer, /^ok/, `relay: ${command} -> ${answer}`)
    return answer.slice(3)
  }

  arm(action, side, key, nth = 1) {
    return this.ask(`arm ${action} ${side} ${key} ${nth}`)
  }

  /** Waits until the rule has met its frame, so that a case cannot pass without its disturbance. */
  fired(rule) {
    return this.ask(`wait ${rule} 30`)
  }
}

/** Commands ../../broker.sh: a whole cluster, or one node of it. */
const broker = (...command) => promisify(execFile)(process.env.BROKER, command, { timeout: 120_000 })

module.exports = {
  BOOTSTRAP, RELAYED, STRICT, PRODUCE, END_TXN, DEADLINE, CompressionTypes, Relay,
  sleep, unique, numbered, within, kafka, closing, admin, topic, producer, transactional, records, send, transaction,
  poll, text, readAll, endOffset, committed, recovered, broker,
}
