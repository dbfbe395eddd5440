//! The crash model: random operations on a log over the faulty disk, with power cuts, failed syncs and restarts at any
//! step, against a reference that keeps every state the log went through.
//!
//! After a crash the log must be in one of the states from the last acknowledged one on. That is all of the promise
//! at once: acknowledged entries, votes, truncations and purges survive, nothing is altered, nothing follows a hole,
//! and what was not acknowledged is there as a prefix or not at all.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Payload sizes.
    Append(Vec<usize>),
    Vote,
    Committed,
    /// How many of the last entries go.
    Truncate(u64),
    /// How many of the first entries go; it may be more than there are.
    Purge(u64),
    /// Waits until all operations so far were answered.
    Wait,
    /// Checks all acknowledged entries.
    Read,
    /// Closes and opens.
    Reopen,
    /// Drops the process: what was written stays in the cache.
    FailSync(u32),
    /// Cuts the power after so many changes to the disk from now on, or at once (0).
    Crash(u32),
    /// The same, and then again during the recovery.
    CrashTwice(u32, u32),
}

/// What the log should hold.
#[derive(Clone, Debug, Default, PartialEq)]
struct Contents {
    vote: Option<Bytes>,
    purged: Option<(LogIndex, Bytes)>,
    entries: BTreeMap<u64, (Term, Bytes)>,
}

impl Contents {
    fn next(&self) -> u64 {
        let last = self.entries.keys().next_back().copied();
        last.max(self.purged.as_ref().map(|(index, _)| index.0)).map_or(0, |last| last + 1)
    }
}

struct Model {
    disk: FaultyDisk,
    options: WalOptions,
    wal: Wal,
    /// Every state since the last opening, oldest first.
    states: Vec<Contents>,
    /// Number of the newest state known to be durable; stored by callbacks.
    acknowledged: Arc<AtomicUsize>,
    answers: (std::sync::mpsc::Sender<()>, Receiver<()>),
    unanswered: usize,
    /// Numbers in committed markers: the newest left, and the oldest that may be found.
    committed: (u64, u64),
    /// Makes terms, votes and payloads differ.
    counter: u64,
}

impl Model {
    fn new(seed: u64, file_bytes_max: u64, prefill_bytes: u64) -> Self {
        let disk = FaultyDisk::new(seed);
        let options = WalOptions { file_bytes_max, prefill_bytes, ..options() };
        let (wal, recovered) = Wal::open(Arc::new(disk.clone()), options.clone()).unwrap();
        assert_eq!(recovered, Recovered::default());
        Self {
            disk,
            options,
            wal,
            states: vec![Contents::default()],
            acknowledged: Arc::default(),
            answers: channel(),
            unanswered: 0,
            committed: (0, 0),
            counter: 0,
        }
    }

    fn newest(&self) -> &Contents {
        self.states.last().unwrap()
    }

    /// A callback that acknowledges the newest state.
    fn done(&mut self) -> Done {
        self.unanswered += 1;
        let (state, acknowledged, answers) =
            (self.states.len() - 1, Arc::clone(&self.acknowledged), self.answers.0.clone());
        Box::new(move |outcome| {
            if outcome.is_ok() {
                // Of what becomes durable together the newest is told first.
                acknowledged.fetch_max(state, Ordering::SeqCst);
            }
            answers.send(()).unwrap();
        })
    }

    fn fresh_bytes(&mut self, len: usize) -> Bytes {
        self.counter += 1;
        let seed = self.counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..len).map(|i| (seed >> (i % 8 * 8)) as u8 ^ i as u8).collect()
    }

    fn append(&mut self, sizes: &[usize]) {
        let mut frames = Vec::new();
        for size in sizes {
            let payload = self.fresh_bytes(*size);
            let term = Term(1 + self.counter / 20);
            let mut state = self.newest().clone();
            let index = state.next();
            state.entries.insert(index, (term, payload.clone()));
            self.states.push(state);
            let pieces = vec![payload.slice(..size / 2), payload.slice(size / 2..)];
            frames.push(Frame { term, index: LogIndex(index), payload: pieces });
        }
        let done = self.done();
        self.wal.append(frames, done);
    }

    fn vote(&mut self) {
        let vote = self.fresh_bytes(20);
        self.states.push(Contents { vote: Some(vote.clone()), ..self.newest().clone() });
        let done = self.done();
        self.wal.save_vote(vote, done);
    }

    fn truncate(&mut self, count: u64) {
        let mut state = self.newest().clone();
        let last = state.next().checked_sub(count + 1);
        state.entries.retain(|index, _| last.is_some_and(|last| *index <= last));
        self.states.push(state);
        let done = self.done();
        self.wal.truncate_after(last.map(LogIndex), done);
    }

    fn purge(&mut self, count: u64) {
        let id = self.fresh_bytes(17);
        let mut state = self.newest().clone();
        let first = state.entries.keys().next().copied().unwrap_or(state.next());
        let index = LogIndex(first + count);
        state.entries.retain(|entry, _| *entry > index.0);
        state.purged = Some((index, id.clone()));
        self.states.push(state);
        let done = self.done();
        self.wal.purge(index, id, done);
    }

    fn wait(&mut self) {
        for _ in 0..std::mem::take(&mut self.unanswered) {
            self.answers.1.recv().unwrap();
        }
    }

    /// All entries in `contents` are read, whole and in pieces, and no other.
    fn check_entries(&self, contents: &Contents) {
        let (Some(first), Some(last)) = (contents.entries.keys().next(), contents.entries.keys().next_back()) else {
            let next = contents.next();
            assert!(matches!(self.wal.read(LogIndex(next), LogIndex(next + 1), 1), Err(WalError::Missing(_))));
            return;
        };
        let mut from = *first;
        for bytes_max in [usize::MAX, 3000] {
            while from <= *last {
                let read = self.wal.read(LogIndex(from), LogIndex(last + 1), bytes_max).unwrap();
                assert!(!read.is_empty());
                for stored in read {
                    assert_eq!(stored.index.0, from);
                    assert_eq!((stored.term, stored.payload), contents.entries[&from].clone(), "entry {from}");
                    from += 1;
                }
            }
            from = *first;
        }
        assert!(self.wal.read(LogIndex(last + 1), LogIndex(last + 2), 1).is_err());
        if let Some(before) = first.checked_sub(1) {
            assert!(self.wal.read(LogIndex(before), LogIndex(before + 1), 1).is_err());
        }
    }

    /// All that is stored.
    fn contents(&self, recovered: &Recovered) -> Contents {
        let mut contents =
            Contents { vote: recovered.vote.clone(), purged: recovered.purged.clone(), entries: BTreeMap::new() };
        if let (Some(first), Some((last, term))) = (recovered.first, recovered.last) {
            let stored = self.wal.read(first, LogIndex(last.0 + 1), usize::MAX).unwrap();
            assert_eq!(stored.last().unwrap().term, term);
            contents.entries = stored.into_iter().map(|e| (e.index.0, (e.term, e.payload))).collect();
        } else {
            assert_eq!((recovered.first, recovered.last), (None, None));
        }
        contents
    }

    /// Opens what is on the disk, and checks that it is one of the states that are allowed.
    fn open(&mut self) {
        let (wal, recovered) = Wal::open(Arc::new(self.disk.clone()), self.options.clone()).unwrap();
        self.wal = wal;
        let acknowledged = self.acknowledged.load(Ordering::SeqCst);
        let state = self.contents(&recovered);
        assert!(
            self.states[acknowledged..].contains(&state),
            "{recovered:?} is none of the states from {:?} on",
            self.states[acknowledged]
        );
        self.check_entries(&state);
        let committed = recovered.committed.map_or(0, |bytes| u64::from_le_bytes((*bytes).try_into().unwrap()));
        assert!((self.committed.1..=self.committed.0).contains(&committed), "{committed} {:?}", self.committed);
        // What was found is synced by now: the next crash may not lose it. A newer marker died with its process.
        self.committed = (committed, committed);
        self.states = vec![state];
        self.acknowledged = Arc::default();
        self.answers = channel();
        self.unanswered = 0;
    }

    fn crash(&mut self, after: u32) {
        if after > 0 {
            self.disk.cut_power_in(after);
            // Gives the writer something to be cut off at.
            self.append(&[700, 10, 2500]);
            self.vote();
            self.wait();
        }
        let survivors = self.disk.crash();
        self.wal.close();
        self.disk = survivors;
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Append(sizes) => self.append(sizes),
            Step::Vote => self.vote(),
            Step::Committed => {
                self.committed.0 += 1;
                self.wal.save_committed(Bytes::copy_from_slice(&self.committed.0.to_le_bytes()));
            }
            Step::Truncate(count) => self.truncate(*count),
            Step::Purge(count) => self.purge(*count),
            Step::Wait => self.wait(),
            Step::Read => {
                self.wait();
                assert!(self.wal.failure().is_none());
                self.check_entries(&self.newest().clone());
            }
            Step::Reopen => {
                self.wait();
                self.wal.close();
                assert!(self.wal.failure().is_none());
                assert_eq!(self.acknowledged.load(Ordering::SeqCst), self.states.len() - 1);
                self.committed.1 = self.committed.0;
                self.open();
            }
            Step::FailSync(count) => {
                self.disk.fail_sync_in(*count);
                self.append(&[1500, 0, 300]);
                self.vote();
                self.append(&[20]);
                self.wait();
                self.wal.close();
                self.disk.fail_sync_in(u32::MAX);
                self.open();
            }
            Step::Crash(after) => {
                self.crash(*after);
                self.open();
            }
            Step::CrashTwice(after, again) => {
                self.crash(*after);
                self.disk.cut_power_in(*again);
                // Opens if it gets by with fewer changes; its threads end before the cut is looked at.
                drop(Wal::open(Arc::new(self.disk.clone()), self.options.clone()));
                self.disk = self.disk.crash();
                self.open();
            }
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => prop::collection::vec(prop_oneof![6 => 0..100_usize, 1 => 400..5000_usize], 1..6).prop_map(Step::Append),
        2 => Just(Step::Vote),
        2 => Just(Step::Committed),
        2 => prop_oneof![3 => 0..6_u64, 1 => 0..60_u64].prop_map(Step::Truncate),
        1 => (0..25_u64).prop_map(Step::Purge),
        2 => Just(Step::Wait),
        1 => Just(Step::Read),
        1 => Just(Step::Reopen),
        1 => (1..4_u32).prop_map(Step::FailSync),
        2 => (0..12_u32).prop_map(Step::Crash),
        1 => ((0..12_u32), (1..6_u32)).prop_map(|(after, again)| Step::CrashTwice(after, again)),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #[test]
    fn after_any_crash_the_log_is_in_a_state_from_the_last_acknowledged_on(
        seed in any::<u64>(),
        file_bytes_max in prop_oneof![Just(6 << 10), Just(16 << 10), Just(64 << 10)],
        prefill_bytes in prop_oneof![Just(0), Just(8 << 10)],
        steps in steps(),
    ) {
        let mut model = Model::new(seed, file_bytes_max, prefill_bytes);
        for step in &steps {
            model.step(step);
        }
        model.step(&Step::Crash(0));
    }
}
