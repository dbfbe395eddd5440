#!/usr/bin/env bash
# Kills the broker under load at random moments and proves that nothing acknowledged was lost, torn or doubled.
#
#   scripts/crash.sh [--seconds N] [--seed S] [--target katomic|kafka] [--keep]
#
#   --seconds   how long kills go on (default 60); finishing and checking come after
#   --seed      of the moments and the load (default 1)
#   --target    kafka proves the checker against Apache Kafka
#   --keep      leaves data, logs and the clients' errors where they are, and says where
#
# Load: for each of Java 4.4.0 (transactions v2), Java 3.7.2 (v1) and librdkafka (v1) two transactional producers (three
# topics and the offset of a group each), a plain idempotent producer and a member of one consumer group. Afterwards a
# fresh read_committed reader must find: every acknowledged record exactly once and in order, every committed
# transaction whole, one of unknown outcome whole or absent, nothing aborted, and group offsets that match the last
# visible transaction.
#
#   KATOMIC_BIN=path   do not build       CRASH_CLIENTS="java-4.4 java-3.7 librdkafka"   only these
#
# The last line is `crash: PASS kills=N acked=N txns=N` or `crash: FAIL ...`; the exit code is 1 on failure.
set -euo pipefail
. "$(dirname "$0")/../compat-tests/lib.sh"

seconds=60 seed=1 target=katomic keep=
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2:?--seconds needs a number}; shift ;;
    --seed) seed=${2:?--seed needs a number}; shift ;;
    --target) target=${2:?--target needs a name}; shift ;;
    --keep) keep=yes ;;
    *) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
need_java
python=$(python_venv)
(cd "$COMPAT/python/crash" && "$python" -B -m unittest -q test_journal) || die "the checker fails its own tests"

STATE_DIR=$(mktemp -d "${TMPDIR:-/tmp}/katomic-crash.XXXXXX")
export STATE_DIR BROKER=$COMPAT/broker.sh
finish() {
  [ ! -e "$STATE_DIR/main/ports" ] || "$BROKER" kill main || true
  if [ -n "$keep" ]; then echo "kept: $STATE_DIR" >&2; else rm -rf "$STATE_DIR"; fi
}
trap finish EXIT
trap 'exit 130' INT TERM

workloads=()
clients=" ${CRASH_CLIENTS:-java-4.4 java-3.7 librdkafka} "
for profile in 4.4 3.7; do
  [[ $clients = *" java-$profile "* ]] || continue
  build=$COMPAT_CACHE/java-crash-$profile
  mvn -q -B -f "$COMPAT/java/crash/pom.xml" -P "$profile" -Dbuild.dir="$build" compile \
    dependency:build-classpath -Dmdep.outputFile="$build/classpath" || die "the Java workload does not build"
  workloads+=(-- "java-$profile" java -Xmx192m -XX:+UseSerialGC -cp "$build/classes:$(cat "$build/classpath")" \
    compat.crash.Workload)
done
[[ $clients != *" librdkafka "* ]] || workloads+=(-- librdkafka "$python" -B "$COMPAT/python/crash/librdkafka.py")

set_up_target "$target" "$STATE_DIR"
set_up_broker main "$STATE_DIR"
"$BROKER" start main
BOOTSTRAP=127.0.0.1:$(. "$STATE_DIR/main/ports" && echo "$PORT")
export BOOTSTRAP
echo "crash: target $target, $seconds s, seed $seed"
# -B keeps byte code out of the tree. Not exec: the trap above ends the broker.
"$python" -B "$COMPAT/python/crash/drive.py" --seconds "$seconds" --seed "$seed" "${workloads[@]}"
