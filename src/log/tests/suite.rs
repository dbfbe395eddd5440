//! openraft's own tests of a log store and a state machine, over ours.

use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use tokio::sync::watch;

use super::*;
use crate::log::apply::StateMachine;
use crate::log::raft_types::TypeConfig;

struct Builder;

/// What must live as long as the store.
struct Guard {
    segments: Segments,
    store: LogStore,
    _durable: watch::Sender<u64>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.store.wal().close();
        self.segments.close();
    }
}

impl StoreBuilder<TypeConfig, LogStore, StateMachine, Guard> for Builder {
    async fn build(&self) -> Result<(Guard, LogStore, StateMachine), StorageError<TypeConfig>> {
        let disk = disk(&FaultyDisk::new(11));
        let wal_options = WalOptions {
            dir: Path::new(DIR).join("log"),
            cluster_id: [1; 16],
            file_bytes_max: 4096,
            prefill_bytes: 1024,
        };
        let (wal, recovered) = Wal::open(disk.clone(), wal_options).unwrap();
        let (fatal, meters) = (Fatal::default(), Arc::new(Meters::default()));
        // A cache of nothing: whatever is written is read from files.
        let store = LogStore::new(wal, &recovered, 0, fatal.clone(), meters.clone()).unwrap();
        let segment_options = SegmentOptions {
            dir: Path::new(DIR).join("partitions"),
            unwritten_bytes_max: 1 << 20,
            tail_bytes_max: 1 << 20,
            open_files_max: 8,
        };
        let (segments, _) = Segments::open(disk, segment_options).unwrap();
        let replica = Arc::new(Replica::new(Machine::default(), segments.clone(), Default::default()));
        // The suite applies entries that no log holds.
        let (sender, durable) = watch::channel(u64::MAX);
        let checkpoints = Arc::new(Checkpoints::new(replica.clone(), durable, None));
        let lease = Arc::new(crate::log::lease::Lease::new(1, false));
        let sequencer = Sequencer::new(replica.clone(), Leader::new(settings()), lease, meters, Duration::from_secs(1));
        let machine = StateMachine { replica, sequencer, checkpoints, fatal, wake: Arc::new(|_| ()) };
        Ok((Guard { segments, store: store.clone(), _durable: sender }, store, machine))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openrafts_suite_passes() {
    Suite::test_all(Builder).await.unwrap();
}
