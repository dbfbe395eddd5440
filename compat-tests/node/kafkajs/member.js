// A member of a consumer group that commits each record before it counts as processed.
'use strict'

const kit = require('./kit.js')

async function member(t, group, topic, take) {
  const consumer = kit.closing(
    t,
    kit.kafka().consumer({
      groupId: group,
      maxWaitTimeInMs: 100,
      sessionTimeout: 6000,
      heartbeatInterval: 300,
      rebalanceTimeout: 6000,
    })
  )
  let owned = 0
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    owned = (payload.memberAssignment[topic] ?? []).length
  })
  consumer.on(consumer.events.REBALANCING, () => {
    owned = 0
  })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    // A rejected commit makes the client rejoin and read the record again.
    eachMessage: async ({ partition, message }) => {
      await consumer.commitOffsets([{ topic, partition, offset: String(Number(message.offset) + 1) }])
      take(kit.text(message))
    },
  })
  return {
    owned: () => owned,
    leave: () => kit.within('leave', consumer.disconnect(), 20_000),
  }
}

module.exports = { member }
