//! Catching up through a checkpoint: a node that needs more than the leader's log has pulls the leader's newest one.
//!
//! ```text
//!  leader: openraft ─ full_snapshot ─▶ Offer ───────────────▶ follower: a thread pulls pieces (Incoming), at a bounded
//!          asks again and again until it is installed              rate, then raft.install_full_snapshot: milliseconds
//! ```
//!
//! The leader only asks how it goes, so every call is short; the follower pulls at its own pace, over a connection of its
//! own. What was pulled stays in `incoming/`: a broken connection, another leader or a restart goes on with it. One
//! checkpoint is pulled at a time, and only the one that was offered is reported as installed, since openraft counts on it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use openraft::async_runtime::WatchReceiver;
use openraft::storage::{Snapshot, SnapshotMeta};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::peers::client::Link;
use super::peers::message::{Answer, Ask, Class};
use super::peers::{ANSWER_WITHIN, Peers};
use super::raft_types::{Vote, log_id};
use super::recovery;
use super::sequencer::Raft;
use super::snapshot::Cut;
use crate::segments::{
    Asked, Incoming, Offer, Piece, SegmentError, Segments, Staged, TransferError, TransferProgress, Want,
};

/// How often the leader asks how it goes.
pub const ASK_EVERY: Duration = Duration::from_millis(200);
/// How long a peer may take to read a piece: its disk may be busy.
const PIECE_WITHIN: Duration = Duration::from_secs(10);
/// How long a transfer may stand still before it is given up; the leader offers again.
const STILL_MAX: Duration = Duration::from_secs(15);
/// While a transfer has moved within this, an offer of another checkpoint waits for its end.
const MOVING_WITHIN: Duration = Duration::from_secs(3);
/// Pause after a failed call.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// How often progress is logged.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// What a follower says to an offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Offered {
    /// It is being pulled: so many bytes are there, of so many (0 while that is not known).
    Pulling(u64, u64),
    /// It is installed, or not needed; the follower's vote, as the log stores votes.
    Installed(Vec<u8>),
    /// It could not be pulled: offer again.
    Failed(String),
}

/// One checkpoint on its way here.
struct Transfer {
    offer: Offer,
    /// The node that offers it, and its address.
    source: (u64, String),
    state: Mutex<State>,
    cancelled: AtomicBool,
}

impl Transfer {
    fn end(&self, how: Result<(), String>) {
        let mut state = self.state.lock();
        (state.ended, state.moved) = (Some(how), Instant::now());
    }
}

/// Ends a transfer whose thread panics: without an end no other would begin.
struct Ending(Arc<Transfer>);

impl Drop for Ending {
    fn drop(&mut self) {
        if self.0.state.lock().ended.is_none() {
            self.0.end(Err("the thread that pulled it panicked".to_owned()));
        }
    }
}

struct State {
    vote: Vote,
    progress: TransferProgress,
    moved: Instant,
    ended: Option<Result<(), String>>,
}

/// The receiving side of a node.
pub struct CatchUp {
    segments: Segments,
    /// Bytes a second.
    rate: u64,
    transfer: Mutex<Option<Arc<Transfer>>>,
    /// The thread that pulls, or the last one that did.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// How far a transfer is, for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatchUpProgress {
    /// A checkpoint is being pulled.
    pub pulling: bool,
    /// Bytes of files that differ; 0 while that is not known.
    pub total_bytes: u64,
    /// Of these, in place.
    pub done_bytes: u64,
}

impl CatchUp {
    /// Pulls at most `rate` bytes a second.
    pub fn new(segments: Segments, rate: u64) -> Arc<Self> {
        Arc::new(Self { segments, rate, transfer: Mutex::default(), thread: Mutex::default() })
    }

    /// The partition logs.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// How far the transfer is, if there is one.
    pub fn progress(&self) -> CatchUpProgress {
        let transfer = self.transfer.lock();
        transfer.as_ref().map_or_else(CatchUpProgress::default, |transfer| {
            let state = transfer.state.lock();
            CatchUpProgress {
                pulling: state.ended.is_none(),
                total_bytes: state.progress.total,
                done_bytes: state.progress.done,
            }
        })
    }

    /// Publishes how far it is.
    pub fn publish_metrics(&self) {
        let progress = self.progress();
        metrics::gauge!("katomic_raft_catch_up_active").set(f64::from(u8::from(progress.pulling)));
        metrics::gauge!("katomic_raft_catch_up_wanted_bytes").set(progress.total_bytes as f64);
        metrics::gauge!("katomic_raft_catch_up_done_bytes").set(progress.done_bytes as f64);
    }

    /// The leader with this vote offers a checkpoint, or asks how it goes. To be called on Raft's runtime.
    pub fn offered(
        self: &Arc<Self>,
        peers: &Arc<Peers>,
        raft: &Raft,
        vote: Vote,
        offer: Offer,
        source: (u64, String),
    ) -> Offered {
        let installed = |vote: &Vote| Offered::Installed(super::raft_types::encode_vote(vote).to_vec());
        {
            let metrics = raft.metrics();
            let metrics = metrics.borrow_watched();
            let deposed = metrics.vote.leader_id.term > vote.leader_id.term;
            let needless = metrics.local_committed.is_some_and(|id| id.index() >= offer.index.0);
            if deposed || needless {
                return installed(&metrics.vote);
            }
        }
        let mut current = self.transfer.lock();
        if let Some(transfer) = current.as_ref() {
            let mut state = transfer.state.lock();
            let same = transfer.offer == offer;
            match &state.ended {
                None if (same && transfer.source == source) || state.moved.elapsed() < MOVING_WITHIN => {
                    state.vote = vote;
                    return Offered::Pulling(state.progress.done, state.progress.total);
                }
                None => transfer.cancelled.store(true, Ordering::Relaxed),
                // Raft's metrics, which say that it is installed, may be a moment late.
                Some(Ok(())) if same && state.moved.elapsed() < MOVING_WITHIN => {
                    return Offered::Pulling(state.progress.done, state.progress.total);
                }
                Some(ended) if same => {
                    let why = ended.clone().err().unwrap_or_else(|| "Raft does not have what was installed".to_owned());
                    drop(state);
                    *current = None;
                    return Offered::Failed(why);
                }
                Some(_) => {}
            }
        }
        let state = State { vote, progress: TransferProgress::default(), moved: Instant::now(), ended: None };
        let (state, cancelled) = (Mutex::new(state), AtomicBool::new(false));
        let transfer = Arc::new(Transfer { offer, source, state, cancelled });
        *current = Some(transfer.clone());
        drop(current);
        self.spawn(Puller {
            transfer,
            segments: self.segments.clone(),
            peers: peers.clone(),
            raft: raft.clone(),
            rate: self.rate,
        });
        Offered::Pulling(0, 0)
    }

    fn spawn(&self, puller: Puller) {
        let mut thread = self.thread.lock();
        let previous = thread.take();
        let runtime = Handle::current();
        let transfer = puller.transfer.clone();
        let started = std::thread::Builder::new().name("catch-up".to_owned()).spawn(move || {
            // Two must not write the same files.
            if let Some(previous) = previous {
                let _ = previous.join();
            }
            let ending = Ending(puller.transfer.clone());
            let ended = puller.run(&runtime);
            if let Err(why) = &ended {
                tracing::warn!(why, "catching up was interrupted; what is here stays");
            }
            ending.0.end(ended);
        });
        match started {
            Ok(started) => *thread = Some(started),
            Err(error) => transfer.end(Err(error.to_string())),
        }
    }

    /// Stops pulling. Blocks until it has stopped.
    pub fn stop(&self) {
        if let Some(transfer) = self.transfer.lock().as_ref() {
            transfer.cancelled.store(true, Ordering::Relaxed);
        }
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

/// Reads a piece for a peer. Blocks.
pub fn piece(segments: &Segments, want: &Want) -> (Answer, Option<bytes::Bytes>) {
    match segments.piece(want) {
        Ok(Piece { crc, bytes }) => (Answer::Piece { crc }, Some(bytes)),
        Err(TransferError::Gone) => (Answer::NotHeld, None),
        Err(error @ TransferError::Segments(_)) => (Answer::No(error.to_string()), None),
    }
}

/// The thread's work.
struct Puller {
    transfer: Arc<Transfer>,
    segments: Segments,
    peers: Arc<Peers>,
    raft: Raft,
    rate: u64,
}

impl Puller {
    fn run(&self, runtime: &Handle) -> Result<(), String> {
        let started = Instant::now();
        let offer = self.transfer.offer;
        tracing::info!(index = offer.index.0, from = self.transfer.source.0, "pulling a checkpoint to catch up");
        let (staged, progress) = self.pull(runtime)?;
        let loaded = recovery::load(Some(staged.checkpoint().clone())).map_err(|error| error.to_string())?;
        let Some((machine, last_membership)) = loaded else { return Err("an empty checkpoint".to_owned()) };
        let meta = SnapshotMeta { last_log_id: Some(log_id(offer.index, offer.term)), last_membership };
        let snapshot = Snapshot { meta, snapshot: Cut::received(machine, Arc::new(staged)) };
        let pulled = started.elapsed();
        let vote = self.transfer.state.lock().vote;
        let response = runtime.block_on(self.raft.install_full_snapshot(vote, snapshot));
        let response = response.map_err(|error| error.to_string())?;
        if response.vote != vote {
            // Openraft answers a refused snapshot with the vote that it follows, and no error.
            return Err(format!("the offer's vote {vote} is not the one followed, {}", response.vote));
        }
        let (install_ms, pull_ms) = ((started.elapsed() - pulled).as_millis() as u64, pulled.as_millis() as u64);
        tracing::info!(
            index = offer.index.0,
            bytes = progress.pulled,
            pull_ms,
            install_ms,
            "caught up with a checkpoint; the log does the rest"
        );
        Ok(())
    }

    fn pull(&self, runtime: &Handle) -> Result<(Staged, TransferProgress), String> {
        let failed = |error: SegmentError| error.to_string();
        let mut incoming = Incoming::begin(self.segments.clone(), self.transfer.offer).map_err(failed)?;
        let mut pace = Pace { rate: self.rate, next: Instant::now() };
        let mut link = None;
        let (mut still, mut told) = (Instant::now(), Instant::now());
        let counter = metrics::counter!("katomic_raft_catch_up_bytes_total");
        while let Some(asked) = incoming.wants() {
            if self.transfer.cancelled.load(Ordering::Relaxed) {
                return Err("this node stops, or another leader offers a checkpoint".to_owned());
            }
            match runtime.block_on(self.ask(&mut link, &asked)) {
                Ok(Some(piece)) => {
                    pace.take(piece.bytes.len());
                    counter.increment(piece.bytes.len() as u64);
                    incoming.got(&asked, &piece).map_err(failed)?;
                    still = Instant::now();
                }
                Ok(None) => return Err("the other node does not hold that checkpoint any more".to_owned()),
                Err(error) => {
                    link = None;
                    incoming.lost(asked);
                    if still.elapsed() > STILL_MAX {
                        return Err(format!("node {}: {error}", self.transfer.source.0));
                    }
                    std::thread::sleep(RETRY_AFTER);
                }
            }
            let progress = incoming.progress();
            let mut state = self.transfer.state.lock();
            (state.progress, state.moved) = (progress, still);
            drop(state);
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                tracing::info!(done = progress.done, of = progress.total, pulled = progress.pulled, "catching up");
            }
        }
        let progress = incoming.progress();
        Ok((incoming.finish().map_err(failed)?, progress))
    }

    /// A piece; None if the checkpoint is not held any more.
    async fn ask(&self, link: &mut Option<Link>, asked: &Asked) -> io::Result<Option<Piece>> {
        let (source, address) = &self.transfer.source;
        let link = match link {
            Some(link) => link,
            None => link.insert(Link::open(self.peers.clone(), Some(*source), address, Class::Bulk).await?),
        };
        match link.ask(&Ask::Piece(asked.want), None, PIECE_WITHIN).await? {
            (Answer::Piece { crc }, bytes) => {
                let piece = Piece { crc, bytes };
                if piece.answers(&asked.want) { Ok(Some(piece)) } else { Err(io::Error::other("a piece came damaged")) }
            }
            (Answer::NotHeld, _) => Ok(None),
            (Answer::No(why), _) => Err(io::Error::other(why)),
            (other, _) => Err(io::Error::other(format!("{other:?} to a question for a piece"))),
        }
    }
}

/// Keeps to a rate, without making up for what was slower.
struct Pace {
    /// Bytes a second.
    rate: u64,
    next: Instant,
}

impl Pace {
    fn take(&mut self, bytes: usize) {
        let now = Instant::now();
        self.next = self.next.max(now) + Duration::from_secs_f64(bytes as f64 / self.rate.max(1) as f64);
        std::thread::sleep(self.next.saturating_duration_since(now));
    }
}

/// The leader's side: offers the newest checkpoint over `link` until it is installed; the follower's vote then.
///
/// # Errors
/// If the follower cannot be reached, or could not pull it.
pub async fn offer(link: &mut Link, peers: &Peers, target: u64, vote: &Vote, least: u64) -> io::Result<Vote> {
    let segments = peers.catch_up().segments();
    let Some(offer) = segments.offer() else {
        return Err(io::Error::other("this node has no checkpoint to offer, or too many are being pulled"));
    };
    if offer.index.0 < least {
        // The manifest becomes durable before openraft hears of it, never the other way round.
        return Err(io::Error::other("the newest checkpoint is older than what openraft counts on"));
    }
    let ask = Ask::Offer {
        vote: super::raft_types::encode_vote(vote).to_vec(),
        offer,
        from: peers.identity().node_id,
        address: peers.me().rpc.clone(),
    };
    loop {
        match link.ask(&ask, None, ANSWER_WITHIN).await?.0 {
            Answer::Offered(Offered::Installed(vote)) => {
                let vote = super::raft_types::decode_vote(&vote);
                return vote.ok_or_else(|| io::Error::other("a vote that cannot be decoded"));
            }
            // Held as long as somebody asks for pieces; this asks too, while a newer one waits for an older one's end.
            Answer::Offered(Offered::Pulling(done, total)) => {
                peers.note_pulling(target, Some((done, total)));
                segments.keep(offer.index);
                tokio::time::sleep(ASK_EVERY).await;
            }
            Answer::Offered(Offered::Failed(why)) | Answer::No(why) => return Err(io::Error::other(why)),
            other => return Err(io::Error::other(format!("{other:?} to an offer of a checkpoint"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{LogIndex, Term};

    #[test]
    fn a_transfer_whose_thread_panics_has_ended() {
        let offer = Offer { index: LogIndex(1), term: Term(1), manifest_bytes: 0 };
        let progress = TransferProgress::default();
        let state = State { vote: Vote::new_committed(1, 1), progress, moved: Instant::now(), ended: None };
        let (source, state, cancelled) = ((1, String::new()), Mutex::new(state), AtomicBool::new(false));
        let transfer = Arc::new(Transfer { offer, source, state, cancelled });
        let ending = Ending(transfer.clone());
        let thread = std::thread::spawn(move || {
            let _ending = ending;
            panic!("as a bug would");
        });
        assert!(thread.join().is_err());
        assert!(matches!(transfer.state.lock().ended, Some(Err(_))));
    }

    #[test]
    fn a_pace_is_kept_and_idle_time_is_not_made_up_for() {
        let start = Instant::now();
        let mut pace = Pace { rate: 1_000_000, next: start };
        (0..10).for_each(|_| pace.take(10_000));
        let ran = start.elapsed();
        assert!(ran >= Duration::from_millis(100), "{ran:?}");
        std::thread::sleep(Duration::from_millis(50));
        let idle = Instant::now();
        pace.take(30_000);
        assert!(idle.elapsed() >= Duration::from_millis(30));
    }
}
