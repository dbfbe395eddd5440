#!/usr/bin/env bash
# The raw-socket suite. Alone it tests nodes that it starts itself; ../../run.sh rust/wire gives it BOOTSTRAP and TARGET.
#   run.sh [FILTER]
set -euo pipefail
cd "$(dirname "$0")/../../.."
status=0
out=$(cargo test --locked --test wire -- ${CASE:-${1:-}} 2>&1) || status=$?
printf '%s\n' "$out"
if [ -n "${RESULTS:-}" ]; then
  sed -nE 's/^test (.*) \.\.\. ok$/rust\/wire\t\1\tpass\t/p; s/^test (.*) \.\.\. FAILED$/rust\/wire\t\1\tfail\t/p' \
    <<<"$out" >>"$RESULTS"
fi
exit $status
