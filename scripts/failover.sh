#!/usr/bin/env bash
# Measures what clients at work feel of a leader that is killed, and of one that hands over: three nodes on loopback, a
# plain idempotent producer and one of transactions (librdkafka), one write after the other.
#
#   scripts/failover.sh [--kills N] [--transfers N] [--keep]      (default 20 of each; KATOMIC_BIN=path does not build)
#
# The last line is `failover: PASS ...` or `failover: FAIL ...`: p99 below 3 s from the end of kill -9 to a write that began
# later; over a transfer the longest time between two acknowledgements below 0.3 s (for transactions 1.5 s: librdkafka waits
# half a second before it looks for another coordinator); and no write that fails over a transfer.
set -euo pipefail
. "$(dirname "$0")/../compat-tests/lib.sh"

kills=20 transfers=20 keep=
while [ $# -gt 0 ]; do
  case $1 in
    --kills) kills=${2:?}; shift ;;
    --transfers) transfers=${2:?}; shift ;;
    --keep) keep=yes ;;
    *) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
python=$(python_venv)
dir=$(mktemp -d "${TMPDIR:-/tmp}/katomic-failover.XXXXXX")
cluster=$ROOT/scripts/cluster.sh
finish() {
  "$cluster" --dir "$dir" down ${keep:+--keep} >/dev/null || true
  if [ -n "$keep" ]; then echo "kept: $dir" >&2; else rm -rf "$dir"; fi
}
trap finish EXIT
"$cluster" --dir "$dir" up --no-namespaces --no-disks --no-clock >/dev/null
"$python" -B "$COMPAT/python/failover/measure.py" "$cluster" "$dir" "$kills" "$transfers"
