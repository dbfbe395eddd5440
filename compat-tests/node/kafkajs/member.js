// A member of a consumer group that commits each record before it counts as processed.
'use strict'

const kit = require('./kit.js')

/** `take` gets each record once its offset is committed, `doubt` those whose commit failed, perhaps after it was executed. */
async function member(t, group, topic, take, doubt = () => {}) {
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
    eachMessage: async ({ partition, message }) => {
      const offset = Number(message.offset)
      try {
        await consumer.commitOffsets([{ topic, partition, offset: String(offset + 1) }])
      } catch (error) {
        doubt(kit.text(message))
        // It makes the client join again and go on from the committed offset.
        throw error
      }
      take(kit.text(message), partition, offset)
    },
  })
  return {
    owned: () => owned,
    leave: () => kit.within('leave', consumer.disconnect(), 20_000),
  }
}

module.exports = { member }
