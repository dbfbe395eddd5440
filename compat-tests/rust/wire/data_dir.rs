//! A data directory that a node must not use: it ends with a word about what is wrong, and touches nothing.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::client::Broker;

/// A second node on that directory, which must end by itself.
fn start_on(dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_katomic"))
        .args(["serve", "--kafka-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--rpc-addr", "127.0.0.1:0"])
        .arg("--data-dir")
        .arg(dir)
        .stdin(Stdio::null())
        .output()
        .expect("the binary was built with this test")
}

#[test]
fn a_directory_that_another_process_has_is_refused_by_name() {
    let broker = Broker::start();
    let Some(dir) = broker.data_dir() else { return };
    let output = start_on(&dir);
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains(dir.to_str().unwrap()), "{said}");
    assert_eq!(
        broker.connect().ask(&kafka_protocol::messages::ApiVersionsRequest::default(), 0).unwrap().error_code,
        0
    );
}

#[test]
fn a_damaged_byte_in_the_middle_of_the_log_stops_the_start_and_is_named() {
    let mut broker = Broker::start();
    let Some(dir) = broker.data_dir() else { return };
    for _ in 0..20 {
        broker.topic(1);
    }
    broker.kill();
    let mut files = Vec::new();
    collect(&dir, &mut files);
    let logs = files.iter().filter(|file| file.extension().is_some_and(|ext| ext == "wal"));
    let log = logs.max_by_key(|file| written(file)).expect("a node has a log");
    let mut bytes = std::fs::read(log).unwrap();
    // Behind the header's page and in front of other frames: no torn end.
    let middle = (4_096 + written(log)) / 2;
    bytes[middle] ^= 0x40;
    std::fs::write(log, bytes).unwrap();
    let output = start_on(&dir);
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains(log.file_name().unwrap().to_str().unwrap()), "{log:?}: {said}");
    let (_, position) = said.split_once("damaged at byte ").expect("the position");
    let digits = position.split(|char: char| !char.is_ascii_digit()).next().unwrap();
    let position: usize = digits.parse().expect("a number");
    assert!((4_096..=middle).contains(&position), "byte {middle} was flipped: {said}");
}

/// Bytes in front of the zeros with which a log file is allocated.
fn written(file: &Path) -> usize {
    std::fs::read(file).unwrap().iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

fn collect(dir: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { collect(&path, files) } else { files.push(path) }
    }
}
