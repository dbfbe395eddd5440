#!/usr/bin/env bash
# The franz-go suite; called by ../../run.sh, which starts the brokers and sets the environment.
set -euo pipefail
. "$(dirname "$0")/../../lib.sh"
cd "$(dirname "$0")"
: "${RESULTS:?start it with compat-tests/run.sh go/franz-go}"
go_suite franz-go "$(sed -n 's/.*twmb\/franz-go v\([0-9.]*\)$/\1/p' go.mod)"
