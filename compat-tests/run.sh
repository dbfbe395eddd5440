#!/usr/bin/env bash
# Runs real clients against Katomic, or against Apache Kafka to prove the cases themselves.
#
#   run.sh [all | LANGUAGE/CLIENT]... [--target katomic|kafka] [--nodes 1|3 [--failover]] [--write-matrix] [--keep]
#
#   --target        what is tested (default katomic)
#   --nodes         of each cluster (default 1); with 3 the failover cases run too
#   --failover      with three nodes: only the failover cases
#   --write-matrix  with `all`: writes the result of every client and case into README.md
#   --keep          leaves the brokers' data and output where they are, and says where
#
#   CASE=name       only that case        KATOMIC_BIN=path   do not build        KAFKA_PEER=dir   launcher of Kafka
#
# The last line is `N passed, N failed, N skipped`; the exit code is 1 if a case failed or did not run.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

target=katomic nodes=1 failover= matrix= keep= wanted=()
while [ $# -gt 0 ]; do
  case $1 in
    --target) target=${2:?--target needs a name}; shift ;;
    --nodes) nodes=${2:?--nodes needs a number}; shift ;;
    --failover) failover=yes ;;
    --write-matrix) matrix=yes ;;
    --keep) keep=yes ;;
    -*) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    *) wanted+=("${1%/}") ;;
  esac
  shift
done

[ "$nodes" = 1 ] || [ "$nodes" = 3 ] || die "--nodes is 1 or 3"
[ -z "$failover" ] || [ "$nodes" = 3 ] || die "--failover goes with --nodes 3"
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

# Two clusters: one plain, and one whose nodes advertise the relay in front of them, for the cases that disturb frames.
relay=$(free_port "$nodes")
set_up_broker main "$STATE_DIR" "$nodes"
set_up_broker relayed "$STATE_DIR" "$nodes" "$relay"
control=$(free_port)
main_port=$(. "$STATE_DIR/main/ports" && echo "${PORT[0]}")
upstream=$(. "$STATE_DIR/relayed/ports" && echo "${PORT[0]}")

python3 "$COMPAT/relay.py" --listen "$(addresses "$relay" "$nodes")" --upstream "$(addresses "$upstream" "$nodes")" \
  --control 127.0.0.1:"$control" >"$STATE_DIR/relay.log" 2>&1 &
relay_pid=$!
for _ in $(seq 200); do
  ! grep -q 'relay: ready' "$STATE_DIR/relay.log" || break
  kill -0 "$relay_pid" 2>/dev/null || { cat "$STATE_DIR/relay.log" >&2; die "the relay did not start"; }
  sleep 0.05
done

export TARGET=$target NODES=$nodes FAILOVER=$failover REPLICAS=$nodes RELAY_BOOTSTRAP=$(addresses "$relay" "$nodes")
export BOOTSTRAP=$(addresses "$main_port" "$nodes") \
  RELAY_CONTROL=127.0.0.1:$control BROKER=$COMPAT/broker.sh RESULTS=$STATE_DIR/results.tsv COMPAT_CACHE
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

[ -z "$matrix" ] || python3 "$COMPAT/results.py" matrix --target "$target-$nodes" "$RESULTS" "$COMPAT/README.md"
python3 "$COMPAT/results.py" summary "$RESULTS"
