//! Fetches against real partition logs on a disk in memory. «At once» is told from «after its time» by waits far apart.

use std::time::Duration;

use super::*;
use crate::disk::faulty::FaultyDisk;
use crate::segments::SegmentOptions;
use crate::state::command::{Appended, Effects};
use crate::types::record_batch::sample;
use crate::types::{Term, TopicId};

/// For fetches that must be answered before.
const LONG: Duration = Duration::from_secs(30);
/// For fetches whose time must pass.
const SHORT: Duration = Duration::from_millis(40);

fn partition(number: i32) -> TopicPartition {
    TopicPartition { topic: TopicId([1; 16]), partition: number }
}

/// A reader over three empty partitions; entry 0 made them.
struct World {
    reader: Reader,
    index: u64,
    ends: [i64; 3],
}

impl World {
    fn new() -> Self {
        let options = SegmentOptions {
            dir: "/segments".into(),
            unwritten_bytes_max: 1 << 20,
            tail_bytes_max: 1_000 + 2 * crate::config::limits::SEGMENT_BATCH_OVERHEAD_BYTES,
            open_files_max: 8,
        };
        let (segments, _) = Segments::open(Arc::new(FaultyDisk::new(1)), options).unwrap();
        let world = Self { reader: Reader::new(segments), index: 0, ends: [0; 3] };
        let created = vec![(TopicId([1; 16]), "topic".to_owned(), 3)];
        world.apply(0, &Effects { created, ..Effects::default() });
        world
    }

    fn apply(&self, index: u64, effects: &Effects) {
        self.reader.segments.apply(LogIndex(index), Term(1), effects);
        self.reader.segments.publish(LogIndex(index));
    }

    /// One entry with one record of `bytes` bytes, all told, in each of these partitions; wakes who waits for them.
    fn append(&mut self, numbers: &[i32], bytes: usize) {
        self.index += 1;
        let mut effects = Effects::default();
        for number in numbers {
            let end = &mut self.ends[*number as usize];
            effects.appended.push(Appended {
                to: partition(*number),
                base_offset: Offset(*end),
                next_offset: Offset(*end + 1),
                records: sample::batch((-1, -1), -1, 1, false, &vec![0; bytes - 61]),
            });
            *end += 1;
        }
        self.apply(self.index, &effects);
        self.reader.wake(&numbers.iter().map(|number| partition(*number)).collect::<Vec<_>>());
    }

    /// Waits until everything is in files, so that tails are trimmed.
    async fn checkpoint(&self) {
        let (done, waiting) = tokio::sync::oneshot::channel();
        let applied = Some((LogIndex(self.index), Term(1)));
        let done = Box::new(move |result: Result<(), SegmentError>| done.send(result).expect("the test waits"));
        self.reader.segments.checkpoint(applied, bytes::Bytes::new(), Box::new(|| Ok(Vec::new())), done);
        waiting.await.unwrap().unwrap();
    }

    fn start(&self, fetch: Fetch) -> tokio::task::JoinHandle<Answered> {
        let reader = self.reader.clone();
        tokio::spawn(async move { reader.fetch(fetch).await })
    }

    /// Until that many registrations wait.
    async fn until_waiting(&self, count: usize) {
        while self.reader.waiters.count() != count {
            tokio::task::yield_now().await;
        }
    }
}

fn fetch(from: &[(i32, i64)]) -> Fetch {
    let partitions = from.iter().map(|(number, from)| FetchPartition {
        partition: partition(*number),
        from: Offset(*from),
        bytes_max: 1 << 20,
    });
    Fetch { partitions: partitions.collect(), wait_max: LONG, bytes_min: 1, bytes_max: 10 << 20, may_be_ahead: false }
}

fn bytes(fetched: &[Fetched]) -> Vec<usize> {
    fetched.iter().map(|of| of.result.as_ref().unwrap().bytes).collect()
}

#[tokio::test]
async fn data_that_is_there_is_answered_at_once_in_request_order() {
    let mut world = World::new();
    world.append(&[0, 2], 100);
    world.append(&[2], 100);
    let before = Instant::now();
    let fetched = world.reader.fetch(fetch(&[(2, 0), (1, 0), (0, 0)])).await;
    assert_eq!(bytes(&fetched), [200, 0, 100]);
    assert_eq!(fetched[0].bounds.unwrap().high_watermark, Offset(2));
    assert!(before.elapsed() < LONG);
    assert_eq!(world.reader.waiters.count(), 0);
}

#[tokio::test]
async fn an_empty_fetch_waits_its_time_and_no_longer() {
    let world = World::new();
    let before = Instant::now();
    let fetched = world.reader.fetch(Fetch { wait_max: SHORT, ..fetch(&[(0, 0), (1, 0)]) }).await;
    assert_eq!(bytes(&fetched), [0, 0]);
    assert!(before.elapsed() >= SHORT && before.elapsed() < LONG);
    assert_eq!(world.reader.waiters.count(), 0, "a fetch that ended waits no more");
    let at_once = Fetch { wait_max: Duration::ZERO, ..fetch(&[(0, 0)]) };
    assert_eq!(bytes(&world.reader.fetch(at_once).await), [0]);
}

#[tokio::test]
async fn new_data_wakes_the_fetches_of_its_partition_only() {
    let mut world = World::new();
    let before = Instant::now();
    let (one, both, other) = (world.start(fetch(&[(0, 0)])), world.start(fetch(&[(1, 0), (0, 0)])), fetch(&[(2, 0)]));
    let other = world.start(Fetch { wait_max: 10 * SHORT, ..other });
    world.until_waiting(4).await;
    world.append(&[0], 100);
    assert_eq!(bytes(&one.await.unwrap()), [100]);
    assert_eq!(bytes(&both.await.unwrap()), [0, 100]);
    assert!(before.elapsed() < LONG);
    assert_eq!(bytes(&other.await.unwrap()), [0]);
    assert!(before.elapsed() >= 10 * SHORT);
}

#[tokio::test]
async fn bytes_min_counts_over_all_partitions() {
    let mut world = World::new();
    let fetching = world.start(Fetch { bytes_min: 250, ..fetch(&[(0, 0), (1, 0)]) });
    world.until_waiting(2).await;
    for number in [0, 1] {
        world.append(&[number], 100);
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert!(!fetching.is_finished());
    }
    world.append(&[0], 100);
    assert_eq!(bytes(&fetching.await.unwrap()), [200, 100]);
    let before = Instant::now();
    let late = world.start(Fetch { bytes_min: 1_000, wait_max: SHORT, ..fetch(&[(0, 0), (1, 0)]) });
    assert_eq!(bytes(&late.await.unwrap()), [200, 100], "what is there when the time is over");
    assert!(before.elapsed() >= SHORT);
}

#[tokio::test]
async fn errors_are_answered_at_once() {
    let mut world = World::new();
    world.append(&[0], 100);
    let before = Instant::now();
    let fetched = world.reader.fetch(fetch(&[(1, 0), (0, 2), (7, 0)])).await;
    assert_eq!(fetched[0].result.as_ref().unwrap().bytes, 0);
    assert!(matches!(fetched[1].result, Err(SegmentError::OffsetOutOfRange)));
    assert_eq!(fetched[1].bounds.unwrap().high_watermark, Offset(1), "the client is told the bounds");
    assert!(matches!(fetched[2].result, Err(SegmentError::UnknownPartition)));
    assert!(fetched[2].bounds.is_none());
    assert!(before.elapsed() < LONG);
}

#[tokio::test]
async fn an_offset_behind_the_end_is_waited_for_where_the_asker_may_be_ahead() {
    let mut world = World::new();
    world.append(&[0], 100);
    let ahead = || Fetch { may_be_ahead: true, ..fetch(&[(0, 2)]) };
    let late = world.reader.fetch(Fetch { wait_max: SHORT, ..ahead() }).await;
    assert_eq!(
        (late[0].bounds.unwrap().high_watermark, bytes(&late)),
        (Offset(1), vec![0]),
        "the end, to compare with"
    );
    let waiting = world.start(ahead());
    world.until_waiting(1).await;
    world.append(&[0], 100);
    world.append(&[0], 200);
    assert_eq!(bytes(&waiting.await.unwrap()), [200], "from the offset on, not from what came before it");
}

#[tokio::test]
async fn an_offset_is_looked_up_without_reading() {
    let mut world = World::new();
    world.append(&[0], 100);
    let looked = world.reader.look_up(&fetch(&[(0, 1), (0, 2), (1, 0), (7, 0)]).partitions);
    assert_eq!((looked[0].bounds.unwrap().high_watermark, looked[0].result.is_ok()), (Offset(1), true));
    assert!(matches!(looked[1].result, Err(SegmentError::OffsetOutOfRange)));
    assert!(looked[2].result.as_ref().is_ok_and(|batches| batches.bytes == 0));
    assert!(matches!(looked[3].result, Err(SegmentError::UnknownPartition)));
}

#[tokio::test]
async fn a_dropped_fetch_waits_no_more() {
    let world = World::new();
    let fetching = world.start(fetch(&[(0, 0), (1, 0), (1, 0)]));
    world.until_waiting(3).await;
    fetching.abort();
    assert!(fetching.await.unwrap_err().is_cancelled());
    assert_eq!(world.reader.waiters.count(), 0);
}

#[tokio::test]
async fn too_many_waiting_fetches_are_answered_when_their_time_is_over() {
    let mut world = World::new();
    let filler = vec![partition(2); crate::config::limits::FETCH_WAITS_MAX];
    let filler = world.reader.waiters.register(filler).expect("just fits");
    let before = Instant::now();
    let fetching = world.start(Fetch { wait_max: SHORT, ..fetch(&[(0, 0)]) });
    tokio::task::yield_now().await;
    world.append(&[0], 100);
    assert_eq!(bytes(&fetching.await.unwrap()), [100]);
    assert!(before.elapsed() >= SHORT);
    drop(filler);
    assert_eq!(world.reader.waiters.count(), 0);
}

#[tokio::test]
async fn files_and_tails_are_answered_together_at_one_index() {
    let mut world = World::new();
    for _ in 0..30 {
        world.append(&[0, 1], 100);
    }
    world.checkpoint().await;
    // The checkpoint is answered before the writer trims: a second one comes behind that.
    world.checkpoint().await;
    world.append(&[0, 1, 2], 100);
    let memory = world.reader.segments.read_memory(partition(0), LogIndex(31), Offset(0), 1 << 20, true);
    assert!(matches!(memory, Ok(None)), "the first batches are in files only");
    let fetched = world.reader.fetch(fetch(&[(0, 0), (1, 29), (2, 0)])).await;
    assert_eq!(bytes(&fetched), [3_100, 200, 100]);
}

#[tokio::test]
async fn answers_together_hold_a_bounded_memory_and_one_beyond_gets_one_batch() {
    let mut world = World::new();
    world.reader.memory = Memory::new(1_000);
    for _ in 0..10 {
        world.append(&[0], 100);
    }
    let most = Fetch { bytes_max: 950, ..fetch(&[(0, 0)]) };
    let first = world.reader.fetch(most.clone()).await;
    assert_eq!((bytes(&first), world.reader.memory.used()), (vec![900], 900), "what was not read is given back");
    let second = world.reader.fetch(most.clone()).await;
    assert_eq!((bytes(&second), world.reader.memory.used()), (vec![100], 1_000));
    let third = world.reader.fetch(most.clone()).await;
    assert_eq!((bytes(&third), world.reader.memory.used()), (vec![100], 1_100), "at least one batch");
    drop((first, second, third));
    assert_eq!(world.reader.memory.used(), 0);
    assert_eq!(bytes(&world.reader.fetch(most).await), [900]);
}

#[tokio::test]
async fn the_wait_for_data_is_told_and_an_answer_at_once_waited_for_nothing() {
    let mut world = World::new();
    world.append(&[1], 100);
    let waited = world.reader.fetch(Fetch { wait_max: SHORT, ..fetch(&[(0, 0)]) }).await.waited;
    assert!(waited >= SHORT - Duration::from_millis(10), "{waited:?}");
    assert_eq!(world.reader.fetch(fetch(&[(1, 0)])).await.waited, Duration::ZERO);
}
