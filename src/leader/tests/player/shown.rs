//! Answers, proposals and state as a script shows them.

use super::Player;
use crate::leader::request::*;
use crate::state::command::{Appended, Command, OffsetWrite, Trim, TxnFence};
use crate::types::{Offset, ProducerIdAndEpoch, Refusal, TopicId, TopicPartition};

/// What is shown.
impl Player {
    pub(super) fn name(&self, of: TopicPartition) -> String {
        let name = self.topics.iter().find(|(_, id)| **id == of.topic).map_or("?", |(name, _)| name);
        format!("{name}-{}", of.partition)
    }

    pub(super) fn told(&self, response: &Response) -> String {
        let part =
            |result: &Result<(), Refusal>| result.as_ref().map_or_else(|why| format!("{why:?}"), |()| "ok".into());
        match response {
            Response::Refused(refusal) => format!("{refusal:?}"),
            Response::Close => "close".to_owned(),
            Response::Produced(parts) => {
                let part = |result: &Result<Acked, Refusal>| match result {
                    Ok(Acked::Written(outcome)) => format!("offset {}", outcome.base_offset.0),
                    Ok(Acked::Staged { record_count, .. }) => format!("staged {record_count}"),
                    Err(refusal) => format!("{refusal:?}"),
                };
                parts.iter().map(part).collect::<Vec<_>>().join(", ")
            }
            Response::ProducerId(pair) => format!("producer {}/{}", pair.producer_id, pair.epoch),
            Response::Ended(pair) => format!("ended, go on as {}/{}", pair.producer_id, pair.epoch),
            Response::Parts(parts) => parts.iter().map(part).collect::<Vec<_>>().join(", "),
            Response::Done => "ok".to_owned(),
            Response::Joined(joined) => format!("joined generation {} as {}", joined.generation, joined.member_id),
            Response::Synced(synced) => format!("synced, {} bytes", synced.assignment.len()),
            Response::Left(parts) => parts.iter().map(part).collect::<Vec<_>>().join(", "),
            Response::Offsets(offsets) if offsets.is_empty() => "no offsets".to_owned(),
            Response::Offsets(offsets) => {
                let one = |(of, result): &(TopicPartition, Result<Option<FetchedOffset>, Refusal>)| {
                    let told = match result {
                        Ok(Some(offset)) => offset.offset.0.to_string(),
                        Ok(None) => "none".to_owned(),
                        Err(refusal) => format!("{refusal:?}"),
                    };
                    format!("{} {told}", self.name(*of))
                };
                offsets.iter().map(one).collect::<Vec<_>>().join(", ")
            }
            Response::Trimmed(starts) => {
                let one = |result: &Result<Offset, Refusal>| match result {
                    Ok(start) => format!("starts at {}", start.0),
                    Err(refusal) => format!("{refusal:?}"),
                };
                starts.iter().map(one).collect::<Vec<_>>().join(", ")
            }
            Response::Topics(topics) => {
                let one =
                    |result: &Result<TopicId, Refusal>| result.map_or_else(|why| format!("{why:?}"), |_| "ok".into());
                topics.iter().map(one).collect::<Vec<_>>().join(", ")
            }
            other => format!("{other:?}"),
        }
    }

    pub(super) fn batches(&self, batches: &[crate::state::command::Batch]) -> String {
        let one = |batch: &crate::state::command::Batch| {
            let view = batch.view();
            format!(" {}:{}+{}", self.name(batch.to), view.base_sequence(), view.record_count())
        };
        batches.iter().map(one).collect()
    }

    pub(super) fn writes_told(&self, group: &str, offsets: &[OffsetWrite]) -> String {
        let one = |write: &OffsetWrite| format!(" {group}[{}={}]", self.name(write.of), write.offset.0);
        offsets.iter().map(one).collect()
    }

    pub(super) fn command(&self, command: &Command) -> String {
        let told = |pair: ProducerIdAndEpoch| format!("{}/{}", pair.producer_id, pair.epoch);
        match command {
            Command::Produce(batches) => format!("Produce{}", self.batches(batches)),
            Command::OffsetCommit(commit) => {
                format!("OffsetCommit{}", self.writes_told(&commit.group, &commit.offsets))
            }
            Command::InitProducerId(init) => {
                let given = init.given.map(|given| format!(" given {}", told(given))).unwrap_or_default();
                format!("InitProducerId {}{given}", init.transactional_id.as_deref().unwrap_or("-"))
            }
            Command::TxnBegin(begin) => format!("TxnBegin {} {}", begin.transactional_id, told(begin.producer)),
            Command::TxnChunk(chunk) => format!(
                "TxnChunk {} {} stage {} number {}{}",
                chunk.transactional_id,
                told(chunk.producer),
                chunk.stage_id.map(|id| id.0).map_or("new".to_owned(), |id| id.to_string()),
                chunk.number,
                self.batches(&chunk.batches)
            ),
            Command::TxnCommit(commit) => {
                let fence = match commit.fence {
                    TxnFence::Begin(index) => format!("begin {}", index.0),
                    TxnFence::Epoch => "epoch".to_owned(),
                };
                let offsets = commit.offsets.iter().map(|staged| self.writes_told(&staged.group, &staged.offsets));
                format!(
                    "TxnCommit {} {} {}{}{}{}{}",
                    commit.transactional_id,
                    told(commit.producer),
                    fence,
                    if commit.bump { " bump" } else { "" },
                    commit
                        .chunks
                        .map(|chunks| format!(" after {} chunks of {}", chunks.count, chunks.stage_id.0))
                        .unwrap_or_default(),
                    self.batches(&commit.batches),
                    offsets.collect::<String>()
                )
            }
            Command::TxnAbort(abort) => {
                let skipped =
                    abort.skipped.iter().map(|(at, first, last)| format!(" skip {}:{first}-{last}", self.name(*at)));
                format!(
                    "TxnAbort {} {}{}{}{}{}",
                    abort.transactional_id,
                    told(abort.producer),
                    abort.begin.map(|begin| format!(" begin {}", begin.0)).unwrap_or_default(),
                    if abort.bump { " bump" } else { "" },
                    skipped.collect::<String>(),
                    if abort.skips_unknown { " skip unknown" } else { "" }
                )
            }
            Command::CreateTopics(topics) => format!("CreateTopics {}", topics[0].name),
            Command::DeleteTopics(topics) => format!("DeleteTopics {}", topics.len()),
            Command::CreatePartitions(more) => format!("CreatePartitions {}", more.len()),
            Command::TrimPartitions(trims) => {
                let one = |trim: &Trim| format!(" {} to {}", self.name(trim.of), trim.to.0);
                format!("TrimPartitions{}", trims.iter().map(one).collect::<String>())
            }
            Command::Expire(expire) => {
                let (producers, ids) = (expire.producers.len(), &expire.transactional_ids);
                format!("Expire {producers} producers, ids {ids:?}, {} offsets", expire.offsets.len())
            }
            Command::DropStages(stages) => format!("DropStages {:?}", stages.iter().map(|id| id.0).collect::<Vec<_>>()),
            Command::HandOver(list) => {
                let open = list.open.iter().map(|(id, producer)| format!(" {id} {}", told(*producer)));
                format!("HandOver{}", open.collect::<String>())
            }
            Command::AlterConfigs(changes) => format!("AlterConfigs {}", changes.len()),
        }
    }

    pub(super) fn show_log(&self, word: &str) -> String {
        let of = self.partition(word);
        let one = |appended: &Appended| {
            let batch = &appended.records;
            let body = String::from_utf8_lossy(&batch.bytes()[61..]).chars().take(12).collect::<String>();
            let sequence = (batch.producer_id() >= 0).then(|| {
                format!(" {}/{} sequence {}", batch.producer_id(), batch.producer_epoch(), batch.base_sequence())
            });
            let (first, next) = (appended.base_offset.0, appended.next_offset.0);
            format!("{first}..{next}{} \"{body}\"\n", sequence.unwrap_or_default())
        };
        let shown: String = self.appended.iter().filter(|appended| appended.to == of).map(one).collect();
        if shown.is_empty() { format!("{word} is empty") } else { shown }
    }

    pub(super) fn show_id(&self, id: &str) -> String {
        let Some(state) = self.machine.transactions().get(id) else { return format!("{id} is unknown") };
        let pair = |pair: ProducerIdAndEpoch| format!("{}/{}", pair.producer_id, pair.epoch);
        format!(
            "current {}, previous {}, last end {}, {}, clean in term {}, chunks of {} stages",
            pair(state.producer),
            state.previous.map_or("none".to_owned(), pair),
            state.last_end.map_or("none".to_owned(), |end| format!("{:?} at epoch {}", end.result, end.epoch)),
            state.open_begin.map_or("no begin open".to_owned(), |begin| format!("begin {} open", begin.index.0)),
            state.clean_term.0,
            self.machine.transactions().open_chunks().count()
        )
    }

    pub(super) fn show_offsets(&self, group: &str) -> String {
        let Some(state) = self.machine.group_offsets().group(group) else { return format!("{group} has no offsets") };
        let one = |(of, committed): (&TopicPartition, &crate::state::group_offsets::CommittedOffset)| {
            format!("{} {}\n", self.name(*of), committed.offset.0)
        };
        state.offsets.iter().map(one).collect()
    }
}
