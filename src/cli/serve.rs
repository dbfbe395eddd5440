//! `katomic serve`: flags (with environment twins) over a TOML file over the defaults. Redpanda's `start` flags that
//! make sense are aliases; those without a meaning here are accepted with one warning, so compose files start (surface.md §3).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use clap::{ArgAction, Args};
use tracing_subscriber::EnvFilter;

use crate::config::{Choices, Config, ConfigError, SettingValue};

/// The flags of `katomic serve`.
#[derive(Args, Debug, Default)]
pub struct ServeArgs {
    /// Directory of everything that is stored [default: ./katomic-data]
    #[arg(long, env = "KATOMIC_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Number of this node, unique in its cluster [default: 0]
    #[arg(long, env = "KATOMIC_NODE_ID")]
    node_id: Option<u64>,
    /// Where Kafka clients connect [default: 127.0.0.1:9092]
    #[arg(long, env = "KATOMIC_KAFKA_ADDR", value_name = "HOST:PORT")]
    kafka_addr: Option<String>,
    /// What Kafka clients are told to connect to [default: --kafka-addr]
    #[arg(long, env = "KATOMIC_ADVERTISE_KAFKA_ADDR", value_name = "HOST:PORT")]
    advertise_kafka_addr: Option<String>,
    /// Where other nodes connect [default: 127.0.0.1:33145]
    #[arg(long, env = "KATOMIC_RPC_ADDR", value_name = "HOST:PORT")]
    rpc_addr: Option<String>,
    /// What other nodes are told to connect to [default: --rpc-addr]
    #[arg(long, env = "KATOMIC_ADVERTISE_RPC_ADDR", value_name = "HOST:PORT")]
    advertise_rpc_addr: Option<String>,
    /// Health, metrics and cluster views over HTTP [default: 127.0.0.1:9644]
    #[arg(long, env = "KATOMIC_ADMIN_ADDR", value_name = "HOST:PORT")]
    admin_addr: Option<String>,
    /// Nodes of the cluster to join: refused unless empty, as this build runs one node
    #[arg(long, env = "KATOMIC_SEEDS", value_name = "HOST:PORT,…")]
    seeds: Option<String>,
    /// TOML file with the same keys: data_dir, kafka_addr, …, and a table `set`
    #[arg(long, env = "KATOMIC_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Rack of this node
    #[arg(long, env = "KATOMIC_RACK")]
    rack: Option<String>,
    /// dev, dev-container or production [default: dev]
    #[arg(long, env = "KATOMIC_MODE")]
    mode: Option<String>,
    /// Any setting by its Kafka name, e.g. transaction.max.timeout.ms=60000; may be repeated.
    /// KATOMIC_SET takes several, separated by commas; a flag wins over it key by key
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The environment's settings: apart from `--set`, which would replace them all.
    #[arg(long, env = "KATOMIC_SET", hide = true, value_delimiter = ',')]
    env_set: Vec<String>,
    /// DANGER: acknowledge from the page cache; a power cut then loses acknowledged writes
    #[arg(long, env = "KATOMIC_UNSAFE_BYPASS_FSYNC", action = ArgAction::SetTrue, value_parser = FalseyValueParser::new())]
    unsafe_bypass_fsync: bool,

    // Redpanda's flags without a meaning here.
    #[arg(long, hide = true)]
    smp: Option<String>,
    #[arg(long, hide = true)]
    memory: Option<String>,
    #[arg(long, hide = true)]
    reserve_memory: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    overprovisioned: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    check: Option<String>,
    #[arg(long, hide = true)]
    default_log_level: Option<String>,
    #[arg(long, hide = true)]
    pandaproxy_addr: Option<String>,
    #[arg(long, hide = true)]
    advertise_pandaproxy_addr: Option<String>,
    #[arg(long, hide = true)]
    schema_registry_addr: Option<String>,
    #[arg(long, hide = true)]
    advertise_schema_registry_addr: Option<String>,
}

impl ServeArgs {
    /// The flags as one source of choices.
    fn choices(&self) -> Result<Choices, ConfigError> {
        let mut set = std::collections::BTreeMap::new();
        for pair in self.env_set.iter().chain(&self.set).filter(|pair| !pair.trim().is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| ConfigError::bad("--set", pair, "KEY=VALUE"))?;
            set.insert(key.trim().to_owned(), SettingValue::Text(value.trim().to_owned()));
        }
        Ok(Choices {
            data_dir: self.data_dir.clone(),
            node_id: self.node_id,
            kafka_addr: self.kafka_addr.clone(),
            advertise_kafka_addr: self.advertise_kafka_addr.clone(),
            rpc_addr: self.rpc_addr.clone(),
            advertise_rpc_addr: self.advertise_rpc_addr.clone(),
            admin_addr: self.admin_addr.clone(),
            seeds: self.seeds.clone(),
            rack: self.rack.clone(),
            mode: self.mode.as_deref().map(str::parse).transpose()?,
            unsafe_bypass_fsync: self.unsafe_bypass_fsync.then_some(true),
            set,
        })
    }

    /// What runs: flags over the file over the defaults.
    fn config(&self) -> Result<Config, ConfigError> {
        let mut sources = Vec::new();
        if let Some(path) = &self.config {
            sources.push(Choices::from_file(path)?);
        }
        sources.push(self.choices()?);
        Config::resolve(&sources)
    }

    /// Flags that were given and mean nothing here.
    fn ignored(&self) -> Vec<&'static str> {
        [
            ("--smp", &self.smp),
            ("--memory", &self.memory),
            ("--reserve-memory", &self.reserve_memory),
            ("--overprovisioned", &self.overprovisioned),
            ("--check", &self.check),
            ("--default-log-level", &self.default_log_level),
            ("--pandaproxy-addr", &self.pandaproxy_addr),
            ("--advertise-pandaproxy-addr", &self.advertise_pandaproxy_addr),
            ("--schema-registry-addr", &self.schema_registry_addr),
            ("--advertise-schema-registry-addr", &self.advertise_schema_registry_addr),
        ]
        .into_iter()
        .filter_map(|(name, given)| given.as_ref().map(|_| name))
        .collect()
    }
}

/// Runs a node until it is told to stop.
pub fn run(args: &ServeArgs) -> ExitCode {
    let filter = log_filter(std::env::var("KATOMIC_LOG").ok().as_deref());
    init_logging(filter.clone().unwrap_or_default());
    let config = match filter.and_then(|_| args.config()) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(%error, "bad configuration");
            return ExitCode::from(2);
        }
    };
    let ignored = args.ignored();
    if !ignored.is_empty() {
        tracing::warn!(flags = ignored.join(" "), "accepted and ignored: these flags mean nothing here");
    }
    match crate::server::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the node stopped");
            ExitCode::FAILURE
        }
    }
}

/// What is logged by default.
const LOG_FILTER: &str = "info,openraft=error";

/// The filter given, if it is one.
fn log_filter(given: Option<&str>) -> Result<Option<String>, ConfigError> {
    let Some(given) = given.filter(|given| !given.trim().is_empty()) else { return Ok(None) };
    match EnvFilter::builder().parse(given) {
        Ok(_) => Ok(Some(given.to_owned())),
        Err(error) => {
            Err(ConfigError::bad("KATOMIC_LOG", given, &format!("a filter such as info,katomic::log=debug ({error})")))
        }
    }
}

/// Logs go to standard error; `KATOMIC_LOG` filters (`info`, `katomic::log=debug`), `KATOMIC_LOG_FORMAT=json` for machines.
fn init_logging(filter: Option<String>) {
    let filter = EnvFilter::new(filter.as_deref().unwrap_or(LOG_FILTER));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::env::var("KATOMIC_LOG_FORMAT").is_ok_and(|format| format == "json") {
        builder.json().init();
    } else {
        builder.init();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn parse(line: &str) -> ServeArgs {
        let cli = crate::cli::Cli::try_parse_from(line.split_whitespace()).expect("parses");
        let crate::cli::Command::Serve(args) = cli.command else { panic!("not serve") };
        *args
    }

    #[test]
    fn flags_reach_the_config() {
        let args = parse("katomic serve --node-id 4 --kafka-addr 127.0.0.1:1 --mode production --set num.partitions=3");
        let config = args.config().expect("valid");
        assert_eq!((config.node_id, config.settings.num_partitions), (4, 3));
        assert_eq!(config.advertise_kafka_addr.port, 1);
    }

    #[test]
    fn a_redpanda_compose_line_starts_and_says_what_it_ignores() {
        let args = parse(
            "katomic start --smp 1 --overprovisioned --mode dev-container --reserve-memory 0M --check=false \
             --kafka-addr internal://127.0.0.1:9092 --schema-registry-addr internal://0.0.0.0:8081",
        );
        let config = args.config().expect("valid");
        assert!(!config.unsafe_bypass_fsync, "fsync stays on");
        assert_eq!(args.ignored().len(), 5);
    }

    #[test]
    fn a_set_without_a_value_is_refused() {
        assert!(parse("katomic serve --set num.partitions").config().is_err());
    }

    #[test]
    fn a_bad_log_filter_is_an_error_and_none_is_the_default() {
        assert_eq!(log_filter(None), Ok(None));
        assert_eq!(log_filter(Some("info,katomic::log=debug")), Ok(Some("info,katomic::log=debug".to_owned())));
        let error = log_filter(Some("katomic=loud")).expect_err("no such level");
        assert!(error.to_string().starts_with("KATOMIC_LOG=katomic=loud: must be a filter"), "{error}");
    }

    #[test]
    fn seeds_are_a_list_with_commas() {
        assert!(parse("katomic start --seeds=").config().expect("none").seeds.is_empty());
        assert_eq!(parse("katomic start --seeds a:33145,b:33145").config().expect("two").seeds.len(), 2);
        assert!(parse("katomic start --seeds a").config().is_err());
    }

    /// The environment belongs to the whole process, so this test runs itself again in one of its own.
    #[test]
    fn flags_have_twins_in_the_environment() {
        const NAME: &str = "cli::serve::tests::flags_have_twins_in_the_environment";
        if let Ok(expected) = std::env::var("KATOMIC_TEST_FSYNC_OFF") {
            let config = parse("katomic serve --set group.max.size=7").config().expect("valid");
            assert_eq!(config.unsafe_bypass_fsync.to_string(), expected);
            assert_eq!((config.settings.num_partitions, config.settings.group_max_size), (3, 7));
            return;
        }
        for (value, off) in [("1", "true"), ("true", "true"), ("0", "false"), ("", "false")] {
            let child = std::process::Command::new(std::env::current_exe().expect("this test"))
                .args([NAME, "--exact"])
                .env("KATOMIC_UNSAFE_BYPASS_FSYNC", value)
                .env("KATOMIC_SET", "num.partitions=3,group.max.size=5")
                .env("KATOMIC_TEST_FSYNC_OFF", off)
                .output()
                .expect("it runs");
            let said = String::from_utf8_lossy(&child.stdout);
            assert!(child.status.success() && said.contains("1 passed"), "{value:?}: {said}");
        }
    }
}
