#!/usr/bin/env bash
# Many seeds of the simulator (src/sim), optimised, on as many processes as there are cores. A failure tells its seed.
# usage: scripts/sim.sh [count=10000] [from=0]
set -euo pipefail
cd "$(dirname "$0")/.."
count=${1:-10000}; from=${2:-0}
cores=$(nproc)
bin=$(cargo test --locked --release --test sim --no-run --message-format=json |
  python3 -c 'import json,sys
for line in sys.stdin:
    found = json.loads(line)
    if found.get("target", {}).get("name") == "sim" and found.get("executable"):
        print(found["executable"])')
logs=$(mktemp -d)
pids=(); share=$(( (count + cores - 1) / cores ))
for ((core = 0; core < cores; core++)); do
  SIM_FROM=$((from + core * share)) SIM_COUNT=$share RUST_BACKTRACE=0 "$bin" many_seeds --ignored >"$logs/$core" 2>&1 </dev/null &
  pids+=($!)
done
failed=0
for core in "${!pids[@]}"; do
  wait "${pids[$core]}" || { failed=1; echo "== share $core"; tail -n 60 "$logs/$core"; }
done
[ "$failed" = 0 ] && rm -r "$logs" && echo "$((share * cores)) seeds from $from hold (${SECONDS}s)"
exit "$failed"
