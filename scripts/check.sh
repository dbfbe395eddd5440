#!/usr/bin/env bash
# The one gate: format, lints, unit and golden tests, documentation, tidy. Never writes to the tree.
# usage: scripts/check.sh
set -euo pipefail
cd "$(dirname "$0")/.."
stage() { printf '== %s (%ss)\n' "$1" "$SECONDS"; }
stage fmt;    cargo fmt --check
stage clippy; cargo clippy --locked --all-targets -- -D warnings
stage test;   cargo test --locked --lib
stage doc;    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items
stage done
