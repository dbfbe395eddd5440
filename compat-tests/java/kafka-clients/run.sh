#!/usr/bin/env bash
# The Java suite, once for each version of the client; called by ../../run.sh, which starts the brokers and
# sets the environment. KAFKA_CLIENTS="4.4" or "3.7" picks one.
set -euo pipefail
. "$(dirname "$0")/../../lib.sh"
cd "$(dirname "$0")"
: "${RESULTS:?start it with compat-tests/run.sh java/kafka-clients}"
need_java

status=0
for profile in ${KAFKA_CLIENTS:-4.4 3.7}; do
  build=$COMPAT_CACHE/java-kafka-clients-$profile
  rm -rf "$build/surefire-reports"
  # txn_commit is txnCommit here.
  method=$(sed -E 's/_([a-z])/\U\1/g' <<<"${CASE:-}")
  only=${method:+*#$method}
  [ -z "${FAILOVER:-}" ] || only=FailoverTest
  mvn -q -B -P "$profile" -Dbuild.dir="$build" ${only:+-Dtest="$only"} test || status=$?
  compgen -G "$build/surefire-reports/TEST-*.xml" >/dev/null || die "surefire wrote no report for $profile"
  version=$(sed -n "/<id>$profile</,/kafka.version/s/.*<kafka.version>\(.*\)<\/kafka.version>.*/\1/p" pom.xml)
  python3 ../../results.py collect --client "java/kafka-clients $version" --junit "$build"/surefire-reports/TEST-*.xml |
    tee "$STATE_DIR/part.tsv" >>"$RESULTS"
  python3 ../../results.py summary "$STATE_DIR/part.tsv" || true
done
exit $status
