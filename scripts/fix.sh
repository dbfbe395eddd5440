#!/usr/bin/env bash
# Does what check.sh only reports, where a machine can: formats, applies clippy's suggestions, rewrites golden outputs.
# usage: scripts/fix.sh [--golden]      read the diff of golden scripts before committing it
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt
cargo clippy --locked --all-targets --fix --allow-dirty --allow-staged
[ "${1:-}" != --golden ] || GOLDEN_UPDATE=1 cargo test --locked --lib
