#!/usr/bin/env bash
# The kafkajs suite; called by ../../run.sh, which starts the brokers and sets the environment.
set -euo pipefail
. "$(dirname "$0")/../../lib.sh"
cd "$(dirname "$0")"
: "${RESULTS:?start it with compat-tests/run.sh node/kafkajs}"
need node "your Node.js, 20 or later"
need npm "it comes with Node.js"

# Packages are installed beside copies of the tests, outside the tree: that is where Node looks for them.
build=$COMPAT_CACHE/kafkajs
mkdir -p "$build"
if ! cmp -s package-lock.json "$build/installed.json"; then
  cp package.json package-lock.json "$build/"
  (cd "$build" && npm ci --no-audit --no-fund --ignore-scripts >&2) || die "npm ci failed"
  cp package-lock.json "$build/installed.json"
fi
rm -f "$build"/*.js
cp ./*.js "$build/"
report=$STATE_DIR/kafkajs.xml
version=$(sed -n 's/.*"kafkajs": "\(.*\)",/\1/p' package.json)
status=0
(cd "$build" && KAFKAJS_NO_PARTITIONER_WARNING=1 timeout -k 10 900 node --test --test-concurrency=1 \
  ${CASE:+--test-name-pattern="^$CASE\$"} --test-reporter=spec --test-reporter-destination=stdout \
  --test-reporter=junit --test-reporter-destination="$report" ./${FAILOVER:+failover}*.test.js) || status=$?
[ -s "$report" ] || die "node --test wrote no report"
report "node/kafkajs $version" --junit "$report"
exit $status
