//! Builds the rooms, joins them, starts and stops them. Decides nothing.
//!
//! Start: admin HTTP first (so `ready` can say 503 while the log is replayed), then segments, log and reader, then the
//! Kafka listener. Stop (SIGTERM, SIGINT): no new requests, answers finished, a checkpoint, exit 0.
//!
//! What flows where: `net` → `api` → `log` (writes) and `read` (fetches); `log` wakes `read` once per applied chunk;
//! `admin` looks at `log` and `read`. Kafka connections and the admin pages share one tokio runtime; Raft has its own.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::admin::metrics::Exporter;
use crate::admin::{AdminState, Rooms};
use crate::api::{Api, ApiSettings};
use crate::config::Config;
use crate::config::address::Address;
use crate::config::settings::Settings;
use crate::disk::{DirLock, Disk, RealDisk, lock_dir};
use crate::leader::LeaderSettings;
use crate::log::{Log, LogError, LogOptions, Member};
use crate::net::NetSettings;
use crate::read::Reader;
use crate::segments::{SegmentError, SegmentOptions, Segments};

/// How long unfinished answers may take at a stop.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// How long a whole stop may take. What is cut short then (a checkpoint) only makes the next start longer: the log has everything.
const STOP_WITHIN: Duration = Duration::from_millis(4_500);

/// Threads of the runtime that serves connections.
const KAFKA_THREAD: &str = "kafka";

/// Why a node could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The data directory cannot be used, or another process has it.
    #[error("data directory {path}: {source}")]
    DataDir {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// An address cannot be listened on.
    #[error("{what} address {address}: {source}")]
    Listen {
        /// `kafka`, `rpc` or `admin`.
        what: &'static str,
        /// Which.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The process cannot get what it needs from the system.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// Metrics cannot be set up.
    #[error("metrics: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    /// Partition logs.
    #[error("segments: {0}")]
    Segments(#[from] SegmentError),
    /// The replicated log.
    #[error("log: {0}")]
    Log(#[from] LogError),
    /// Something failed after which no write may be acknowledged any more.
    #[error("stopped to keep what is acknowledged safe: {0}")]
    Failed(String),
}

/// Runs a node until SIGTERM or SIGINT.
///
/// # Errors
/// If it cannot start, or had to stop.
pub fn run(config: Config) -> Result<(), ServerError> {
    end_on_panic();
    let runtime = tokio::runtime::Builder::new_multi_thread().thread_name(KAFKA_THREAD).enable_all().build()?;
    let data_dir = open_data_dir(&config)?;
    let path = data_dir.path.clone();
    // Held until the process has ended: a thread that is still opening or closing files may outlive this function.
    std::mem::forget(data_dir);
    let result = runtime.block_on(serve(config, path));
    runtime.shutdown_background();
    result
}

/// A panic in a connection's handler closes that connection (`net` catches it); anywhere else (raft, apply, a writer
/// thread) nobody would notice that the work has stopped, so the process ends, and a restart recovers.
fn end_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        if std::thread::current().name() != Some(KAFKA_THREAD) {
            std::process::abort();
        }
    }));
}

async fn serve(config: Config, data_dir: PathBuf) -> Result<(), ServerError> {
    let exporter = Exporter::install(data_dir.clone(), config.unsafe_bypass_fsync)?;
    let mut signals = Signals::new()?;
    let (stop, stopping) = watch::channel(false);
    let rooms = Arc::new(OnceLock::new());
    let admin = tokio::spawn(crate::admin::serve(
        listen("admin", &config.admin_addr).await?,
        AdminState {
            rooms: rooms.clone(),
            metrics: exporter,
            connections: crate::net::connections,
            topics_page: crate::api::metrics::topics_page,
        },
        stopped(stopping.clone()),
    ));
    // Bound before the replay, so that a taken port is found at once; accepting begins after it.
    let listener = listen("kafka", &config.kafka_addr).await?;
    let advertised = advertised(&config, &listener)?;
    let peers = if config.listens_for_peers { Some(listen("rpc", &config.rpc_addr).await?.into_std()?) } else { None };

    let opening = {
        let (config, path) = (config.clone(), data_dir.clone());
        tokio::task::spawn_blocking(move || open_rooms(&config, path, advertised, peers))
    };
    let opened = tokio::select! {
        opened = opening => opened.map_err(|panic| ServerError::Failed(panic.to_string()))??,
        () = signals.any() => return Ok(()),
    };
    let Opened { log, reader, segments } = opened;
    if rooms.set(Rooms { log: log.clone(), reader: reader.clone() }).is_err() {
        return Err(ServerError::Failed("the rooms were opened twice".into()));
    }
    let api = Api::new(log.clone(), reader, api_settings(&config, &log));
    let kafka = tokio::spawn(crate::net::serve(listener, api, net_settings(&config.settings), stopping));
    tracing::info!(kafka = %config.kafka_addr, admin = %config.admin_addr, data = %data_dir.display(), "serving");

    let outcome = tokio::select! {
        () = signals.any() => Ok(()),
        error = log.failed() => Err(ServerError::Failed(error)),
    };
    tracing::info!("stopping");
    // Clients are served meanwhile: those with open transactions may end them.
    if outcome.is_ok() {
        log.step_aside().await;
    }
    stop.send_replace(true);
    let stopped = async {
        if kafka.await.is_err() {
            tracing::warn!("the listener ended in a panic");
        }
        log.shutdown().await;
        if tokio::task::spawn_blocking(move || segments.close()).await.is_err() {
            tracing::warn!("closing the segments ended in a panic");
        }
    };
    match tokio::time::timeout(STOP_WITHIN, stopped).await {
        Ok(()) => tracing::info!("stopped"),
        Err(_) => tracing::warn!("stopped without a checkpoint: it took too long; the next start replays the log"),
    }
    admin.abort();
    outcome
}

/// A data directory that no other process has. The lock lives as long as this does.
struct DataDir {
    path: PathBuf,
    _lock: DirLock,
}

fn open_data_dir(config: &Config) -> Result<DataDir, ServerError> {
    let failed = |source| ServerError::DataDir { path: config.data_dir.clone(), source };
    std::fs::create_dir_all(&config.data_dir).map_err(failed)?;
    let path = config.data_dir.canonicalize().map_err(failed)?;
    // The directories just made must survive a power cut as what is acknowledged in them does.
    for parent in path.ancestors().skip(1) {
        if let Err(source) = std::fs::File::open(parent).and_then(|directory| directory.sync_all()) {
            tracing::debug!(path = %parent.display(), %source, "a parent directory cannot be synced");
            break;
        }
    }
    let lock = lock_dir(&path).map_err(failed)?;
    if config.unsafe_bypass_fsync {
        tracing::warn!("fsync is OFF: a power cut loses acknowledged writes (--unsafe-bypass-fsync)");
    }
    Ok(DataDir { path, _lock: lock })
}

async fn listen(what: &'static str, address: &Address) -> Result<TcpListener, ServerError> {
    let failed = |source| ServerError::Listen { what, address: address.to_string(), source };
    TcpListener::bind((address.host.as_str(), address.port)).await.map_err(failed)
}

/// What clients are told: as configured; port 0 becomes the port that the system chose.
fn advertised(config: &Config, listener: &TcpListener) -> Result<Address, ServerError> {
    let mut address = config.advertise_kafka_addr.clone();
    if address.port == 0 {
        address.port = listener.local_addr()?.port();
    }
    Ok(address)
}

struct Opened {
    log: Log,
    reader: Reader,
    segments: Segments,
}

/// Opens segments and log: blocks while the log is replayed.
fn open_rooms(
    config: &Config,
    data_dir: PathBuf,
    advertised: Address,
    listener: Option<std::net::TcpListener>,
) -> Result<Opened, ServerError> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk { bypass_fsync: config.unsafe_bypass_fsync });
    let settings = &config.settings;
    let (segments, checkpoint) = Segments::open(disk.clone(), segment_options(settings, data_dir.join("topics")))?;
    let reader = Reader::new(segments.clone());
    let waiting = reader.clone();
    let me = Member {
        node_id: config.node_id,
        host: advertised.host,
        port: advertised.port,
        rack: config.rack.clone(),
        rpc: config.advertise_rpc_addr.to_string(),
        ..Member::default()
    };
    let options = LogOptions {
        listener,
        seeds: config.seeds.iter().map(ToString::to_string).collect(),
        tail_cache_bytes_max: bytes(settings.log_cache_bytes),
        log_file_bytes_max: settings.wal_file_bytes.unsigned_abs(),
        log_retained_bytes: settings.log_retained_bytes.unsigned_abs(),
        catch_up_bytes_per_second: settings.recovery_bytes_per_second.unsigned_abs(),
        checkpoint_log_bytes: settings.checkpoint_bytes.unsigned_abs(),
        retention_check_every: Duration::from_millis(settings.log_retention_check_interval_ms.unsigned_abs()),
        proposal_timeout: Duration::from_millis(settings.proposal_timeout_ms.unsigned_abs()),
        transfer_drain: Duration::from_millis(settings.transfer_drain_ms.unsigned_abs()),
        checkpoint_every: Duration::from_millis(settings.checkpoint_interval_ms.unsigned_abs()),
        ..LogOptions::new(data_dir, me, leader_settings(settings))
    };
    let wake = Arc::new(move |partitions: &[_]| waiting.wake(partitions));
    let log = Log::open(options, disk, segments.clone(), checkpoint, wake)?;
    Ok(Opened { log, reader, segments })
}

/// Settings are checked to be positive when they are parsed.
fn bytes(setting: i64) -> usize {
    usize::try_from(setting).unwrap_or(usize::MAX)
}

fn segment_options(settings: &Settings, dir: PathBuf) -> SegmentOptions {
    SegmentOptions {
        dir,
        unwritten_bytes_max: bytes(settings.segment_unwritten_bytes_max),
        tail_bytes_max: bytes(settings.segment_tail_bytes),
        open_files_max: bytes(settings.segment_open_files_max),
    }
}

pub(crate) fn leader_settings(settings: &Settings) -> LeaderSettings {
    LeaderSettings {
        transaction_max_timeout_ms: settings.transaction_max_timeout_ms,
        entry_bytes_max: bytes(settings.txn_entry_bytes_max),
        staged_bytes_max: bytes(settings.txn_staged_bytes_max),
        group_min_session_timeout_ms: settings.group_min_session_timeout_ms,
        group_max_session_timeout_ms: settings.group_max_session_timeout_ms,
        group_initial_rebalance_delay_ms: settings.group_initial_rebalance_delay_ms,
        group_max_size: bytes(settings.group_max_size),
        offset_metadata_max_bytes: bytes(settings.offset_metadata_max_bytes),
        producer_id_expiration_ms: settings.producer_id_expiration_ms,
        transactional_id_expiration_ms: settings.transactional_id_expiration_ms,
        offsets_retention_ms: settings.offsets_retention_minutes.saturating_mul(60_000),
        log_retention_ms: settings.retention_ms(),
        log_retention_bytes: settings.log_retention_bytes,
    }
}

fn api_settings(config: &Config, log: &Log) -> ApiSettings {
    let settings = &config.settings;
    ApiSettings {
        cluster_id: log.cluster_id(),
        auto_create_topics: settings.auto_create_topics_enable,
        default_partitions: settings.num_partitions,
        running: settings.all(),
        transaction_version: i16::try_from(settings.transaction_version).unwrap_or(2),
        rack_aware_reads: settings.rack_aware_reads(),
        proxy: settings.proxy,
    }
}

fn net_settings(settings: &Settings) -> NetSettings {
    NetSettings {
        connections_max: bytes(settings.max_connections),
        idle_timeout: Duration::from_millis(settings.connections_max_idle_ms.unsigned_abs()),
        requests_bytes_max: bytes(settings.queued_max_request_bytes),
        close_timeout: CLOSE_WITHIN,
        ..NetSettings::default()
    }
}

/// Completes when `stop` turns true.
async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a stop too.
    drop(stop.wait_for(|stop| *stop).await);
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
