#!/usr/bin/env bash
# The franz-go suite; called by ../../run.sh, which starts the brokers and sets the environment.
set -euo pipefail
. "$(dirname "$0")/../../lib.sh"
cd "$(dirname "$0")"
: "${RESULTS:?start it with compat-tests/run.sh go/franz-go}"
need go "apt-get install golang (1.26 or later)"

version=$(sed -n 's/.*twmb\/franz-go v\([0-9.]*\)$/\1/p' go.mod)
# txn_commit is TestTxnCommit here.
test=Test$(sed -E 's/(^|_)([a-z])/\U\2/g' <<<"${CASE:-}")
mkdir -p "$COMPAT_CACHE"
go test -mod=readonly -c -o "$COMPAT_CACHE/franz-go.test" . || die "go test -c failed"
status=0
"$COMPAT_CACHE/franz-go.test" -test.v=test2json -test.timeout 500s ${CASE:+-test.run "^$test\$"} \
  >"$STATE_DIR/franz-go.out" 2>&1 || status=$?
go tool test2json <"$STATE_DIR/franz-go.out" >"$STATE_DIR/franz-go.json"
[ $status = 0 ] || grep -v '^.\?=== ' "$STATE_DIR/franz-go.out"
python3 ../../results.py collect --client "go/franz-go $version" --gotest "$STATE_DIR/franz-go.json" |
  tee "$STATE_DIR/part.tsv" >>"$RESULTS"
python3 ../../results.py summary "$STATE_DIR/part.tsv" || true
exit $status
