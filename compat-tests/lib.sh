# Sourced by run.sh, broker.sh, every client's run.sh and scripts/crash.sh: what they share.

COMPAT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$COMPAT/.." && pwd)
# Everything that is built or installed goes here, never into the tree.
COMPAT_CACHE=${COMPAT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/katomic-compat}

die() { echo "$(basename "$0"): $*" >&2; exit 1; }

# need TOOL HINT: a missing tool is an error that says how to get it.
need() { command -v "$1" >/dev/null || die "$1 is missing; install it with: $2"; }

need_java() {
  need java "apt-get install openjdk-17-jdk-headless"
  need mvn "apt-get install maven"
}

# A Python with the packages of python/requirements.txt; prints its path.
python_venv() {
  need python3 "apt-get install python3 python3-venv"
  local venv=$COMPAT_CACHE/venv wanted=$COMPAT/python/requirements.txt
  if ! cmp -s "$wanted" "$venv/installed.txt"; then
    python3 -m venv "$venv" >&2 || die "python3 -m venv failed; install it with: apt-get install python3-venv"
    "$venv/bin/pip" install -q -r "$wanted" >&2 || die "pip install -r $wanted failed"
    cp "$wanted" "$venv/installed.txt"
  fi
  echo "$venv/bin/python"
}

# go_suite NAME VERSION: builds the tests of the current folder, runs them, and reports. What every Go suite does.
go_suite() {
  need go "apt-get install golang (1.26 or later)"
  local binary=$COMPAT_CACHE/$1.test out=$STATE_DIR/$1 status=0 only=
  # txn_commit is TestTxnCommit here.
  [ -z "${CASE:-}" ] || only="^Test$(sed -E 's/(^|_)([a-z])/\U\2/g' <<<"$CASE")\$"
  [ -z "${FAILOVER:-}" ] || only='^Test(Leader|GroupSurvives|StaticMembers)'
  mkdir -p "$COMPAT_CACHE"
  go test -mod=readonly -c -o "$binary" . || die "go test -c failed"
  "$binary" -test.v=test2json -test.timeout 900s ${only:+-test.run "$only"} >"$out.out" 2>&1 || status=$?
  go tool test2json <"$out.out" >"$out.json"
  [ $status = 0 ] || grep -v '^.\?=== ' "$out.out"
  report "go/$1 $2" --gotest "$out.json"
  return $status
}

# pytest_suite NAME MODULE: runs the tests of the current folder, and reports. What every Python suite does.
pytest_suite() {
  local python out=$STATE_DIR/$1.xml status=0 version
  python=$(python_venv)
  version=$("$python" -c "import $2; print($2.__version__)")
  timeout -k 10 900 "$python" -B -m pytest -p no:cacheprovider -q --junitxml="$out" ${CASE:+-k "test_$CASE"} \
    "$([ -n "${FAILOVER:-}" ] && echo test_failover.py || echo .)" || status=$?
  [ -e "$out" ] || die "pytest wrote no report"
  report "python/$1 $version" --junit "$out"
  return $status
}

# report CLIENT (--junit FILE... | --gotest FILE): adds what a suite's own runner wrote to the results.
report() {
  python3 "$COMPAT/results.py" collect --client "$@" | tee "$STATE_DIR/part.tsv" >>"$RESULTS"
  python3 "$COMPAT/results.py" summary "$STATE_DIR/part.tsv" || true
}

# free_port [COUNT]: the first of COUNT ports of the loopback address that are free, as are those 1000 above (Kafka's
# controllers). They lie below the range from which the kernel takes the ports of outgoing connections. What one run has
# been given is noted in STATE_DIR: it may not be bound yet.
free_port() {
  python3 - "${1:-1}" "${STATE_DIR:+$STATE_DIR/ports-taken}" <<'END'
import contextlib, os, random, socket, sys
count, noted = int(sys.argv[1]), sys.argv[2] or os.devnull
taken = {int(line) for line in open(noted)} if os.path.exists(noted) else set()
for _ in range(1000):
    port = random.randrange(20000, 31000)
    wanted = {*range(port, port + count), *range(port + 1000, port + 1000 + count)}
    if wanted & taken:
        continue
    with contextlib.ExitStack() as held:
        try:
            for at in wanted:
                held.enter_context(socket.socket()).bind(("127.0.0.1", at))
        except OSError:
            continue
    with open(noted, "a") as out:
        out.writelines(f"{at}\n" for at in wanted)
    print(port)
    break
else:
    raise SystemExit("no free port")
END
}

# process_alive PID WORD: whether PID runs and has WORD in its command line. A number used again is not taken
# for ours, nor is a zombie taken for a process.
process_alive() {
  # No -q: it would end early, the writer would die of SIGPIPE, and pipefail would turn the yes into a no.
  [ -n "$1" ] && { tr '\0' '\n' <"/proc/$1/cmdline" | grep -F -- "$2"; } >/dev/null 2>&1
}

# process_gone PID: all its threads have ended, so that its sockets and locks are released too. (The command
# line is empty well before that, and a leader can be a zombie before its threads are.)
process_gone() {
  ! { cat "/proc/$1"/task/*/stat 2>/dev/null || true; } | sed 's/^.*) //' | grep -v '^[ZX]' >/dev/null
}

# end_process PID WORD [SIGNAL]: ends it, by KILL if it has not gone after 20 s; returns once it is gone.
end_process() {
  process_alive "$1" "$2" || return 0
  kill -"${3:-TERM}" "$1" 2>/dev/null || true
  local n
  for n in $(seq 800); do
    ! process_gone "$1" || return 0
    [ "$n" != 400 ] || kill -KILL "$1" 2>/dev/null || true
    sleep 0.05
  done
  die "process $1 does not end"
}

# Where Apache Kafka's launcher is; only for --target kafka.
kafka_peer() {
  local dir=${KAFKA_PEER:-$ROOT/../shared/peers/kafka}
  [ -x "$dir/up" ] ||
    die "no Apache Kafka launcher at $dir: set KAFKA_PEER to the folder that holds its 'up' and 'down' scripts"
  (cd "$dir" && pwd)
}

# The broker under test; built unless KATOMIC_BIN names one.
katomic_bin() {
  if [ -n "${KATOMIC_BIN:-}" ]; then
    [ -x "$KATOMIC_BIN" ] || die "KATOMIC_BIN=$KATOMIC_BIN is not a program"
    (cd "$(dirname "$KATOMIC_BIN")" && echo "$PWD/$(basename "$KATOMIC_BIN")")
  else
    need cargo "the Rust toolchain (README.md)"
    (cd "$ROOT" && cargo build --locked --release --bin katomic >&2) || die "cargo build failed"
    echo "${CARGO_TARGET_DIR:-$ROOT/target}/release/katomic"
  fi
}

# set_up_target TARGET STATE_DIR: finds the broker's program and writes what broker.sh needs to know.
set_up_target() {
  need python3 "apt-get install python3"
  local program
  case $1 in
    kafka) need_java; program=$(kafka_peer) || exit 1 ;;
    katomic) need curl "apt-get install curl"; program=$(katomic_bin) || exit 1 ;;
    *) die "no such target: $1 (katomic or kafka)" ;;
  esac
  printf 'TARGET=%q\nPROGRAM=%q\n' "$1" "$program" >"$2/target"
}

# set_up_broker NAME STATE_DIR [NODES [FIRST_ADVERTISED]]: picks the ports of a cluster. Node i listens on the i-th port from
# the first, and is advertised there, or on the i-th from FIRST_ADVERTISED.
set_up_broker() {
  mkdir -p "$2/$1"
  local count=${3:-1} port rpc admin
  port=$(free_port "$count") rpc=$(free_port "$count") admin=$(free_port "$count")
  up_from() { seq -s' ' "$1" $(($1 + count - 1)); }
  printf 'NODES="%s"\nPORT=(%s)\nADVERTISED=(%s)\nRPC=(%s)\nADMIN=(%s)\n' "$(seq -s' ' "$count")" \
    "$(up_from "$port")" "$(up_from "${4:-$port}")" "$(up_from "$rpc")" "$(up_from "$admin")" >"$2/$1/ports"
}

# addresses FIRST COUNT: the addresses of COUNT ports, for clients.
addresses() {
  local port list=
  for port in $(seq "$1" $(($1 + $2 - 1))); do list+=${list:+,}127.0.0.1:$port; done
  echo "$list"
}
