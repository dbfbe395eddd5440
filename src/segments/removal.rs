//! Files that are of no use any more, and when they may go.
//!
//! A file named by the newest durable manifest is what a restart begins from, so it stays until the next manifest is
//! durable. After that it stays for as long as a reader has an index at which it was there. A power cut in between
//! leaves files that no manifest names; start-up removes those.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Shared;
use super::segment::Kind;
use super::tail::Partition;
use crate::types::{LogIndex, TopicId, TopicPartition};

/// Files that no manifest will name any more.
pub(super) enum Gone {
    /// A segment below its partition's log start, by its base.
    Segment(Arc<Partition>, i64),
    /// A partition whose topic is deleted.
    Partition(Arc<Partition>),
}

/// What is to be removed, in log order.
#[derive(Default)]
pub(super) struct Removals {
    /// What the newest manifest may name, with the entry since which it is useless.
    named: Vec<(LogIndex, Gone)>,
    /// What it does not name.
    unnamed: VecDeque<(LogIndex, Gone)>,
    /// Files of segments that a received checkpoint put others in the place of; the manifest before it may name them.
    leftovers: Vec<Leftover>,
    /// The same, once no manifest does.
    unnamed_leftovers: Vec<Leftover>,
}

/// A file in the live folder of a partition: its path means it only until the topic is deleted.
struct Leftover {
    of: TopicPartition,
    base: i64,
    path: PathBuf,
}

impl Removals {
    /// From the entry at `index` on this is useless.
    pub(super) fn note(&mut self, index: LogIndex, gone: Gone) {
        self.named.push((index, gone));
    }

    /// Files that the checkpoint just received has no use for.
    pub(super) fn note_leftover(&mut self, of: TopicPartition, base: i64, path: PathBuf) {
        self.leftovers.push(Leftover { of, base, path });
    }

    /// The topic's folders are renamed, and go as a whole: the old paths may soon be another topic's files.
    pub(super) fn forget_leftovers(&mut self, topic: TopicId) {
        self.leftovers.retain(|leftover| leftover.of.topic != topic);
        self.unnamed_leftovers.retain(|leftover| leftover.of.topic != topic);
    }

    /// These partitions were replaced by what a checkpoint says of them; their dropped segments are leftovers from now on.
    pub(super) fn forget_segments_of(&mut self, replaced: &BTreeMap<TopicPartition, Arc<Partition>>) {
        let stays = |(_, gone): &(LogIndex, Gone)| match gone {
            Gone::Segment(partition, _) => !replaced.contains_key(&partition.id),
            Gone::Partition(_) => true,
        };
        self.named.retain(stays);
        self.unnamed.retain(stays);
    }

    /// The newest manifest names nothing of what was noted.
    pub(super) fn manifest_is_durable(&mut self) {
        self.unnamed.extend(self.named.drain(..));
        self.unnamed_leftovers.append(&mut self.leftovers);
    }

    /// Unlinks what no manifest names, as far as no reader has an index at which it was there. Nothing while somebody pulls
    /// a checkpoint that may name it.
    pub(super) fn carry_out(&mut self, shared: &Shared) -> Result<(), String> {
        let none = self.unnamed.is_empty() && self.unnamed_leftovers.is_empty();
        if none || shared.transfers.hold_files() {
            return Ok(());
        }
        for Leftover { of, base, path } in self.unnamed_leftovers.drain(..) {
            remove_file(shared, &path)?;
            shared.files.forget_segment(of, base);
        }
        while let Some((index, _)) = self.unnamed.front() {
            if shared.pins.least().is_none_or(|least| least < *index) {
                return Ok(());
            }
            match self.unnamed.pop_front() {
                Some((_, Gone::Segment(partition, base))) => remove_segment(shared, &partition, base)?,
                Some((_, Gone::Partition(partition))) => remove_partition(shared, &partition)?,
                None => {}
            }
        }
        Ok(())
    }
}

fn remove_segment(shared: &Shared, partition: &Partition, base: i64) -> Result<(), String> {
    {
        // From the list first: who does not find the file then knows why.
        let mut list = partition.files.lock();
        let first = list.segments.first().map(|segment| segment.base);
        assert!(list.dropped > 0 && first == Some(base), "segments go in their order, once they are dropped");
        list.segments.remove(0);
        list.dropped -= 1;
        if list.deleted {
            // The whole folder follows.
            return Ok(());
        }
    }
    for kind in Kind::ALL {
        remove_file(shared, &shared.files.path(partition, base, kind))?;
    }
    shared.files.forget_segment(partition.id, base);
    Ok(())
}

/// An index without entries has no file, so a missing one is fine.
fn remove_file(shared: &Shared, path: &Path) -> Result<(), String> {
    match shared.files.disk().remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!("{}: {error}", path.display())),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn remove_partition(shared: &Shared, partition: &Partition) -> Result<(), String> {
    shared.table.write().remove(&partition.id);
    if partition.files.lock().folder {
        let folder = shared.files.folder(partition);
        shared.files.disk().remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    shared.files.forget(partition.id);
    Ok(())
}
