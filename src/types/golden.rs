//! Golden scripts, for tests of the pure rooms (the model is toydb's `goldenscript`).
//!
//! A script is a text file that a reviewer can judge without reading Rust. It is a row of blocks:
//!
//! ```text
//! # Prose: why this happens.
//! a command
//! another command
//! ---
//! everything that became visible, line by line
//! <blank line>
//! ```
//!
//! Lines that start with `#` are prose wherever commands may stand. [`run`] feeds every command of every `*.txt` below a folder
//! to a fresh interpreter per file and compares the output of each block. With `GOLDEN_UPDATE=1` in the
//! environment it rewrites the outputs instead: read the diff before committing it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Executes one command line and returns what became visible: any number of lines, "" for nothing to see.
pub type Interpreter = Box<dyn FnMut(&str) -> String>;

/// Runs every script below `dir` (relative to the package), each with a fresh interpreter from `make`.
///
/// # Panics
/// If an output differs from the script's, if a script is malformed, or if there is none.
pub fn run(dir: &str, mut make: impl FnMut() -> Interpreter) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(dir);
    let scripts = scripts_below(&root);
    assert!(!scripts.is_empty(), "no *.txt below {}", root.display());
    let update = std::env::var("GOLDEN_UPDATE").is_ok_and(|value| value == "1");
    let mut failures = String::new();
    for path in scripts {
        let expected = std::fs::read_to_string(&path).expect("a script can be read");
        let actual = replay(&expected, &mut make(), &path);
        if actual == expected {
            continue;
        }
        if update {
            std::fs::write(&path, actual).expect("a script can be rewritten");
        } else {
            let _ = writeln!(failures, "{}\n{}", path.display(), first_difference(&expected, &actual));
        }
    }
    assert!(failures.is_empty(), "golden scripts differ (GOLDEN_UPDATE=1 rewrites them):\n{failures}");
}

/// The script with the outputs that its commands really have.
fn replay(script: &str, interpreter: &mut Interpreter, path: &Path) -> String {
    let mut actual = String::new();
    let mut commands: Vec<&str> = Vec::new();
    let mut lines = script.lines();
    while let Some(line) = lines.next() {
        if line == "---" {
            actual.push_str("---\n");
            for command in commands.drain(..) {
                for out in interpreter(command).lines().filter(|out| !out.trim().is_empty()) {
                    let _ = writeln!(actual, "{}", out.trim_end());
                }
            }
            // The old output reaches to the next blank line.
            let _ = lines.by_ref().find(|old| old.is_empty());
            actual.push('\n');
            continue;
        }
        if !line.is_empty() && !line.starts_with('#') {
            commands.push(line);
        }
        let _ = writeln!(actual, "{line}");
    }
    assert!(commands.is_empty(), "{}: commands without `---` behind them: {commands:?}", path.display());
    // One newline ends the file, not the blank line of the last block.
    while actual.ends_with("\n\n") {
        actual.pop();
    }
    actual
}

fn scripts_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
        let path = entry.expect("a folder can be listed").path();
        if path.is_dir() {
            found.extend(scripts_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "txt") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The first line that differs, with the lines before it in which its command stands.
fn first_difference(expected: &str, actual: &str) -> String {
    const CONTEXT_LINES: usize = 8;
    let (old, new): (Vec<_>, Vec<_>) = (expected.lines().collect(), actual.lines().collect());
    let at = (0..old.len().max(new.len())).find(|at| old.get(*at) != new.get(*at)).unwrap_or(old.len());
    let mut out = format!("  line {}:\n", at + 1);
    for line in &new[at.saturating_sub(CONTEXT_LINES).min(new.len())..at.min(new.len())] {
        let _ = writeln!(out, "    {line}");
    }
    let end_of_file = "<end of file>";
    let _ = writeln!(out, "  - {}", old.get(at).unwrap_or(&end_of_file));
    let _ = writeln!(out, "  + {}", new.get(at).unwrap_or(&end_of_file));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo() -> Interpreter {
        let mut count = 0;
        Box::new(move |command| {
            count += 1;
            format!("{count}: {command}\n")
        })
    }

    #[test]
    fn a_true_script_is_unchanged() {
        let script = "# prose\na\n# why b\nb\n---\n1: a\n2: b\n\n# then\nc\n---\n3: c\n";
        assert_eq!(replay(script, &mut echo(), Path::new("x")), script);
    }

    #[test]
    fn a_false_or_empty_output_is_replaced_and_pointed_at() {
        let script = "a\n---\nwrong\nwrong too\n\nb\n---\n";
        let actual = replay(script, &mut echo(), Path::new("x"));
        assert_eq!(actual, "a\n---\n1: a\n\nb\n---\n2: b\n");
        assert!(first_difference(script, &actual).contains("line 3:"));
    }

    #[test]
    #[should_panic(expected = "commands without `---`")]
    fn commands_that_nobody_judges_are_an_error() {
        replay("a\n---\n1: a\n\nb\n", &mut echo(), Path::new("x"));
    }
}
