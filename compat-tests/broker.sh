#!/usr/bin/env bash
# Starts and ends the brokers of one run; tests that need a crash call it too.
#
#   broker.sh start NAME     returns once the broker serves; goes on with the data it had
#   broker.sh kill NAME      SIGKILL; returns once it is gone
#   broker.sh stop NAME      SIGTERM
#
# STATE_DIR holds what run.sh set up: the target, and for each broker its ports, data, output and pid.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

[ $# = 2 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2; }
: "${STATE_DIR:?is set by run.sh}"
dir=$STATE_DIR/$2
. "$STATE_DIR/target"
. "$dir/ports"

broker_pid() {
  if [ "$TARGET" = kafka ]; then cat "$dir/data/node-1/pid"; else cat "$dir/pid"; fi 2>/dev/null || true
}

start_kafka() {
  # Sweeps for timed out transactions and idle producers come often, so that cases about time are short. One offsets
  # and one transaction partition instead of 50: starting is quicker and nothing depends on the number.
  "$PROGRAM/up" --single --data "$dir/data" --port "$PORT" --heap 512m \
    --set advertised.listeners=PLAINTEXT://127.0.0.1:"$ADVERTISED" \
    --set transaction.abort.timed.out.transaction.cleanup.interval.ms=200 \
    --set offsets.topic.num.partitions=1 --set transaction.state.log.num.partitions=1 \
    >>"$dir/out.log" 2>&1 || { tail -n 20 "$dir/out.log" >&2; die "Kafka did not start"; }
}

start_katomic() {
  mkdir -p "$dir/data"
  setsid "$PROGRAM" serve --data-dir "$dir/data" --mode dev \
    --kafka-addr 127.0.0.1:"$PORT" --advertise-kafka-addr 127.0.0.1:"$ADVERTISED" \
    --rpc-addr 127.0.0.1:"$RPC" --admin-addr 127.0.0.1:"$ADMIN" >>"$dir/out.log" 2>&1 </dev/null &
  echo $! >"$dir/pid"
  local _
  for _ in $(seq 1200); do
    ! curl -fsS -o /dev/null -m 2 "http://127.0.0.1:$ADMIN/v1/status/ready" 2>/dev/null || return 0
    kill -0 "$(broker_pid)" 2>/dev/null || { tail -n 20 "$dir/out.log" >&2; die "katomic ended while starting"; }
    sleep 0.05
  done
  tail -n 20 "$dir/out.log" >&2
  die "katomic was not ready within a minute"
}

case $1 in
  start)
    ! process_alive "$(broker_pid)" "$dir/data" || exit 0
    "start_$TARGET"
    ;;
  kill) end_process "$(broker_pid)" "$dir/data" KILL ;;
  stop) end_process "$(broker_pid)" "$dir/data" ;;
  *) die "no such command: $1" ;;
esac
