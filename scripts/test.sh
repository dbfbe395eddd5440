#!/usr/bin/env bash
# Everything that must be green: the gate, the wire tests, every client's compat cases, the short proofs by crashes and faults.
# usage: scripts/test.sh            builds what it needs, starts and stops what it needs, on loopback only
set -euo pipefail
cd "$(dirname "$0")/.."

need() { # command, how to get it
  command -v "$1" >/dev/null || { echo "missing: $1. Install it with: $2" >&2; exit 1; }
}
need cargo "your Rust toolchain (rustup), 1.95 or later"
need cc "apt-get install gcc"
need curl "apt-get install curl"
need java "apt-get install openjdk-17-jdk-headless"
need mvn "apt-get install maven"
need go "your Go toolchain, 1.26 or later"
need python3 "apt-get install python3 python3-venv"
need node "your Node.js, 20 or later"
need npm "it comes with Node.js"
python3 -c 'import ensurepip, venv' 2>/dev/null || { echo "missing: Python's venv. Install it with: apt-get install python3-venv" >&2; exit 1; }

report=()
stage() { # name, command...
  local name=$1 from=$SECONDS; shift
  printf '\n=== %s\n' "$name"
  "$@"
  report+=("$(printf '%-28s %5ss' "$name" $((SECONDS - from)))")
}

stage "gate (check.sh)"      scripts/check.sh
stage "simulation, 200 seeds" cargo test --locked --test sim
stage "release build"        cargo build --locked --release
export KATOMIC_BIN=$PWD/target/release/katomic
[ -z "${CARGO_TARGET_DIR:-}" ] || KATOMIC_BIN=$CARGO_TARGET_DIR/release/katomic
stage "wire tests"           cargo test --locked --test wire
stage "crash proof, 60 s"    scripts/crash.sh --seconds 60 --seed "${CRASH_SEED:-1}"
stage "real faults, 90 s"    scripts/faults.sh --seconds 90 --seed "${CRASH_SEED:-1}" --patience 120
stage "compat cases"         compat-tests/run.sh all
stage "compat, three nodes"  compat-tests/run.sh all --nodes 3 --failover

printf '\n=== stages\n'
printf '%s\n' "${report[@]}"
