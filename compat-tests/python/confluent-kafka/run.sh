#!/usr/bin/env bash
# The confluent-kafka suite; called by ../../run.sh, which starts the brokers and sets the environment.
set -euo pipefail
. "$(dirname "$0")/../../lib.sh"
cd "$(dirname "$0")"
: "${RESULTS:?start it with compat-tests/run.sh python/confluent-kafka}"

python=$(python_venv)
report=$STATE_DIR/confluent-kafka.xml
client="python/confluent-kafka $("$python" -c 'import confluent_kafka as c; print(c.__version__)')"
status=0
"$python" -B -m pytest -p no:cacheprovider -q --junitxml="$report" ${CASE:+-k "test_$CASE"} . || status=$?
[ -e "$report" ] || die "pytest wrote no report"
"$python" ../../results.py collect --client "$client" --junit "$report" | tee "$STATE_DIR/part.tsv" >>"$RESULTS"
"$python" ../../results.py summary "$STATE_DIR/part.tsv" || true
exit $status
