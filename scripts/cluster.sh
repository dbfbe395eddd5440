#!/usr/bin/env bash
# A cluster on this machine whose nodes can be killed, paused, cut off and slowed, each by itself.
#
#   cluster.sh [--dir DIR] up [--nodes N] [--binary PATH] [--target katomic|kafka] [--set KEY=VALUE]...
#                             [--no-namespaces] [--no-disks] [--no-clock]
#   cluster.sh [--dir DIR] down [--keep]         ends all by pid, and takes away namespaces, bridge and disks
#   cluster.sh [--dir DIR] status | bootstrap | leader
#   cluster.sh [--dir DIR] kill N... | start N... | stop N | restart N | pause N... | resume N...
#   cluster.sh [--dir DIR] partition 'A|B' 'A>B'...   sets of nodes (1,2) and c (the clients): | cuts both ways, > lets
#                                                     nothing come from A to B; adds to what is cut already
#   cluster.sh [--dir DIR] heal                  network, pauses, disks and clocks; starts nothing
#   cluster.sh [--dir DIR] slow-disk N [IOPS] | fast-disk N | freeze-disk N | thaw-disk N
#   cluster.sh [--dir DIR] power-loss N...       what no fsync has confirmed is gone; the nodes are down after it
#   cluster.sh [--dir DIR] clock N SECONDS       wall clock of N, from now on that much off the true one (0: true)
#   cluster.sh [--dir DIR] transfer [N]          moves leadership (to N)
#   cluster.sh [--dir DIR] replace N             N loses everything, leaves the cluster and joins it again
#
# DIR (default ./katomic-cluster) holds pids, outputs and disks. Every node has a network namespace, joined to the others
# and to this machine by a bridge, a disk of its own (ext4 in a file) and a clock that can be moved. What the machine
# cannot give is said loudly and left out; what needs it then exits with 3.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/../compat-tests/lib.sh"
. "$HERE/cluster/machine.sh"
. "$HERE/cluster/nodes.sh"

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2; }
loud() { echo "cluster.sh: WARNING: $*" >&2; }
cannot() { echo "cluster.sh: not here: $*" >&2; exit 3; }

dir=katomic-cluster
if [ "${1:-}" = --dir ]; then dir=${2:?--dir needs a directory}; shift 2; fi
[ $# -gt 0 ] || usage
command=$1; shift

up() {
  local nodes=3 binary=${KATOMIC_BIN:-} target=katomic namespaces=yes disks=yes clock=yes sets=()
  while [ $# -gt 0 ]; do
    case $1 in
      --nodes) nodes=${2:?}; shift ;;
      --binary) binary=${2:?}; shift ;;
      --target) target=${2:?}; shift ;;
      --set) sets+=("${2:?}"); shift ;;
      --no-namespaces) namespaces= ;;
      --no-disks) disks= ;;
      --no-clock) clock= ;;
      *) usage ;;
    esac
    shift
  done
  [ ! -e "$dir/cluster" ] || die "$dir already holds a cluster; take it down first"
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd)
  local program
  if [ "$target" = kafka ]; then
    need_java; program=$(kafka_peer) || exit 1; clock=
  else
    program=$(KATOMIC_BIN=$binary katomic_bin) || exit 1
  fi
  # A cluster that does not come up whole is not left in part.
  trap down EXIT
  printf 'TARGET=%q\nPROGRAM=%q\nNODES=%q\n' "$target" "$program" "$nodes" >"$dir/cluster"
  printf '%s\n' ${sets[@]+"${sets[@]}"} >"$dir/settings"
  local n
  for n in $(seq "$nodes"); do mkdir -p "$dir/node-$n/data"; done
  set_up_network "$namespaces"
  set_up_disks "$disks"
  set_up_clock "$clock"
  load
  [ "$TARGET" != kafka ] || set_up_kafka
  start_nodes $(seq "$NODES")
  trap - EXIT
  bootstrap
}

load() {
  [ -e "$dir/cluster" ] || die "no cluster in $dir"
  dir=$(cd "$dir" && pwd)
  . "$dir/cluster"
}

down() {
  trap - EXIT
  [ -e "$dir/cluster" ] || return 0
  load
  local n
  heal || true
  for n in $(seq "$NODES"); do end_process "$(node_pid "$n")" "$dir/node-$n" KILL || true; done
  take_down_disks "${1:-}"
  take_down_network
  rm -f "$dir/cluster"
}

# Everything that heals by itself alone; nodes that are down stay down.
heal() {
  local n
  for n in $(seq "$NODES"); do
    thaw_disk "$n"
    fast_disk "$n"
    [ -z "${CLOCK:-}" ] || set_clock "$n" 0
    kill -CONT "$(node_pid "$n")" 2>/dev/null || true
  done
  heal_network
}

each() { local what=$1 n; shift; for n in "$@"; do "$what" "$(numbered "$n")"; done; }
numbered() {
  case $1 in *[!0-9]* | '') die "no such node: $1" ;; esac
  [ "$1" -ge 1 ] && [ "$1" -le "$NODES" ] || die "no such node: $1"
  echo "$1"
}

if [ "$command" != up ] && [ "$command" != down ]; then load; fi
case $command in
  up) up "$@" ;;
  down) down "$@" ;;
  status) status ;;
  bootstrap) bootstrap ;;
  leader) leader ;;
  kill) each kill_node "$@" ;;
  start) start_nodes "$@" ;;
  stop) each stop_node "$@" ;;
  restart) each stop_node "$@"; start_nodes "$@" ;;
  pause) each pause_node "$@" ;;
  resume) each resume_node "$@" ;;
  partition) for cut in "$@"; do cut_network "$cut"; done ;;
  heal) heal ;;
  slow-disk) slow_disk "$(numbered "$1")" "${2:-10}" ;;
  fast-disk) fast_disk "$(numbered "$1")" ;;
  freeze-disk) freeze_disk "$(numbered "$1")" ;;
  thaw-disk) thaw_disk "$(numbered "$1")" ;;
  power-loss) power_loss "$@" ;;
  clock) [ -n "$CLOCK" ] || cannot "clock"; set_clock "$(numbered "$1")" "${2:?SECONDS}" ;;
  transfer) transfer "${1:-}" ;;
  replace) replace_node "$(numbered "$1")" ;;
  *) usage ;;
esac
