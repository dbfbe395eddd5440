#!/usr/bin/env bash
# Runs real clients against Katomic, or against Apache Kafka to prove the cases themselves.
#
#   run.sh [all | LANGUAGE/CLIENT]... [--target katomic|kafka] [--write-matrix] [--keep]
#
#   --target        what is tested (default katomic)
#   --write-matrix  with `all`: writes the result of every client and case into README.md
#   --keep          leaves the brokers' data and output where they are, and says where
#
#   CASE=name       only that case        KATOMIC_BIN=path   do not build        KAFKA_PEER=dir   launcher of Kafka
#
# The last line is `N passed, N failed, N skipped`; the exit code is 1 if a case failed or did not run.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

target=katomic matrix= keep= wanted=()
while [ $# -gt 0 ]; do
  case $1 in
    --target) target=${2:?--target needs a name}; shift ;;
    --write-matrix) matrix=yes ;;
    --keep) keep=yes ;;
    -*) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    *) wanted+=("${1%/}") ;;
  esac
  shift
done

clients=(java/kafka-clients python/confluent-kafka go/franz-go go/sarama node/kafkajs python/aiokafka)
[ ${#wanted[@]} -gt 0 ] || wanted=(all)
if [ "${wanted[*]}" = all ]; then
  wanted=("${clients[@]}")
else
  [ -z "$matrix" ] || die "--write-matrix goes with all"
fi
for suite in "${wanted[@]}"; do
  [ -x "$COMPAT/$suite/run.sh" ] || die "no such suite: $suite; there are: ${clients[*]}"
done

STATE_DIR=$(mktemp -d "${TMPDIR:-/tmp}/katomic-compat.XXXXXX")
export STATE_DIR
relay_pid=
finish() {
  for name in main relayed; do
    [ ! -e "$STATE_DIR/$name/ports" ] || "$COMPAT/broker.sh" kill "$name" || true
  done
  end_process "$relay_pid" "$COMPAT/relay.py"
  if [ -n "$keep" ]; then echo "kept: $STATE_DIR" >&2; else rm -rf "$STATE_DIR"; fi
}
trap finish EXIT
trap 'exit 130' INT TERM

set_up_target "$target" "$STATE_DIR"

# Two brokers: one plain, and one that advertises the relay in front of it, for the cases that disturb frames.
relay=$(free_port) control=$(free_port)
set_up_broker main "$STATE_DIR"
set_up_broker relayed "$STATE_DIR" "$relay"
main_port=$(. "$STATE_DIR/main/ports" && echo "$PORT")
upstream=$(. "$STATE_DIR/relayed/ports" && echo "$PORT")

python3 "$COMPAT/relay.py" --listen 127.0.0.1:"$relay" --upstream 127.0.0.1:"$upstream" \
  --control 127.0.0.1:"$control" >"$STATE_DIR/relay.log" 2>&1 &
relay_pid=$!
for _ in $(seq 200); do
  ! grep -q 'relay: ready' "$STATE_DIR/relay.log" || break
  kill -0 "$relay_pid" 2>/dev/null || { cat "$STATE_DIR/relay.log" >&2; die "the relay did not start"; }
  sleep 0.05
done

export TARGET=$target BOOTSTRAP=127.0.0.1:$main_port RELAY_BOOTSTRAP=127.0.0.1:$relay \
  RELAY_CONTROL=127.0.0.1:$control BROKER=$COMPAT/broker.sh RESULTS=$STATE_DIR/results.tsv COMPAT_CACHE REPLICAS=1
: >"$RESULTS"
for suite in "${wanted[@]}"; do
  # A broker that a suite left dead must not fail the next one.
  "$COMPAT/broker.sh" start main
  "$COMPAT/broker.sh" start relayed
  echo "== $suite against $target"
  before=$(wc -l <"$RESULTS")
  "$COMPAT/$suite/run.sh" || echo "$suite/run.sh ended with $?"
  [ "$(wc -l <"$RESULTS")" -gt "$before" ] || printf '%s\tsuite\tfail\tit reported no case\n' "$suite" >>"$RESULTS"
done

[ -z "$matrix" ] || python3 "$COMPAT/results.py" matrix --target "$target" "$RESULTS" "$COMPAT/README.md"
python3 "$COMPAT/results.py" summary "$RESULTS"
