#!/usr/bin/env bash
# The confluent-kafka suite; called by ../../run.sh, which starts the brokers and sets the environment.
set -euo pipefail
. "$(dirname "$0")/../../lib.sh"
cd "$(dirname "$0")"
: "${RESULTS:?start it with compat-tests/run.sh python/confluent-kafka}"
pytest_suite confluent-kafka confluent_kafka
