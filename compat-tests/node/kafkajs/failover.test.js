// Failover: the leader of three nodes is killed or stopped around a transaction, and under a group.
'use strict'

const assert = require('node:assert/strict')
const { test } = require('node:test')
const kit = require('./kit.js')
const { member } = require('./member.js')

const CASE = { timeout: 180_000, skip: process.env.NODES !== '3' && 'needs three nodes' }

/** Takes the leader away beside the case, once `when` has come, and then does `after`. */
async function strike(how, cluster = 'main', when = async () => {}, after = async () => {}) {
  await when()
  await kit.broker(how, cluster, 'leader')
  await after()
}

/** Writes transactions over two topics, each again under another value for as long as it fails. */
class Application {
  static async create(t, bootstrap = kit.BOOTSTRAP) {
    const self = new Application()
    Object.assign(self, { t, bootstrap, committed: [], id: kit.unique('failover'), topics: [] })
    for (const name of ['failover-a', 'failover-b']) self.topics.push(await kit.topic(t, name, { bootstrap }))
    self.producer = await kit.transactional(t, self.id, { bootstrap })
    return self
  }

  /** Returns how many attempts failed. */
  async work(value, beforeCommit = async () => {}) {
    for (let failures = 0; failures < 4; failures++) {
      const attempt = `${value}.${failures}`
      let txn
      try {
        txn = await kit.within('begin', this.producer.transaction())
        for (const topic of this.topics) await kit.send(txn, topic, attempt)
        if (!failures) await beforeCommit()
        await kit.within('commit', txn.commit())
        this.committed.push(attempt)
        return failures
      } catch (error) {
        const asked = txn && !txn.isActive()
        this.producer = await kit.recovered(this.t, this.producer, txn, error, this.id, { bootstrap: this.bootstrap })
        // EndTxn is sent once, so a commit that lost its connection is of unknown outcome. The new producer has ended
        // whatever was open: now the application can look.
        if (asked && !error.type && (await this.isThere(attempt))) {
          this.committed.push(attempt)
          return failures
        }
      }
    }
    assert.fail('the application cannot go on')
  }

  async isThere(attempt) {
    const found = await kit.readAll(this.t, this.topics, this.bootstrap)
    const there = this.topics.map(topic => found[topic].includes(attempt))
    assert.equal(there[0], there[1], `${attempt} is there in part`)
    return there[0]
  }

  async holds() {
    const found = await kit.readAll(this.t, this.topics, this.bootstrap)
    for (const topic of this.topics) assert.deepEqual(found[topic], this.committed)
  }
}

/** Whatever happens, the next case has all nodes. */
async function restored(cluster, run) {
  try {
    await run()
  } finally {
    await kit.broker('start', cluster)
  }
}

const beforeCommit = how => t =>
  restored('main', async () => {
    const application = await Application.create(t)
    await application.work('before')
    let struck
    await application.work('inside', async () => {
      struck = strike(how)
      if (how === 'kill') await struck
    })
    await struck
    await application.work('after')
    await application.holds()
  })

test('leader_killed_before_commit', CASE, beforeCommit('kill'))
test('leader_stopped_before_commit', CASE, beforeCommit('stop'))

const betweenTxns = how => t =>
  restored('main', async () => {
    const application = await Application.create(t)
    await application.work('before')
    await strike(how)
    await application.work('first')
    await application.work('after')
    await application.holds()
  })

test('leader_killed_between_txns', CASE, betweenTxns('kill'))
test('leader_stopped_between_txns', CASE, betweenTxns('stop'))

const aroundEndTxn = (how, side) => t =>
  restored('relayed', async () => {
    const relay = await kit.Relay.open(t)
    const application = await Application.create(t, kit.RELAYED)
    await application.work('before')
    const rule = await relay.arm('hold', side, kit.END_TXN)
    const struck = strike(how, 'relayed', () => relay.fired(rule), () => relay.ask(`cut ${rule}`))
    const failures = await application.work('inside')
    await struck
    // It had been executed, so it must be there.
    assert.ok(side === 'request' || failures === 0, 'a commit that was executed is not there')
    await application.work('after')
    await application.holds()
  })

test('leader_killed_before_end_txn', CASE, aroundEndTxn('kill', 'request'))
test('leader_killed_after_end_txn', CASE, aroundEndTxn('kill', 'response'))
test('leader_stopped_after_end_txn', CASE, aroundEndTxn('stop', 'response'))

const PARTITIONS = 4

async function fill(producer, topic, label) {
  const wanted = []
  for (let partition = 0; partition < PARTITIONS; partition++) {
    const values = kit.numbered(`${label}:${partition}:`, 5)
    await kit.within('fill', producer.send({ topic, acks: -1, messages: kit.records(values, partition) }))
    wanted.push(...values)
  }
  return wanted
}

/** Asks for the group's offsets all the time: an answer may be late or an error, never less than was committed. */
async function watch(admin, group, topic, known, over) {
  let answers = 0
  const wrong = []
  while (!over()) {
    const before = new Map(known)
    try {
      const [found] = await kit.within('offsets', admin.fetchOffsets({ groupId: group, topics: [topic] }), 20_000)
      for (const { partition, offset } of found.partitions) {
        answers++
        if (Number(offset) < (before.get(partition) ?? -1)) wrong.push([partition, offset, before.get(partition)])
      }
    } catch {
      // An error is an honest answer.
    }
    await kit.sleep(20)
  }
  assert.ok(answers > 0 && wrong.length === 0, `${answers} answers, too low: ${JSON.stringify(wrong.slice(0, 5))}`)
}

const groupSurvives = how => t =>
  restored('main', async () => {
    const topic = await kit.topic(t, 'survivor', { partitions: PARTITIONS })
    const group = kit.unique('survivor')
    const producer = await kit.producer(t)
    const admin = await kit.admin(t)
    const [processed, uncertain, known] = [[], [], new Map()]
    const one = await member(
      t,
      group,
      topic,
      (value, partition, offset) => {
        processed.push(value)
        known.set(partition, offset + 1)
      },
      value => uncertain.push(value)
    )
    async function until(what, wanted) {
      const end = Date.now() + kit.DEADLINE
      while (!wanted.every(value => processed.includes(value) || uncertain.includes(value))) {
        assert.ok(Date.now() < end, `${what}: ${processed.length} processed`)
        await kit.sleep(20)
      }
    }
    const wanted = await fill(producer, topic, 'one')
    await until('all is read before', wanted)
    let over = false
    const watched = watch(admin, group, topic, known, () => over)
    const struck = strike(how)
    wanted.push(...(await fill(producer, topic, 'two')))
    await until('all is read through the change', wanted)
    await struck
    wanted.push(...(await fill(producer, topic, 'three')))
    await until('all is read after', wanted)
    over = true
    await watched
    assert.equal(new Set(processed).size, processed.length, 'a committed record was read again')
    await one.leave()
  })

test('group_survives_leader_kill', CASE, groupSurvives('kill'))
test('group_survives_leader_stop', CASE, groupSurvives('stop'))

test('static_members_survive_leader_kill', { skip: 'kafkajs has no static membership (group.instance.id)' }, () => {})
