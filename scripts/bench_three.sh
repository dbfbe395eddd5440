#!/usr/bin/env bash
# Measures three nodes of Katomic (quorum fsync on, release build) in turns against three nodes of Apache Kafka, plain, with
# fsync, tuned and with the older transaction protocol, and against a server of three processes that does the least
# possible work. `bench.sh --nodes 3` calls it. One run, one machine: read the ratios, not the absolute times.
#
# usage: scripts/bench.sh --nodes 3 [--quick] [--rounds N] [--duration SECONDS] [--warmup SECONDS] [--only STAGES] [--keep]
#
#   --quick     one round of 4 s each after a short warm-up: shows that it works, measures nothing
#   --only      of the stages: plain fsync tuned tv1 floor checks flat (default: all), separated by commas
#
# Needs what bench.sh needs. Output: target/bench/<time>-three/ with each run's JSON lines; the table at the end holds the
# worst round of each ratio, the targets, and a verdict. BENCH_KATOMIC_PORT and BENCH_KAFKA_PORT move the ports.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=3 duration=10 warmup=10 crowd=30 exercise=60 settle=60 fill=500MB quick= keep= only=plain,fsync,tuned,tv1,floor,checks,flat
while [ $# -gt 0 ]; do
  case $1 in
    --nodes) [ "$2" = 3 ] || { echo "this is the form for three nodes" >&2; exit 2; }; shift ;;
    --quick) quick=yes rounds=1 duration=4 warmup=3 crowd=6 exercise=10 settle=5 fill=50MB ;;
    --rounds) rounds=$2; shift ;;
    --duration) duration=$2; shift ;;
    --warmup) warmup=$2; shift ;;
    --only) only=$2; shift ;;
    --keep) keep=yes ;;
    *) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
tools=${BENCH_TOOLS:-$PWD/../shared}
[ -x "$tools/yardstick/yardstick" ] || { echo "no benchmark driver in $tools (set BENCH_TOOLS)" >&2; exit 2; }
tools=$(cd "$tools" && pwd)

out=${CARGO_TARGET_DIR:-$PWD/target}/bench/$(date +%Y%m%d-%H%M%S)-three; mkdir -p "$out"
kafka_port=${BENCH_KAFKA_PORT:-19392} katomic_port=${BENCH_KATOMIC_PORT:-19592}
katomic=127.0.0.1:$katomic_port,127.0.0.1:$((katomic_port + 1)),127.0.0.1:$((katomic_port + 2))
export FLOOR_CACHE=${FLOOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/katomic-floor}
floor_port=$((katomic_port + 100)) pids=() kafka=

say() { printf '\n== %s (%ss)\n' "$*" "$SECONDS" >&2; }
wanted() { [[ ,$only, == *",$1,"* ]]; }

katomic_down() {
  local pid
  for pid in ${pids[@]+"${pids[@]}"}; do kill "$pid" 2>/dev/null || true; done
  for pid in ${pids[@]+"${pids[@]}"}; do wait "$pid" 2>/dev/null || true; done
  pids=()
  [ -n "$keep" ] || rm -rf "$out"/katomic-data*
}
kafka_down() { "$tools/peers/kafka/down" --data "$out/kafka" --wipe >/dev/null 2>&1 || true; }
cleanup() {
  katomic_down
  kafka_down
  "$tools/floor/floor" down >/dev/null 2>&1 || true
}
trap cleanup EXIT

admin_of() { echo "127.0.0.1:$((katomic_port + 20 + $1 - 1))"; }
katomic_up() { # name, further options of `katomic serve`
  local name=$1 id seeds= began
  shift
  say "three nodes of Katomic: $name"
  for id in 1 2 3; do seeds+=${seeds:+,}127.0.0.1:$((katomic_port + 10 + id - 1)); done
  began=$(date +%s%N)
  for id in 1 2 3; do
    "$bin" serve --node-id "$id" --data-dir "$out/katomic-data-$name/$id" --kafka-addr "127.0.0.1:$((katomic_port + id - 1))" \
      --rpc-addr "127.0.0.1:$((katomic_port + 10 + id - 1))" --admin-addr "$(admin_of "$id")" --seeds "$seeds" "$@" \
      >"$out/katomic-$name-$id.log" 2>&1 </dev/null &
    pids+=($!)
  done
  for id in 1 2 3; do
    for _ in $(seq 3000); do
      ! curl -fsS "http://$(admin_of "$id")/v1/status/ready" >/dev/null 2>&1 || continue 2
      kill -0 "${pids[id - 1]}" || { tail -5 "$out/katomic-$name-$id.log" >&2; exit 1; }
      sleep 0.02
    done
    echo "node $id of Katomic is not ready: see $out" >&2
    exit 1
  done
  echo "{\"ready_ms\": $((($(date +%s%N) - began) / 1000000))}" >"$out/ready-$name.json"
}
kafka_up() { # name, further options of its launcher
  local name=$1
  shift
  kafka_down
  say "three nodes of Kafka: $name"
  kafka=$("$tools/peers/kafka/up" --fresh --data "$out/kafka" --port "$kafka_port" "$@")
}
exercise_kafka() {
  say "exercising Kafka for $exercise s: a JVM's first minute says little about its second"
  "$tools/yardstick/yardstick" txn --bootstrap "$kafka" --producers 10 --warmup 0 --duration "$exercise" --rounds 1 >/dev/null 2>&1 || true
}

y() { "$tools/yardstick/yardstick" "$@" --duration "$duration"; }
# A run that breaks off is a row of the table that says so, not the end of the others.
pair() { # name, warm-up, peer's address and label, scenario and options...
  local name=$1 first=$2 peer=$3 label=$4
  shift 4
  say "$name: Katomic and $label in turns"
  y "$@" --bootstrap "$katomic" --label katomic --vs "$peer" --vs-label "$label" --warmup "$first" --rounds "$rounds" \
    >"$out/$name.jsonl" 2>"$out/$name.err" || { echo "   $name ended with $?: see $out/$name.err" >&2; tail -3 "$out/$name.err" >&2; }
}
metrics() { # name: what each node counted, in files of their own
  local id
  for id in 1 2 3; do curl -fsS "http://$(admin_of "$id")/metrics" >"$out/metrics-$1-$id.txt" || true; done
}
rss_of() { # pids...: their resident memory in MiB
  local pid sum=0
  for pid in "$@"; do sum=$((sum + $(awk '/VmRSS/{print int($2/1024)}' "/proc/$pid/status" 2>/dev/null || echo 0))); done
  echo "$sum"
}
produce_all() { # prefix, peer, label
  # Short warm-ups: at hundreds of MB/s and three copies a disk is soon full.
  local first=$((warmup < 5 ? warmup : 5))
  pair "$1-produce-100B" "$first" "$2" "$3" produce --size 100B
  pair "$1-produce-1KiB" "$first" "$2" "$3" produce --size 1KiB
  pair "$1-produce-1MB" "$first" "$2" "$3" produce --size 1MB
  pair "$1-single" "$warmup" "$2" "$3" produce --rate 2000 --size 512B --linger 0
}

say "building"
bin=${KATOMIC_BIN:-}
[ -n "$bin" ] || { cargo build --locked --release; bin=${CARGO_TARGET_DIR:-target}/release/katomic; }
katomic_up plain

if wanted plain; then
  kafka_up plain
  exercise_kafka
  pair plain-serial "$warmup" "$kafka" kafka txn
  pair plain-ten "$warmup" "$kafka" kafka txn --producers 10
  metrics before-hundred
  pair plain-hundred "$crowd" "$kafka" kafka txn --producers 100
  metrics after-hundred
  for rate in 2000 5000; do
    pair "plain-outbox-$rate" "$warmup" "$kafka" kafka outbox --mode outbox --rate "$rate"
    pair "plain-worker-$rate" "$warmup" "$kafka" kafka outbox --mode txn --rate "$rate"
  done
  produce_all plain "$kafka" kafka
  pair plain-consume "$warmup" "$kafka" kafka consume --bytes "$fill"
  say "memory $settle s after the load"
  sleep "$settle"
  mapfile -t kafka_pids < <(cat "$out"/kafka/node-*/pid)
  echo "{\"katomic_mib\": $(rss_of "${pids[@]}"), \"kafka_mib\": $(rss_of "${kafka_pids[@]}")}" >"$out/memory.json"
fi
if wanted fsync; then
  kafka_up fsync --fsync
  exercise_kafka
  pair fsync-serial "$warmup" "$kafka" kafka txn
  pair fsync-ten "$warmup" "$kafka" kafka txn --producers 10
fi
if wanted tuned; then
  kafka_up tuned --set add.partitions.to.txn.retry.backoff.ms=1
  exercise_kafka
  pair tuned-serial "$warmup" "$kafka" kafka txn
  pair tuned-ten "$warmup" "$kafka" kafka txn --producers 10
  pair tuned-hundred "$crowd" "$kafka" kafka txn --producers 100
fi
if wanted tv1; then
  kafka_up tv1
  "$tools/peers/kafka/tool" features --bootstrap-server "${kafka%%,*}" downgrade --feature transaction.version=1 >&2
  exercise_kafka
  pair tv1-ten "$warmup" "$kafka" kafka txn --producers 10
  pair tv1-hundred "$crowd" "$kafka" kafka txn --producers 100
  katomic_down
  katomic_up tv1 --set transaction.version=0
  pair tv1-serial "$warmup" "$kafka" kafka txn
  metrics tv1
  kafka_down
  if wanted floor; then
    floor=$("$tools/floor/floor" up fsync3 --tv 1 --begin first-request --port "$floor_port" | tail -1)
    pair floor-tv1-serial "$warmup" "$floor" floor txn
    "$tools/floor/floor" down
  fi
  katomic_down
  katomic_up plain
fi
kafka_down

if wanted floor; then
  say "the floor: a leader and two followers that only append, sync and answer"
  floor=$("$tools/floor/floor" up fsync3 --port "$floor_port" | tail -1)
  pair floor-serial "$warmup" "$floor" floor txn
  pair floor-ten "$warmup" "$floor" floor txn --producers 10
  pair floor-hundred "$crowd" "$floor" floor txn --producers 100
  produce_all floor "$floor" floor
  "$tools/floor/floor" down
fi
if wanted checks; then
  say "is what was stored right?"
  metrics before-checks
  for run in "verify txn --producers 10 --verify" "abort txn-abort --producers 10 --offsets" \
    "outbox outbox --mode outbox --rate 2000" "outbox-txn outbox --mode txn --rate 2000"; do
    read -r name scenario <<<"$run"
    # shellcheck disable=SC2086
    y $scenario --bootstrap "$katomic" --label katomic --warmup 5 >"$out/check-$name.jsonl" 2>"$out/check-$name.err" || true
  done
  metrics after-checks
fi
if wanted flat; then
  say "the same transactions beside 10 and beside 10,000 partitions"
  y txn --bootstrap "$katomic" --label katomic --warmup "$warmup" --rounds "$rounds" >"$out/flat-few.jsonl" 2>"$out/flat-few.err" || true
  many=9990
  [ -z "$quick" ] || many=490
  "$tools/peers/kafka/tool" topics --bootstrap-server "${katomic%%,*}" --create --topic flat --partitions "$many" >&2 || true
  y txn --bootstrap "$katomic" --label katomic --warmup "$warmup" --rounds "$rounds" >"$out/flat-many.jsonl" 2>"$out/flat-many.err" || true
fi

metrics end
echo "{\"quick\": $([ -n "$quick" ] && echo true || echo false), \"stages\": \"$only\"}" >"$out/form.json"
say "done"
python3 scripts/bench_three_table.py "$out"
