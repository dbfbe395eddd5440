// Consumer groups.
'use strict'

const assert = require('node:assert/strict')
const { test } = require('node:test')
const kit = require('./kit.js')
const { member } = require('./member.js')

const PARTITIONS = 4

test('group_rebalance', { timeout: 180_000 }, async t => {
  const topic = await kit.topic(t, 'group', { partitions: PARTITIONS })
  const group = kit.unique('group')
  const producer = await kit.producer(t)
  const processed = []
  const wanted = []
  const take = value => processed.push(value)

  async function fill(label) {
    for (let partition = 0; partition < PARTITIONS; partition++) {
      const values = kit.numbered(`${label}:${partition}:`, 5)
      await producer.send({ topic, acks: -1, messages: kit.records(values, partition) })
      wanted.push(...values)
    }
  }

  async function until(what, done) {
    const end = Date.now() + kit.DEADLINE
    while (!done()) {
      assert.ok(Date.now() < end, `${what}: ${processed.length} processed`)
      await kit.sleep(20)
    }
  }

  await fill('one')
  const first = await member(t, group, topic, take)
  await until('a single member reads all', () => processed.length === 20)
  const second = await member(t, group, topic, take)
  await until('two members share', () => first.owned() === 2 && second.owned() === 2)
  await fill('two')
  await until('two members read all', () => processed.length === 40)
  await second.leave()
  await until('the other takes over', () => first.owned() === PARTITIONS)
  await fill('three')
  await until('it reads all again', () => processed.length === 60)
  await first.leave()
  await fill('four')
  const third = await member(t, group, topic, take)
  await until('a later member resumes', () => processed.length >= 80)
  await third.leave()
  // Committed after each record, and nobody died: so nothing was read twice either.
  assert.deepEqual(processed.sort(), wanted.sort())
})
