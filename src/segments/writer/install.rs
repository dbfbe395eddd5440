//! A received checkpoint takes the place of this node's own: renames, one durable manifest, new partitions.
//!
//! Until the manifest is renamed and that is synced, the old one stays in force, and everything it names is still there:
//! a replaced file only grew, a folder in the way has its deleted name, which recovery gives back. What the new
//! manifest does not name goes with the next checkpoint.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use super::{Stop, Writer};
use crate::segments::checkpoint;
use crate::segments::fetcher::{self, Staged};
use crate::segments::queue::InstallJob;
use crate::segments::segment::{Kind, Segment, file_name, folder};
use crate::segments::tail::Partition;
use crate::segments::transfer::Offer;
use crate::segments::{Installed, SegmentError};
use crate::types::{LogIndex, TopicPartition};

impl Writer {
    /// Carries out an installation; an error of the disk ends the writer, anything else leaves all as it was.
    pub(super) fn install(&mut self, job: InstallJob) -> Result<(), Stop> {
        let InstallJob { staged, done } = job;
        if let Err(error) = self.check(&staged) {
            done(Err(error));
            return Ok(());
        }
        match self.put_in_place(&staged) {
            Ok(installed) => {
                done(Ok(installed));
                Ok(())
            }
            Err(stop) => {
                if let Stop::Failed(failure) = &stop {
                    self.shared.queue.set_failure(failure.clone());
                }
                done(Err(super::error_of(self.files().dir().to_owned(), &stop)));
                Err(stop)
            }
        }
    }

    /// Every segment that the manifest names must be staged, or be here as it says.
    fn check(&self, staged: &Staged) -> Result<(), SegmentError> {
        let logs = staged.files.iter().filter(|file| file.kind == Kind::Log);
        let received: BTreeSet<_> = logs.map(|file| (file.of, file.base)).collect();
        for topic in &staged.manifest.topics {
            for entry in &topic.partitions {
                let of = TopicPartition { topic: topic.id, partition: entry.partition };
                for segment in entry.segments.iter().filter(|segment| !received.contains(&(of, segment.base))) {
                    let own = self.partitions.get(&of).and_then(|partition| partition.segment_of(segment.base));
                    if own != Some(*segment) {
                        let of = folder(self.files().dir(), &topic.name, topic.id, entry.partition, false);
                        let path = of.join(file_name(segment.base, Kind::Log));
                        let what = "it changed while a checkpoint was received".to_owned();
                        return Err(SegmentError::Damaged { path, position: segment.len, what });
                    }
                }
            }
        }
        Ok(())
    }

    fn put_in_place(&mut self, staged: &Staged) -> Result<Installed, Stop> {
        // What stays in place must be durable before a manifest names it.
        self.sync()?;
        let named: BTreeMap<TopicPartition, (&str, &checkpoint::Partition)> = staged.partitions().collect();
        let gone: BTreeSet<_> =
            self.partitions.keys().filter(|of| !named.contains_key(of)).map(|of| of.topic).collect();
        let index = staged.checkpoint().applied.map_or(LogIndex(0), |(index, _)| index);
        for topic in gone {
            self.delete(topic, index)?;
        }
        if self.renamed {
            self.sync_root()?;
        }
        self.move_files(staged, &named)?;
        let root = self.files().dir().to_owned();
        let path = root.join(checkpoint::NAME);
        let disk = self.files().disk().clone();
        let failed = |error: std::io::Error| Stop::Failed(format!("{}: {error}", path.display()));
        disk.rename(&root.join(fetcher::DIR).join(fetcher::MANIFEST), &path).map_err(failed)?;
        self.sync_root()?;
        let file = disk.open(&path, false).map_err(failed)?;
        if let Some((index, term)) = staged.checkpoint().applied {
            let offer = Offer { index, term, manifest_bytes: file.len().map_err(failed)? };
            self.shared.transfers.wrote(offer, file);
        }
        self.remove_incoming()?;
        Ok(self.take_over(staged))
    }

    fn move_files(
        &mut self,
        staged: &Staged,
        named: &BTreeMap<TopicPartition, (&str, &checkpoint::Partition)>,
    ) -> Result<(), Stop> {
        let failed = |path: PathBuf| move |error: std::io::Error| Stop::Failed(format!("{}: {error}", path.display()));
        let disk = self.files().disk().clone();
        let mut folders = BTreeSet::new();
        for file in &staged.files {
            let (name, _) = named[&file.of];
            let folder = folder(self.files().dir(), name, file.of.topic, file.of.partition, false);
            if folders.insert(folder.clone()) {
                disk.create_dir_all(&folder).map_err(failed(folder.clone()))?;
                // Open handles are of the files that are replaced.
                self.files().forget(file.of);
            }
            let path = folder.join(file_name(file.base, file.kind));
            disk.rename(&file.path, &path).map_err(failed(path.clone()))?;
        }
        for folder in &folders {
            disk.sync_dir(folder).map_err(failed(folder.clone()))?;
        }
        // Again: a reader may have opened an old file between the first time and its replacement.
        for file in &staged.files {
            self.files().forget(file.of);
        }
        // Some may be new: the manifest must not outlive their names.
        if folders.is_empty() { Ok(()) } else { self.sync_root() }
    }

    /// Removes `incoming/`: installed, or of no use any more.
    pub(super) fn remove_incoming(&self) -> Result<(), Stop> {
        let dir = self.files().dir().join(fetcher::DIR);
        match self.files().disk().remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Stop::Failed(format!("{}: {error}", dir.display())))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Removes `incoming/` once this node has got further without it.
    pub(super) fn drop_stale_incoming(&self, applied: LogIndex) -> Result<(), Stop> {
        let Ok(names) = self.files().disk().list(&self.files().dir().join(fetcher::DIR)) else { return Ok(()) };
        let index = names.iter().filter_map(|name| name.to_str()?.strip_prefix(fetcher::MARKER)?.parse::<u64>().ok());
        if index.max().is_none_or(|index| index <= applied.0)
            && let Err(Stop::Failed(error)) = self.remove_incoming()
        {
            // A transfer may begin in it just now. What is left goes with the next checkpoint.
            tracing::warn!(error, "what came of an old transfer cannot be removed");
        }
        Ok(())
    }

    /// The writer goes on from the new content.
    fn take_over(&mut self, staged: &Staged) -> Installed {
        let index = staged.checkpoint().applied.map_or(LogIndex(0), |(index, _)| index);
        let mut partitions = BTreeMap::new();
        for (id, (name, entry)) in staged.partitions() {
            let name: Arc<str> = match self.partitions.get(&id) {
                Some(own) => own.topic.clone(),
                None => name.into(),
            };
            self.note_leftovers(id, &entry.segments);
            // Who reads at an earlier index must not see a part of what this brings.
            let bounds = (entry.log_start.0, entry.end.0);
            let partition = Partition::new(id, name, index, bounds, entry.segments.clone());
            // The folder is there even if the checkpoint has no segment for it: a deletion must rename it.
            let had_folder = self.partitions.get(&id).is_some_and(|own| own.files.lock().folder);
            partition.files.lock().folder |= had_folder;
            partitions.insert(id, Arc::new(partition));
        }
        self.removals.forget_segments_of(&partitions);
        let topics = &staged.manifest.topics;
        self.rolls = topics.iter().map(|topic| (topic.id, topic.roll)).collect();
        self.bounds = partitions.iter().map(|(id, partition)| (*id, super::bounds_of(partition))).collect();
        self.partitions = partitions;
        self.dirty.clear();
        self.dirty_folders.clear();
        self.written.clear();
        self.resident_bytes = 0;
        let table: HashMap<_, _> = self.partitions.iter().map(|(id, partition)| (*id, partition.clone())).collect();
        Installed { table, index }
    }

    /// Files of a partition that stays, of segments that the new manifest does not name.
    fn note_leftovers(&mut self, id: TopicPartition, named: &[Segment]) {
        let Some(partition) = self.partitions.get(&id) else { return };
        let bases: BTreeSet<i64> = named.iter().map(|segment| segment.base).collect();
        let own: Vec<i64> = partition.files.lock().segments.iter().map(|segment| segment.base).collect();
        for base in own.into_iter().filter(|base| !bases.contains(base)) {
            for kind in Kind::ALL {
                self.removals.note_leftover(id, base, self.shared.files.path(partition, base, kind));
            }
        }
    }
}

impl Staged {
    fn partitions(&self) -> impl Iterator<Item = (TopicPartition, (&str, &checkpoint::Partition))> {
        self.manifest.topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(|entry| {
                let id = TopicPartition { topic: topic.id, partition: entry.partition };
                (id, (topic.name.as_str(), entry))
            })
        })
    }
}
