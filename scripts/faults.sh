#!/usr/bin/env bash
# Disturbs a cluster under load by real clients, then proves that nothing acknowledged was lost, doubled, torn or shown
# too early, in the manner of the Jepsen Kafka workload.
#
#   scripts/faults.sh [--seconds N] [--seed S] [--faults LIST] [--binary PATH] [--nodes N] [--pace MS]
#                     [--patience N] [--target katomic|kafka] [--dir DIR] [--keep] [-- ARGUMENTS OF cluster.sh up]
#
#   --seconds   how long faults go on (default 120, which makes about three minutes in all)
#   --seed      of the faults and the load (default 1)
#   --faults    only these, parted by commas, e.g. kill-leader,cut-leader; see compat-tests/python/faults/nemesis.py
#   --binary    the katomic to run; built if not given
#   --pace      milliseconds between a client's requests (default 25)
#   --patience  seconds that a client may stand still once all is well again (default 60): more on a busy machine
#   --target    kafka holds the checker against Apache Kafka (which does not show a transaction in one step)
#   --dir       where the run lives; kept on failure, or with --keep
#
# Load: Java 4.4.0 (transactions v2), Java 3.7.2 and librdkafka (v1), each with a producer of transactions over three
# topics and a group's offset, a consume-transform-produce pipe in a common group, a plain idempotent producer, a member
# of a common group, readers of both isolation levels; and one witness that looks at offsets and records together.
#
#   FAULTS_CLIENTS="java-4.4 java-3.7 librdkafka"   only these (java-4.4 is needed)
#
# The last line is `faults: PASS seed=S ...` or `faults: FAIL ...`; the exit code is 1 on failure.
set -euo pipefail
. "$(dirname "$0")/../compat-tests/lib.sh"

seconds=120 seed=1 faults= binary=${KATOMIC_BIN:-} nodes=3 pace=25 patience=60 target=katomic dir= keep= more=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2:?}; shift ;;
    --seed) seed=${2:?}; shift ;;
    --faults) faults=${2?}; shift ;;
    --binary) binary=${2:?}; shift ;;
    --nodes) nodes=${2:?}; shift ;;
    --pace) pace=${2:?}; shift ;;
    --patience) patience=${2:?}; shift ;;
    --target) target=${2:?}; shift ;;
    --dir) dir=${2:?}; shift ;;
    --keep) keep=yes ;;
    --) shift; more=("$@"); break ;;
    *) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
need_java
need curl "apt-get install curl"
python=$(python_venv)
(cd "$COMPAT/python/faults" && "$python" -B -m unittest -q test_checker) || die "the checker fails its own tests"

[ -n "$dir" ] || dir=$(mktemp -d "${TMPDIR:-/tmp}/katomic-faults.XXXXXX")
mkdir -p "$dir"
cluster=$ROOT/scripts/cluster.sh
finish() {
  local code=$?
  # A second Ctrl-C must not leave namespaces behind.
  trap '' INT TERM
  if [ "$code" != 0 ]; then keep=yes; fi
  "$cluster" --dir "$dir" down ${keep:+--keep} >/dev/null || true
  if [ -n "$keep" ]; then echo "kept: $dir (seed $seed), with the nodes' disks" >&2; else rm -rf "$dir"; fi
}
trap finish EXIT
trap 'exit 130' INT TERM

workloads=()
clients=" ${FAULTS_CLIENTS:-java-4.4 java-3.7 librdkafka} "
for profile in 4.4 3.7; do
  [[ $clients = *" java-$profile "* ]] || continue
  build=$COMPAT_CACHE/java-faults-$profile
  # Only what has changed: a run must not begin with half a minute of Maven.
  if [ ! -s "$build/classpath" ] || [ -n "$(find "$COMPAT/java/crash" -newer "$build/classpath" -type f)" ]; then
    mvn -q -B -f "$COMPAT/java/crash/pom.xml" -P "$profile" -Dbuild.dir="$build" compile \
      dependency:build-classpath -Dmdep.outputFile="$build/classpath" || die "the Java workload does not build"
    touch "$build/classpath"
  fi
  workloads+=(-- "java-$profile" java -Xmx256m -XX:+UseSerialGC -Dpace.ms="$pace" \
    -cp "$build/classes:$(cat "$build/classpath")" compat.faults.Workload)
done
export PACE_MS=$pace
[[ $clients != *" librdkafka "* ]] || workloads+=(-- librdkafka "$python" -B "$COMPAT/python/faults/librdkafka.py")

if [ "$target" = kafka ]; then atomic=--no-atomic; else atomic=--atomic; fi
echo "faults: target $target, $nodes nodes, $seconds s, seed $seed, in $dir"
"$cluster" --dir "$dir" up --nodes "$nodes" --target "$target" ${binary:+--binary "$binary"} ${more[@]+"${more[@]}"}
# -B keeps byte code out of the tree. Not exec: the trap above takes the cluster down.
"$python" -B "$COMPAT/python/faults/drive.py" --cluster "$dir" --script "$cluster" --nodes "$nodes" \
  --seconds "$seconds" --seed "$seed" --faults "$faults" --patience "$patience" "$atomic" "${workloads[@]}"
