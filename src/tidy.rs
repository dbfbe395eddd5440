//! Style as a test: who may import whom, how long files and functions may be, and which words stand for sloppiness.
//!
//! Reads the sources as text. A rule that fails the build needs no reviewer; an exception is a line here, with its reason.

use std::path::{Path, PathBuf};

/// Lines of a file without its tests.
const FILE_LINES_MAX: usize = 500;
/// Lines of a function.
const FUNCTION_LINES_MAX: usize = 70;
/// Functions that may be longer, at most 2 % of all: (file, function, why).
const LONG_FUNCTIONS: &[(&str, &str, &str)] = &[];

/// Room, and the rooms it may import (architecture.md, «Who may import whom»).
const IMPORTS: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("config", &["types"]),
    ("state", &["types"]),
    ("leader", &["types", "config", "state"]),
    ("disk", &[]),
    ("wal", &["types", "disk"]),
    // `state::command::Effects` is what the segments follow; nothing else of the state.
    ("segments", &["types", "config", "disk", "state"]),
    // `disk`: the log opens the wal on the node's disk, and keeps `node.json` beside it.
    ("log", &["types", "config", "state", "leader", "wal", "segments", "disk"]),
    ("read", &["types", "config", "state", "segments"]),
    ("api", &["types", "config", "leader", "log", "read", "state"]),
    ("net", &["types", "config", "api"]),
    ("admin", &["types", "config", "log", "state", "leader", "read"]),
    ("cli", &["config", "server", "wal", "segments", "log", "disk"]),
];

/// Crates that only these rooms may name.
const CRATES: &[(&str, &[&str])] = &[
    ("openraft", &["log"]),
    ("kafka_protocol", &["api", "segments"]),
    ("tokio", &["log", "read", "api", "net", "admin", "cli", "server"]),
    ("dashmap", &["segments", "read", "log", "net"]),
    ("metrics", &["log", "read", "segments", "api", "net", "admin", "wal"]),
];

/// File and folder names that say nothing.
const EMPTY_NAMES: &[&str] = &["utils", "util", "common", "helpers", "helper", "manager", "service", "misc"];

struct Source {
    /// Path below `src`, with `/`.
    path: String,
    /// First folder, or the file's stem.
    room: String,
    /// Lines in front of the inline tests.
    lines: Vec<String>,
}

impl Source {
    fn new(path: String, text: &str) -> Self {
        let room = path.split('/').next().expect("not empty").trim_end_matches(".rs").to_owned();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let tests = lines.windows(2).position(|pair| pair[0] == "#[cfg(test)]" && opens_inline_module(&pair[1]));
        Self { path, room, lines: lines[..tests.unwrap_or(lines.len())].to_vec() }
    }
}

/// Whether a line opens a module in place: `mod tests {`, whatever its visibility. `mod tests;` is a file of its own.
fn opens_inline_module(line: &str) -> bool {
    line.ends_with('{') && line.split_whitespace().any(|word| word == "mod")
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    files.sort();
    files
        .into_iter()
        .map(|file| {
            let path = file.strip_prefix(&root).expect("below src").to_string_lossy().replace('\\', "/");
            Source::new(path, &std::fs::read_to_string(&file).expect("readable source"))
        })
        .filter(|source| !is_test(&source.path))
        .collect()
}

fn is_test(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name == "tests.rs"
        || name.ends_with("_tests.rs")
        || path.contains("/tests/")
        || name == "tidy.rs"
        || name == "golden.rs"
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("readable folder") {
        let path = entry.expect("readable entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The code of a line, without what stands behind `//`.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or("")
}

fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn rooms_import_only_what_the_architecture_allows() {
    let mut problems = Vec::new();
    for source in sources() {
        let Some((_, allowed)) = IMPORTS.iter().find(|(room, _)| *room == source.room) else { continue };
        for (number, line) in source.lines.iter().enumerate() {
            for part in code(line).split("crate::").skip(1) {
                let room: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let known = IMPORTS.iter().any(|(name, _)| *name == room) || room == "server";
                if known && room != source.room && !allowed.contains(&room.as_str()) {
                    problems.push(format!("{}:{}: {} may not import {room}", source.path, number + 1, source.room));
                }
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn crates_are_named_only_in_their_rooms() {
    let mut problems = Vec::new();
    for source in sources() {
        for (number, line) in source.lines.iter().enumerate() {
            for (name, rooms) in CRATES {
                let named = code(line).contains(&format!("{name}::")) && !code(line).contains(&format!("::{name}::"));
                let ours = code(line).contains(&format!("_{name}::"));
                if named && !ours && !rooms.contains(&source.room.as_str()) {
                    problems.push(format!("{}:{}: {name} is not for {}", source.path, number + 1, source.room));
                }
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn files_stay_readable() {
    let problems: Vec<String> = sources()
        .iter()
        .filter(|source| source.lines.len() > FILE_LINES_MAX)
        .map(|source| format!("{}: {} lines, at most {FILE_LINES_MAX}", source.path, source.lines.len()))
        .collect();
    assert_none(&problems);
}

#[test]
fn every_file_says_what_it_owns() {
    let problems: Vec<String> = sources()
        .iter()
        .filter(|source| !source.lines.first().is_some_and(|line| line.starts_with("//!")))
        .map(|source| format!("{}: opens without //!", source.path))
        .collect();
    assert_none(&problems);
}

#[test]
fn names_say_something() {
    let problems: Vec<String> = sources()
        .iter()
        .filter(|source| source.path.trim_end_matches(".rs").split('/').any(|name| EMPTY_NAMES.contains(&name)))
        .map(|source| format!("{}: a name that says nothing", source.path))
        .collect();
    assert_none(&problems);
}

/// (function, lines) of a formatted source: rustfmt puts the closing brace under the line that opened the function.
fn functions(source: &Source) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for (start, line) in source.lines.iter().enumerate() {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        let Some(position) = trimmed.find("fn ") else { continue };
        let before = &trimmed[..position];
        let words = ["pub", "pub(crate)", "pub(super)", "async", "const", "unsafe", "extern", "\"C\""];
        if !before.split_whitespace().all(|word| words.contains(&word)) {
            continue;
        }
        let name = trimmed[position + 3..].split(['(', '<']).next().unwrap_or("").to_owned();
        let closing = format!("{}}}", " ".repeat(indent));
        let end = source.lines[start..]
            .iter()
            .position(|l| *l == closing || (l.ends_with(';') && l.len() - l.trim_start().len() == indent));
        if let Some(length) = end {
            found.push((name, length + 1));
        }
    }
    found
}

#[test]
fn functions_stay_readable() {
    let mut problems = Vec::new();
    let mut count = 0;
    for source in sources() {
        for (name, lines) in functions(&source) {
            count += 1;
            let excused = LONG_FUNCTIONS.iter().any(|(path, function, _)| *path == source.path && *function == name);
            if lines > FUNCTION_LINES_MAX && !excused {
                problems.push(format!("{}: fn {name} has {lines} lines, at most {FUNCTION_LINES_MAX}", source.path));
            }
        }
    }
    assert_none(&problems);
    assert!(LONG_FUNCTIONS.len() * 50 <= count, "more than 2 % of {count} functions are excused");
}

#[test]
fn the_ruler_measures() {
    let code = "pub async fn a() {\n    b();\n}\nfn c(d: u8) -> u8;\n";
    let all = [("a".to_owned(), 3), ("c".to_owned(), 1)];
    assert_eq!(functions(&Source::new("x.rs".into(), code)), all);
    // Tests in a file of their own, or a test-only item, do not end what is measured; tests in place do.
    for before in
        ["#[cfg(test)]\nmod tests;\n", "#[cfg(test)]\npub mod golden;\n", "#[cfg(test)]\nuse x::{\n    y,\n};\n"]
    {
        assert_eq!(functions(&Source::new("x.rs".into(), &format!("{before}{code}"))), all, "{before}");
    }
    for tests in ["mod tests {", "pub(crate) mod sample {"] {
        let source = Source::new("x/y.rs".into(), &format!("{code}#[cfg(test)]\n{tests}\nfn d() {{\n}}\n"));
        assert_eq!((functions(&source), source.room.as_str()), (all.to_vec(), "x"), "{tests}");
    }
}
