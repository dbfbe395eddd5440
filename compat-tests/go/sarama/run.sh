#!/usr/bin/env bash
# The sarama suite; called by ../../run.sh, which starts the brokers and sets the environment.
set -euo pipefail
. "$(dirname "$0")/../../lib.sh"
cd "$(dirname "$0")"
: "${RESULTS:?start it with compat-tests/run.sh go/sarama}"
go_suite sarama "$(sed -n 's/.*IBM\/sarama v\([0-9.]*\)$/\1/p' go.mod)"
