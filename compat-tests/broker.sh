#!/usr/bin/env bash
# Starts and ends the brokers of one run; tests that need a crash call it too.
#
#   broker.sh start NAME [NODE]     returns once they serve; they go on with the data they had
#   broker.sh kill NAME [WHICH]     SIGKILL; returns once they are gone
#   broker.sh stop NAME [WHICH]     SIGTERM
#   broker.sh leader NAME           prints the node that coordinates (on Katomic: leads everything)
#
# NAME is a cluster of one node or three, WHICH a node's number or `leader`; without it, all of them.
# STATE_DIR holds what run.sh set up: the target, and for each cluster its ports, data, output and pids.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

[ $# = 2 ] || [ $# = 3 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2; }
: "${STATE_DIR:?is set by run.sh}"
dir=$STATE_DIR/$2
. "$STATE_DIR/target"
. "$dir/ports"

broker_pid() { cat "$dir/data/node-$1/pid" 2>/dev/null || true; }
running() { process_alive "$(broker_pid "$1")" "$dir/data/node-$1"; }
leader() {
  local addresses=() node
  for node in "${nodes[@]}"; do addresses+=("127.0.0.1:${PORT[node - 1]}"); done
  python3 "$COMPAT/coordinator.py" "${addresses[@]}"
}

# Kafka's launcher starts whole clusters. It is given a `java` that puts each node's advertised port into its configuration
# and notes the command, by which one node is started again later.
start_kafka() {
  local single=() heap=384m node file
  [ "${#nodes[@]}" -gt 1 ] || { single=(--single); heap=512m; }
  mkdir -p "$dir/java/bin"
  cat >"$dir/java/bin/java" <<END
#!/usr/bin/env bash
advertised=(${ADVERTISED[*]})
file=\${*: -1}
if [[ \$* == *kafka.Kafka* ]]; then
  node=\$(sed -n 's/^node.id=//p' "\$file")
  sed -i "s|^advertised.listeners=.*|advertised.listeners=PLAINTEXT://127.0.0.1:\${advertised[node - 1]}|" "\$file"
  printf '%s\0' "$(type -P "${JAVA_HOME:+$JAVA_HOME/bin/}java")" "\$@" >"\${file%/*}/command"
fi
exec "$(type -P "${JAVA_HOME:+$JAVA_HOME/bin/}java")" "\$@"
END
  chmod +x "$dir/java/bin/java"
  # Sweeps for timed out transactions and idle producers come often, so that cases about time are short. One offsets
  # and one transaction partition instead of 50: starting is quicker, nothing depends on the number, and one node
  # coordinates all. A dead node is noticed in 2 s instead of 9.
  JAVA_HOME=$dir/java "$PROGRAM/up" ${single[@]+"${single[@]}"} --data "$dir/data" --port "${PORT[0]}" --heap "$heap" \
    --set transaction.abort.timed.out.transaction.cleanup.interval.ms=200 \
    --set offsets.topic.num.partitions=1 --set transaction.state.log.num.partitions=1 \
    --set broker.session.timeout.ms=2000 --set broker.heartbeat.interval.ms=500 \
    >>"$dir/out.log" 2>&1 || { tail -n 20 "$dir/out.log" >&2; die "Kafka did not start"; }
}

start_kafka_node() {
  local home=$dir/data/node-$1 command _
  mapfile -d '' command <"$home/command"
  : >"$home/server.out"
  setsid "${command[@]}" >"$home/server.out" 2>&1 </dev/null &
  echo $! >"$home/pid"
  for _ in $(seq 600); do
    ! grep -q 'Kafka Server started' "$home/server.out" || return 0
    running "$1" || { tail -n 20 "$home/server.out" >&2; die "node $1 of Kafka ended while starting"; }
    sleep 0.1
  done
  die "node $1 of Kafka did not start within a minute"
}

start_katomic_node() {
  local at=$(($1 - 1)) home=$dir/data/node-$1 seeds=
  mkdir -p "$home/data"
  [ "${#nodes[@]}" = 1 ] || seeds=$(printf '127.0.0.1:%s,' "${RPC[@]}")
  setsid "$PROGRAM" serve --node-id "$1" --data-dir "$home/data" --mode dev \
    --kafka-addr 127.0.0.1:"${PORT[at]}" --advertise-kafka-addr 127.0.0.1:"${ADVERTISED[at]}" \
    --rpc-addr 127.0.0.1:"${RPC[at]}" --admin-addr 127.0.0.1:"${ADMIN[at]}" \
    ${seeds:+--seeds "${seeds%,}"} >>"$home/out.log" 2>&1 </dev/null &
  echo $! >"$home/pid"
}

await_katomic_node() {
  local _
  for _ in $(seq 1200); do
    ! curl -fsS -o /dev/null -m 2 "http://127.0.0.1:${ADMIN[$1 - 1]}/v1/status/ready" 2>/dev/null || return 0
    running "$1" || { tail -n 20 "$dir/data/node-$1/out.log" >&2; die "node $1 of katomic ended while starting"; }
    sleep 0.05
  done
  tail -n 20 "$dir/data/node-$1/out.log" >&2
  die "node $1 of katomic was not ready within a minute"
}

# Only the nodes that do not run. The nodes of a cluster need each other, so all are started before one is awaited.
start() {
  local node started=()
  for node in "$@"; do running "$node" || started+=("$node"); done
  [ ${#started[@]} -gt 0 ] || return 0
  if [ "$TARGET" = katomic ]; then
    for node in "${started[@]}"; do start_katomic_node "$node"; done
    for node in "${started[@]}"; do await_katomic_node "$node"; done
  elif [ ${#started[@]} = ${#nodes[@]} ]; then
    start_kafka
  else
    for node in "${started[@]}"; do start_kafka_node "$node"; done
  fi
}

# All at once: of a cluster stopped one after the other, the last nodes would wait for those that are gone.
end() { # signal, nodes
  local signal=$1 node; shift
  for node in "$@"; do
    ! running "$node" || kill -"$signal" "$(broker_pid "$node")" 2>/dev/null || true
  done
  for node in "$@"; do end_process "$(broker_pid "$node")" "$dir/data/node-$node" "$signal"; done
}

read -r -a nodes <<<"$NODES"
case ${3:-all} in
  all) which=("${nodes[@]}") ;;
  leader) which=("$(leader)") ;;
  *) which=("$3") ;;
esac
case $1 in
  start) start "${which[@]}" ;;
  kill) end KILL "${which[@]}" ;;
  stop) end TERM "${which[@]}" ;;
  leader) leader ;;
  *) die "no such command: $1" ;;
esac
