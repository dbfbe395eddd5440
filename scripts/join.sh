#!/usr/bin/env bash
# A new node joins a cluster that holds some GiB while writes go on: how long it takes, what writes feel of it, how much
# memory it needs, and whether it ends with the same files.
#
# usage: scripts/join.sh [--gib N] [--rate RECORDS_PER_SECOND] [--seconds N] [--keep] [-- SERVE_FLAG...]
#
#   --gib      what the cluster holds before (default 5)
#   --rate     records of 1 KiB a second, before and during the join (default 20000: 20 MB/s)
#   --seconds  of the quiet measurement, and of each during the join (default 30)
#
# Needs the benchmark driver as scripts/bench.sh does (BENCH_TOOLS). KATOMIC_BIN=path does not build. Everything runs on
# this machine and its one disk, so the quiet figures are those of four nodes that share it.
#
# The last line is `join: PASS ...` or `join: FAIL ...`; p99 of writes must stay below 3 times the quiet one.
set -euo pipefail
cd "$(dirname "$0")/.."

gib=5 rate=20000 seconds=30 keep= flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --gib) gib=$2; shift ;;
    --rate) rate=$2; shift ;;
    --seconds) seconds=$2; shift ;;
    --keep) keep=yes ;;
    --) shift; flags=("$@"); break ;;
    *) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
tools=${BENCH_TOOLS:-$PWD/../shared}
[ -x "$tools/yardstick/yardstick" ] || { echo "no benchmark driver in $tools (set BENCH_TOOLS)" >&2; exit 2; }
if [ -z "${KATOMIC_BIN:-}" ]; then cargo build --locked --release; fi
bin=${KATOMIC_BIN:-${CARGO_TARGET_DIR:-target}/release/katomic}

dir=$(mktemp -d "${TMPDIR:-/tmp}/katomic-join.XXXXXX")
base=${JOIN_PORT:-23200}
declare -A pids=()
cleanup() {
  [ -z "${writer:-}" ] || kill "$writer" 2>/dev/null || true
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  if [ -n "$keep" ]; then echo "kept: $dir" >&2; else rm -rf "$dir"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say() { printf '== %s (%ss)\n' "$*" "$SECONDS" >&2; }
kafka() { echo "127.0.0.1:$((base + $1 * 10))"; }
rpc() { echo "127.0.0.1:$((base + $1 * 10 + 1))"; }
admin() { echo "127.0.0.1:$((base + $1 * 10 + 2))"; }
start() {
  "$bin" serve --node-id "$1" --data-dir "$dir/$1" --kafka-addr "$(kafka "$1")" --rpc-addr "$(rpc "$1")" \
    --admin-addr "$(admin "$1")" --seeds "$(rpc 1),$(rpc 2),$(rpc 3)" --set katomic.checkpoint.bytes=268435456 \
    --set katomic.checkpoint.interval.ms=10000 --set katomic.log.retained.bytes=1073741824 \
    --set katomic.wal.file.bytes=67108864 ${flags[@]+"${flags[@]}"} </dev/null >/dev/null 2>"$dir/$1.log" &
  pids[$1]=$!
}
cluster() { "$bin" cluster --admin-addr "$(admin 1)" "$@"; }
produce() { "$tools/yardstick/yardstick" produce --bootstrap "$(kafka 1)" --keep-topics --max-bytes 100GB "$@"; }
p99() { grep -o '"ack_p99_ms":[0-9.]*' "$1" | cut -d: -f2 | sort -g | tail -1; }
rss_mib() { awk '/VmHWM/ {print int($2 / 1024)}' "/proc/$1/status"; }
held_mib() { du -sm "$dir/1/topics" | cut -f1; }

say "starting three nodes"
for node in 1 2 3; do start $node; done
for _ in $(seq 300); do
  curl -fsS "http://$(admin 1)/v1/status/ready" >/dev/null 2>&1 && break
  sleep 0.1
done

say "filling $gib GiB"
round=0
while [ "$(held_mib)" -lt $((gib * 1024)) ]; do
  round=$((round + 1))
  produce --producers 2 --size 10KiB --batch-size 256KiB --warmup 0 --duration 15 >"$dir/fill-$round.json" 2>>"$dir/yardstick.log"
done
say "quiet: $rate records a second"
produce --rate "$rate" --warmup 5 --duration "$seconds" >"$dir/quiet.json" 2>>"$dir/yardstick.log"

say "a fourth node joins $(held_mib) MiB"
start 4
for _ in $(seq 300); do grep -q "waits to be added" "$dir/4.log" && break; sleep 0.1; done
(while produce --rate "$rate" --warmup 0 --duration "$seconds" >>"$dir/join.json" 2>>"$dir/yardstick.log"; do
  [ ! -e "$dir/joined" ] || break
done) &
writer=$!
sleep 5
began=$(date +%s%N)
cluster add "$(rpc 4)" --node-id 4 >&2
took_ms=$((($(date +%s%N) - began) / 1000000))
touch "$dir/joined"
say "it votes; the writes end"
wait "$writer" || true
writer=
cluster status >&2

# Sealed segments never change: the new node's must be the leader's, byte by byte.
same=yes
compared=0
for folder in "$dir"/1/topics/*/; do
  for file in $(ls "$folder" | grep '\.log$' | head -n -1); do
    cmp -s "$folder$file" "$dir/4/topics/$(basename "$folder")/$file" || same=no
    compared=$((compared + 1))
  done
done
grep -E "pulling|caught up" "$dir/4.log" >&2 || true
quiet=$(p99 "$dir/quiet.json") during=$(p99 "$dir/join.json")
memory=$(for node in "${!pids[@]}"; do printf '%s:%s ' "$node" "$(rss_mib "${pids[$node]}")"; done)
verdict=$(awk -v q="$quiet" -v d="$during" -v s="$same" 'BEGIN { print (d < 3 * q && s == "yes") ? "PASS" : "FAIL" }')
echo "join: $verdict took_ms=$took_ms quiet_p99_ms=$quiet join_p99_ms=$during peak_rss_mib=[${memory% }] sealed_segments_equal=$same/$compared"
[ "$verdict" = PASS ]
