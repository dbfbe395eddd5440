# Sourced by cluster.sh: starting and ending nodes, who leads, and what a cluster does to itself on request.

node_pid() { cat "$dir/node-$1/pid" 2>/dev/null || true; }
field() { (. "$dir/node-$1/ports" && eval "echo \$$2"); }

bootstrap() {
  local n all=
  for n in $(seq "$NODES"); do all+=${all:+,}$(field "$n" HOST):$(field "$n" PORT); done
  echo "$all"
}

kill_node() { end_process "$(node_pid "$1")" "$dir/node-$1" KILL; }
stop_node() { end_process "$(node_pid "$1")" "$dir/node-$1"; }
pause_node() { kill -STOP "$(node_pid "$1")"; }
resume_node() { kill -CONT "$(node_pid "$1")"; }

launch() {
  local n=$1 at=$dir/node-$1
  ! process_alive "$(node_pid "$n")" "$at" || return 0
  echo "=== start $(date +%T)" >>"$at/out.log"
  "launch_$TARGET" "$n" "$at" &
  echo $! >"$at/pid"
}

launch_katomic() {
  local n=$1 at=$2 seeds= m settings=()
  if [ "$NODES" -gt 1 ]; then
    for m in $(seq "$NODES"); do seeds+=${seeds:+,}$(field "$m" HOST):$(field "$m" RPC); done
    settings=(--seeds "$seeds")
  fi
  while read -r m; do [ -z "$m" ] || settings+=(--set "$m"); done <"$dir/settings"
  . "$at/ports"
  # shellcheck disable=SC2046
  exec $(inside "$n") env $(clock_environment "$n") RUST_BACKTRACE=1 setsid "$PROGRAM" serve --data-dir "$at/data/katomic" \
    --node-id "$n" --rack "rack-$n" --mode dev --kafka-addr "$HOST:$PORT" --rpc-addr "$HOST:$RPC" \
    --admin-addr "$HOST:$ADMIN" ${settings[@]+"${settings[@]}"} >>"$at/out.log" 2>&1 </dev/null
}

start_nodes() {
  local n
  for n in "$@"; do launch "$(numbered "$n")"; done
}

# The page of one node, or nothing.
page() { curl -fsS -m 1 "http://$(field "$1" HOST):$(field "$1" ADMIN)$2" 2>/dev/null || true; }

# term and leader as node $1 sees them, e.g. "7 2"; nothing if it does not answer.
seen_by() {
  if [ "$TARGET" = kafka ]; then
    python3 "$HERE/cluster/leader_of.py" "$(field "$1" HOST)" "$(field "$1" PORT)" faults-plain 2>/dev/null || true
    return
  fi
  local view overview
  view=$(page "$1" /v1/cluster_view) overview=$(page "$1" /v1/cluster/health_overview)
  [ -n "$view" ] && [ -n "$overview" ] || return 0
  python3 -c 'import json, sys
print(json.loads(sys.argv[1])["version"], json.loads(sys.argv[2])["controller_id"])' "$view" "$overview"
}

# Of several opinions the one of the greatest term counts; a leader's own goes before the others'.
leader() {
  local n best=-1 who= term id
  for n in $(seq "$NODES"); do
    read -r term id <<<"$(seen_by "$n")" || true
    [ -n "${id:-}" ] && [ "$id" != -1 ] && [ "$term" -gt "$best" ] && best=$term who=$id
  done
  [ -n "$who" ] || return 1
  echo "$who"
}

status() {
  local n pid state
  for n in $(seq "$NODES"); do
    pid=$(node_pid "$n") state=down
    ! process_alive "$pid" "$dir/node-$n" || state=$(sed -n 's/^State:[[:space:]]*//p' "/proc/$pid/status")
    printf 'node %s  %s:%s  pid %s  %s  term/leader: %s\n' "$n" "$(field "$n" HOST)" "$(field "$n" PORT)" \
      "${pid:--}" "$state" "$(seen_by "$n")"
  done
}

# ask WORDS: `katomic cluster WORDS` at the first node that answers with success; N (not itself) is left out.
ask() {
  local n out=
  [ "$TARGET" = katomic ] && "$PROGRAM" cluster --help >/dev/null 2>&1 || cannot "katomic cluster $*: not in this build"
  for n in $(seq "$NODES"); do
    [ -n "$(page "$n" /v1/cluster_view)" ] || continue
    ! out=$(timeout 60 "$PROGRAM" cluster --admin-addr "$(field "$n" HOST):$(field "$n" ADMIN)" "$@" 2>&1) || {
      echo "$out"
      return 0
    }
  done
  echo "${out:-no node answers}" >&2
  return 1
}

# insist SECONDS WORDS: the same, again and again until it is done.
insist() {
  local end=$((SECONDS + $1)) out
  shift
  until out=$(ask "$@" 2>&1); do
    [ "$SECONDS" -lt "$end" ] || die "katomic cluster $*: $out"
    sleep 0.5
  done
  echo "$out"
}

transfer() {
  if [ -n "$1" ]; then ask transfer --to "$(numbered "$1")"; else ask transfer; fi
}

replace_node() {
  # Before anything is lost.
  ask status >/dev/null
  kill_node "$1"
  insist 60 remove "$1"
  rm -rf "$dir/node-$1/data/katomic"
  start_nodes "$1"
  insist 120 add --node-id "$1" "$(field "$1" HOST):$(field "$1" RPC)"
}

# ---- Apache Kafka, to hold the checker against ---------------------------------------------------------------------

set_up_kafka() {
  local n voters=
  for n in $(seq "$NODES"); do voters+=${voters:+,}$n@$(field "$n" HOST):$(field "$n" RPC); done
  for n in $(seq "$NODES"); do
    kafka_properties "$n" "$voters" >"$dir/node-$n/server.properties"
    "$PROGRAM/tool" storage format -t kAtomicFaultsTestsCluA \
      -c "$dir/node-$n/server.properties" >"$dir/node-$n/format.out" 2>&1 || die "formatting node $n failed"
  done
}

kafka_properties() {
  . "$dir/node-$1/ports"
  cat <<END
process.roles=broker,controller
node.id=$1
broker.rack=rack-$1
replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector
controller.quorum.voters=$2
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://$HOST:$PORT,CONTROLLER://$HOST:$RPC
advertised.listeners=PLAINTEXT://$HOST:$PORT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$dir/node-$1/data/kafka
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
END
  cat "$dir/settings"
}

launch_kafka() {
  # Finds the jars and the java.
  . "$PROGRAM/common.sh"
  # shellcheck disable=SC2046
  exec $(inside "$1") setsid "$JAVA" -Xms384m -Xmx384m -XX:+UseSerialGC \
    -Dlog4j2.configurationFile="$PROGRAM/log4j2.properties" \
    -cp "$LIBS/*" kafka.Kafka "$2/server.properties" >>"$2/out.log" 2>&1 </dev/null
}
