#!/usr/bin/env bash
# Measures Katomic (fsync on, release build) in turns against Apache Kafka without fsync, then against a server that
# does the least possible work. One run, one machine: read the ratios, not the absolute times.
#
# usage: scripts/bench.sh [--rounds N] [--duration SECONDS] [--warmup SECONDS] [--keep]
#        scripts/bench.sh --nodes 3 ...          three nodes of each: see bench_three.sh
#
# Needs the benchmark driver, the Kafka launcher and the floor: BENCH_TOOLS names the folder with yardstick/, peers/kafka/
# and floor/ (default: shared/ beside this repository). Output: target/bench/<time>/ with each run's JSON lines;
# the table at the end holds the worst round of each ratio, the targets, and a verdict.
set -euo pipefail
cd "$(dirname "$0")/.."

[[ " $* " != *" --nodes 3 "* ]] || exec scripts/bench_three.sh "$@"
rounds=3 duration=20 warmup=20 keep=
while [ $# -gt 0 ]; do
  case $1 in
    --rounds) rounds=$2; shift ;;
    --duration) duration=$2; shift ;;
    --warmup) warmup=$2; shift ;;
    --keep) keep=yes ;;
    *) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
tools=${BENCH_TOOLS:-$PWD/../shared}
[ -x "$tools/yardstick/yardstick" ] || { echo "no benchmark driver in $tools (set BENCH_TOOLS)" >&2; exit 2; }

out=$PWD/target/bench/$(date +%Y%m%d-%H%M%S); mkdir -p "$out"
kafka_port=${BENCH_KAFKA_PORT:-19392} katomic_port=${BENCH_KATOMIC_PORT:-19592}
katomic=127.0.0.1:$katomic_port
pid=
cleanup() {
  [ -z "$pid" ] || { kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true; }
  "$tools/peers/kafka/down" --data "$out/kafka" --wipe >/dev/null 2>&1 || true
  FLOOR_CACHE=$floor_cache "$tools/floor/floor" down >/dev/null 2>&1 || true
  [ -n "$keep" ] || rm -rf "$out/katomic-data"
}
floor_cache=${FLOOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/katomic-floor}
trap cleanup EXIT

say() { printf '\n== %s (%ss)\n' "$*" "$SECONDS" >&2; }

say "building"
cargo build --locked --release
bin=${KATOMIC_BIN:-${CARGO_TARGET_DIR:-target}/release/katomic}

say "starting both servers"
kafka=$("$tools/peers/kafka/up" --single --fresh --data "$out/kafka" --port "$kafka_port")
"$bin" serve --data-dir "$out/katomic-data" --kafka-addr "$katomic" --rpc-addr "127.0.0.1:$((katomic_port + 1))" \
  --admin-addr "127.0.0.1:$((katomic_port + 2))" 2>"$out/katomic.log" &
pid=$!
began=$(date +%s%N)
ready() { curl -fsS "http://127.0.0.1:$((katomic_port + 2))/v1/status/ready" >/dev/null 2>&1; }
for _ in $(seq 500); do ready && break; kill -0 "$pid" || { tail -5 "$out/katomic.log" >&2; exit 1; }; sleep 0.01; done
echo "{\"ready_ms\": $((($(date +%s%N) - began) / 1000000))}" >"$out/ready.json"
ready || { echo "katomic did not become ready: see $out/katomic.log" >&2; exit 1; }

y() { "$tools/yardstick/yardstick" "$@" --duration "$duration"; }
say "exercising Kafka for a minute: a JVM's first minute says little about its second"
"$tools/yardstick/yardstick" txn --bootstrap "$kafka" --producers 10 --warmup 0 --duration 60 --rounds 1 >/dev/null 2>&1

pair() { # name, scenario and options...
  local name=$1; shift
  say "$name: Katomic and Kafka in turns"
  y "$@" --bootstrap "$katomic" --label katomic --vs "$kafka" --vs-label kafka --warmup "$warmup" --rounds "$rounds" >"$out/$name.jsonl"
}
pair serial txn
pair ten txn --producers 10

say "is what was stored right?"
for run in "verify txn --producers 10 --verify" "abort txn-abort --producers 10 --offsets" \
  "outbox outbox --mode outbox --rate 2000" "outbox-txn outbox --mode txn --rate 2000"; do
  read -r name scenario <<<"$run"
  # shellcheck disable=SC2086
  y $scenario --bootstrap "$katomic" --label katomic --warmup 5 >"$out/$name.jsonl" || true
done

rss() { awk '/VmRSS/{print int($2/1024)}' "/proc/$pid/status"; }
say "memory a minute after the load"
sleep 60
echo "{\"rss_mib\": $(rss)}" >"$out/memory.json"

say "the floor"
"$tools/peers/kafka/down" --data "$out/kafka" --wipe >/dev/null 2>&1 || true
floor=$(FLOOR_CACHE=$floor_cache "$tools/floor/floor" up fsync | tail -1)
y txn --bootstrap "$katomic" --label katomic --vs "$floor" --vs-label floor --warmup "$warmup" --rounds "$rounds" >"$out/floor-serial.jsonl"
y txn --producers 10 --bootstrap "$katomic" --label katomic --vs "$floor" --vs-label floor --warmup "$warmup" --rounds "$rounds" >"$out/floor-ten.jsonl"

say "what Katomic counted"
curl -fsS "http://127.0.0.1:$((katomic_port + 2))/metrics" >"$out/metrics.txt"
python3 scripts/bench_table.py "$out"
