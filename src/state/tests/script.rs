//! The commands of the golden scripts in `src/state/scripts`. Each applies one entry; outcome and effects are printed.
//!
//! ```text
//! topic a 2 [key=value ..]       create topic `a` with 2 partitions        delete a
//! produce 0:1 a/0:10+5 ..        producer 0 at epoch 1 (`-`: none), 5 records from sequence 10; `=text` other data, `txn` transactional
//! init t [0:1]                   InitProducerId of `t` (`-`: no transactional id), holding pair 0:1
//! begin t 0:1                    TV1's marker
//! chunk t 0:1 new|STAGE NUMBER BATCH ..
//! commit t 0:1 begin:4|epoch [bump] [chunks:STAGE:COUNT[:bad]] [g:a/0=7@3 ..] BATCH ..      (offset 7, staged at index 3)
//!                                `as:1:0`: batches of another producer; `plain`: without the transactional bit
//! abort t 0:1 [begin:4] [bump] [unknown] [a/0:10-14 ..]
//! offsets g a/0=7 ..             a plain OffsetCommit
//! set a|broker key=value|key     AlterConfigs
//! grow a 3                       CreatePartitions
//! trim a/0=5 a/1=-1 ..           the log starts at 5, at its end
//! expire SINCE [producer:0] [id:t] [offset:g:a/0] ..                        drop STAGE ..
//! handover [t 0:1] ..           a planned transfer, with those transactions open
//! term 2 | clock 5000 | epoch-max 2 | sequence of entries, time, edge       reload: through bytes and back
//! show topics | a/0 | producer 0 | id t | group g | chunks
//! ```
//! `a~` is the topic that had the name `a` before the last one that has it.

use std::fmt::Write as _;

use bytes::Bytes;

use crate::state::Machine;
use crate::state::command::*;
use crate::state::transactions::TransactionalId;
use crate::types::record_batch::sample;
use crate::types::{LogIndex, Offset, ProducerIdAndEpoch, Refusal, Term, TopicId, TopicPartition};

/// A machine and what the next entry is applied with.
pub struct Script {
    machine: Machine,
    next_index: u64,
    term: u64,
    now_ms: i64,
    topics: Vec<(String, TopicId)>,
}

impl Script {
    pub fn new() -> Self {
        Self { machine: Machine::default(), next_index: 1, term: 1, now_ms: 1_000, topics: Vec::new() }
    }

    pub fn run(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (verb, rest) = (words[0], &words[1..]);
        match verb {
            "term" => {
                self.term = number(rest[0]);
                let index = self.take_index();
                self.machine.apply_blank(LogIndex(index), Term(self.term));
                format!("@{index} blank of term {}", self.term)
            }
            "clock" => {
                self.now_ms = number(rest[0]);
                String::new()
            }
            "epoch-max" => {
                self.machine.transactions.set_epoch_max(number(rest[0]));
                String::new()
            }
            "reload" => {
                let bytes = Bytes::from(self.machine.to_bytes());
                let mut again = Machine::from_bytes(&bytes).expect("own bytes are read");
                // Not part of the state: the same in every build.
                again.transactions.epoch_max = self.machine.transactions.epoch_max;
                let same = again == self.machine;
                self.machine = again;
                if same { "equal".into() } else { "DIFFERENT".into() }
            }
            "show" => self.show(rest),
            _ => {
                let command = self.command(verb, rest);
                let index = self.take_index();
                let entry = Entry { now_ms: self.now_ms, command };
                let (effects, outcome) = self.machine.apply(LogIndex(index), Term(self.term), &entry);
                self.topics.extend(effects.created.iter().map(|(id, name, _)| (name.clone(), *id)));
                format!("@{index} {}{}", self.outcome(&outcome), self.effects(&effects))
            }
        }
    }

    fn take_index(&mut self) -> u64 {
        self.next_index += 1;
        self.next_index - 1
    }

    // --- words into commands ---------------------------------------------------------------------

    fn command(&mut self, verb: &str, words: &[&str]) -> Command {
        match verb {
            "topic" => {
                let id = TopicId([u8::try_from(self.next_index).expect("a short script"); 16]);
                let configs = words[2..].iter().map(|word| pair_of(word, '=')).collect();
                let topic = NewTopic { id, name: words[0].to_owned(), partitions: number(words[1]), configs };
                Command::CreateTopics(vec![topic])
            }
            "delete" => Command::DeleteTopics(words.iter().map(|name| self.topic(name)).collect()),
            "produce" => Command::Produce(self.batches(words[0], &words[1..], words.contains(&"txn"))),
            "init" => Command::InitProducerId(InitProducerId {
                transactional_id: (words[0] != "-").then(|| words[0].to_owned()),
                timeout_ms: 60_000,
                given: words.get(1).map(|word| producer(word)),
            }),
            "begin" => {
                Command::TxnBegin(TxnBegin { transactional_id: words[0].to_owned(), producer: producer(words[1]) })
            }
            "chunk" => Command::TxnChunk(TxnChunk {
                transactional_id: words[0].to_owned(),
                producer: producer(words[1]),
                stage_id: (words[2] != "new").then(|| LogIndex(number(words[2]))),
                number: number(words[3]),
                batches: self.batches(words[1], &words[4..], true),
            }),
            "commit" => Command::TxnCommit(self.commit(words)),
            "abort" => Command::TxnAbort(self.abort(words)),
            "offsets" => {
                let offsets = words[1..].iter().map(|word| self.offset_write(word)).collect();
                Command::OffsetCommit(GroupOffsets { group: words[0].to_owned(), offsets })
            }
            "set" => Command::AlterConfigs(words[1..].iter().map(|word| self.change(words[0], word)).collect()),
            "expire" => Command::Expire(self.expire(words)),
            "grow" => {
                let more =
                    words.chunks(2).map(|pair| NewPartitions { topic: self.topic(pair[0]), count: number(pair[1]) });
                Command::CreatePartitions(more.collect())
            }
            "trim" => Command::TrimPartitions(words.iter().map(|word| self.trim(word)).collect()),
            "handover" => {
                let open = words.chunks(2).map(|pair| (pair[0].to_owned(), producer(pair[1])));
                Command::HandOver(HandOver { open: open.collect() })
            }
            "drop" => Command::DropStages(words.iter().map(|word| LogIndex(number(word))).collect()),
            other => panic!("unknown command {other}"),
        }
    }

    fn topic(&self, name: &str) -> TopicId {
        let (name, older) = (name.trim_end_matches('~'), name.matches('~').count());
        let mut named = self.topics.iter().rev().filter(|(known, _)| known == name);
        // Never created: an id that nobody has.
        named.nth(older).map_or(TopicId([0xff; 16]), |(_, id)| *id)
    }

    fn partition(&self, word: &str) -> TopicPartition {
        let (topic, partition) = word.split_once('/').expect("topic/partition");
        TopicPartition { topic: self.topic(topic), partition: number(partition) }
    }

    /// `a/0:10+5=text`
    fn batches(&self, by: &str, words: &[&str], transactional: bool) -> Vec<Batch> {
        let by = if by == "-" { ProducerIdAndEpoch { producer_id: -1, epoch: -1 } } else { producer(by) };
        let one = |word: &&str| {
            let (to, range) = word.split_once(':')?;
            let (range, body) = range.split_once('=').unwrap_or((range, "records"));
            let (first, count) = range.split_once('+')?;
            let pair = (by.producer_id, by.epoch);
            let sent = sample::batch(pair, number(first), number(count), transactional, body.as_bytes());
            Some(Batch::new(self.partition(to), &sent))
        };
        words.iter().filter_map(one).collect()
    }

    fn commit(&self, words: &[&str]) -> TxnCommit {
        let begin = words.iter().find_map(|word| word.strip_prefix("begin:"));
        let chunks = words.iter().find_map(|word| word.strip_prefix("chunks:")).map(|word| {
            let parts: Vec<&str> = word.split(':').collect();
            let stage_id = LogIndex(number(parts[0]));
            let crc = self.machine.transactions.chunks(stage_id).map_or(0, |stage| stage.crc);
            Chunks { stage_id, count: number(parts[1]), crc: crc ^ u32::from(parts.len() > 2) }
        });
        let staged = words.iter().filter_map(|word| {
            let (write, staged_at) = word.split_once('@')?;
            let (group, write) = write.split_once(':')?;
            let offsets = vec![self.offset_write(write)];
            Some(StagedOffsets { group: group.to_owned(), staged_at: LogIndex(number(staged_at)), offsets })
        });
        TxnCommit {
            transactional_id: words[0].to_owned(),
            producer: producer(words[1]),
            fence: begin.map_or(TxnFence::Epoch, |index| TxnFence::Begin(LogIndex(number(index)))),
            bump: words.contains(&"bump"),
            batches: {
                // `as:1:0` and `plain` spoil them.
                let by = words.iter().find_map(|word| word.strip_prefix("as:")).unwrap_or(words[1]);
                self.batches(by, &words[2..], !words.contains(&"plain"))
            },
            chunks,
            offsets: staged.collect(),
        }
    }

    fn abort(&self, words: &[&str]) -> TxnAbort {
        let skipped = words[2..].iter().filter_map(|word| {
            let (partition, range) = word.split_once(':').filter(|(partition, _)| partition.contains('/'))?;
            let (first, last) = range.split_once('-')?;
            Some((self.partition(partition), number(first), number(last)))
        });
        TxnAbort {
            transactional_id: words[0].to_owned(),
            producer: producer(words[1]),
            begin: words.iter().find_map(|word| word.strip_prefix("begin:")).map(|index| LogIndex(number(index))),
            bump: words.contains(&"bump"),
            skipped: skipped.collect(),
            skips_unknown: words.contains(&"unknown"),
        }
    }

    fn offset_write(&self, word: &str) -> OffsetWrite {
        let (partition, offset) = word.split_once('=').expect("partition=offset");
        let of = self.partition(partition);
        OffsetWrite { of, offset: Offset(number(offset)), leader_epoch: -1, metadata: String::new() }
    }

    fn trim(&self, word: &str) -> Trim {
        let (partition, to) = word.split_once('=').expect("partition=offset");
        Trim { of: self.partition(partition), to: Offset(number(to)) }
    }

    fn change(&self, of: &str, word: &str) -> ConfigChange {
        let resource = if of == "broker" { ConfigResource::Broker } else { ConfigResource::Topic(self.topic(of)) };
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value.to_owned())));
        ConfigChange { resource, name: name.to_owned(), value }
    }

    fn expire(&self, words: &[&str]) -> Expire {
        let mut expire = Expire { idle_since_ms: number(words[0]), ..Expire::default() };
        for word in &words[1..] {
            match word.split_once(':').expect("kind:what") {
                ("producer", id) => expire.producers.push(number(id)),
                ("id", id) => expire.transactional_ids.push(id.to_owned()),
                (_, offset) => {
                    let (group, partition) = pair_of(offset, ':');
                    expire.offsets.push((group, self.partition(&partition)));
                }
            }
        }
        expire
    }

    // --- what became visible -----------------------------------------------------------------------

    fn name(&self, of: TopicPartition) -> String {
        let known = self.topics.iter().find(|(_, id)| *id == of.topic).map_or("?", |(name, _)| name.as_str());
        format!("{known}/{}", of.partition)
    }

    fn outcome(&self, outcome: &Outcome) -> String {
        match outcome {
            Outcome::Done => "done".into(),
            Outcome::Produced(results) => lines(results, |ok| {
                let time =
                    if ok.log_append_time_ms < 0 { String::new() } else { format!(" time {}", ok.log_append_time_ms) };
                format!("written at {}{time}", ok.base_offset.0)
            }),
            Outcome::ProducerId(result) => lines(&[*result], pair),
            Outcome::Staged(result) => lines(&[*result], |()| "staged".into()),
            Outcome::Ended(result) => lines(&[*result], |next| format!("ended, go on as {}", pair(next))),
            Outcome::Topics(results) => lines(results, |id| format!("topic {}", id.0[0])),
            Outcome::Offsets(results) => lines(results, |()| "committed".into()),
            Outcome::Trimmed(results) => lines(results, |start| format!("starts at {}", start.0)),
        }
    }

    fn effects(&self, effects: &Effects) -> String {
        let mut out = String::new();
        for (_, name, partitions) in &effects.created {
            let _ = write!(out, "\n    created {name} with {partitions}");
        }
        for id in &effects.deleted {
            let _ = write!(out, "\n    deleted topic {}", id.0[0]);
        }
        for id in &effects.reconfigured {
            let _ = write!(out, "\n    reconfigured topic {}", id.0[0]);
        }
        for (of, start) in &effects.trimmed {
            let _ = write!(out, "\n    trimmed {} to {}", self.name(*of), start.0);
        }
        for one in &effects.appended {
            let records = &one.records;
            let body = String::from_utf8_lossy(&records.bytes()[61..]).into_owned();
            let (to, base, next) = (self.name(one.to), one.base_offset.0, one.next_offset.0);
            let _ = write!(out, "\n    append {to} offsets {base}..{next} {body}");
            if records.is_log_append_time() {
                let _ = write!(out, " time {}", records.max_timestamp());
            }
        }
        out
    }

    fn show(&self, words: &[&str]) -> String {
        let machine = &self.machine;
        match words {
            ["topics"] => {
                let one = |topic: &std::sync::Arc<crate::state::topics::Topic>| {
                    format!(
                        "{} id {} partitions {} {:?}\n",
                        topic.name,
                        topic.id.0[0],
                        topic.partitions.len(),
                        topic.configs
                    )
                };
                machine.topics.iter().map(one).collect()
            }
            ["producer", id] => self.show_producer(number(id)),
            ["id", id] => machine.transactions.get(id).map_or("none".into(), show_id),
            ["group", group] => {
                let offsets = machine.group_offsets.group(group).map(|state| &state.offsets);
                let one = |(of, found): (&TopicPartition, &crate::state::group_offsets::CommittedOffset)| {
                    format!("{} offset {} as of @{}\n", self.name(*of), found.offset.0, found.index.0)
                };
                offsets.map_or("none".into(), |offsets| offsets.iter().map(one).collect())
            }
            ["chunks"] => {
                let one = |(id, stage): (LogIndex, &crate::state::transactions::StageChunks)| {
                    let (of, by) = (&stage.transactional_id, pair(&stage.producer));
                    format!("stage {} of {of} {by}: {} chunks, {} batches\n", id.0, stage.count, stage.batches.len())
                };
                let all: String = machine.transactions.open_chunks().map(one).collect();
                if all.is_empty() { "none".into() } else { all }
            }
            [partition] => machine.topics.partition(self.partition(partition)).map_or("none".into(), |found| {
                let epochs: Vec<_> = found.leader_epochs.iter().map(|(term, offset)| (term.0, offset.0)).collect();
                format!("start {} next {} epochs {epochs:?}", found.log_start_offset.0, found.next_offset.0)
            }),
            other => panic!("cannot show {other:?}"),
        }
    }

    fn show_producer(&self, id: i64) -> String {
        let Some(producer) = self.machine.producers.get(id) else { return "none".into() };
        let mut out = String::new();
        for (at, state) in &producer.partitions {
            let batches: Vec<String> = state
                .batches
                .iter()
                .map(|b| format!("{}-{}@{}", b.first_sequence, b.last_sequence, b.base_offset.0))
                .collect();
            let _ = write!(out, "{} epoch {} batches [{}]", self.name(*at), state.epoch, batches.join(" "));
            if let Some((first, last)) = state.aborted {
                let _ = write!(out, " aborted {first}-{last}");
            }
            out.push('\n');
        }
        out
    }
}

fn show_id(id: &TransactionalId) -> String {
    let mut out = format!("current {}", pair(&id.producer));
    if let Some(previous) = &id.previous {
        let _ = write!(out, ", previous {}", pair(previous));
    }
    if let Some(last) = id.last_end {
        let _ = write!(out, ", last end {:?} at epoch {}", last.result, last.epoch);
    }
    if let Some(open) = id.open_begin {
        let _ = write!(out, ", open since @{} of term {}", open.index.0, open.term.0);
    }
    let _ = write!(out, ", clean in term {}", id.clean_term.0);
    out
}

fn lines<T>(results: &[Result<T, Refusal>], show: impl Fn(&T) -> String) -> String {
    let one = |result: &Result<T, Refusal>| match result {
        Ok(value) => show(value),
        Err(refusal) => format!("refused: {refusal}"),
    };
    results.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn pair(of: &ProducerIdAndEpoch) -> String {
    format!("{}:{}", of.producer_id, of.epoch)
}

fn producer(word: &str) -> ProducerIdAndEpoch {
    let (producer_id, epoch) = word.split_once(':').expect("producer id:epoch");
    ProducerIdAndEpoch { producer_id: number(producer_id), epoch: number(epoch) }
}

fn pair_of(word: &str, separator: char) -> (String, String) {
    let (left, right) = word.split_once(separator).expect("two parts");
    (left.to_owned(), right.to_owned())
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word} is not a number of the right size"))
}
