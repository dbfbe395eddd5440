#!/usr/bin/env bash
# Proves that faults.sh finds what it should: builds Katomic broken in one way after another and counts what is caught.
#
#   scripts/mutants.sh [--seconds N] [--tries N] [--release] [--build|--no-build] [NAME...]
#
#   --seconds   how long each try may disturb its cluster (default 60)
#   --tries     how many seeds a mutant is given (default 3); the first that finds something ends it
#   --release   release builds; the default is the quicker debug build
#   --build     only builds; --no-build takes what was built before
#   --pace, --patience   as in faults.sh
#   NAME        only these; all of scripts/mutants/*.patch if none
#
# Each patch says on its first line what is broken, on its second which faults are to find it. A patch that no longer
# applies or does not compile is an error (exit code 2): the source has moved on, and the patch must follow.
# Sources, builds and outputs are kept out of the tree. The last line is `mutants: N of M were caught`.
set -euo pipefail
. "$(dirname "$0")/../compat-tests/lib.sh"

seconds=60 tries=3 release=() profile=debug names=() building=yes trying=yes more=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2:?}; shift ;;
    --tries) tries=${2:?}; shift ;;
    --release) release=(--release) profile=release ;;
    --build) trying= ;;
    --no-build) building= ;;
    --pace | --patience) more+=("$1" "${2:?}"); shift ;;
    -*) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    *) names+=("$1") ;;
  esac
  shift
done
if [ ${#names[@]} = 0 ]; then
  for patch in "$ROOT"/scripts/mutants/*.patch; do names+=("$(basename "$patch" .patch)"); done
fi
need cargo "the Rust toolchain (README.md)"
need git "apt-get install git"

work=${MUTANTS_DIR:-$COMPAT_CACHE/mutants}
mkdir -p "$work/bin" "$work/out"
# One copy of the sources and one target directory: dependencies are built once.
export CARGO_TARGET_DIR=${MUTANTS_TARGET:-$work/target}

# build NAME: the sources with that patch, and from them $work/bin/NAME.
build() {
  rm -rf "$work/tree"
  mkdir -p "$work/tree"
  # What is tracked, as it is in the working tree.
  (cd "$ROOT" && git ls-files -z -- Cargo.toml Cargo.lock src compat-tests/rust | tar --null -T - -cf -) | tar -xf - -C "$work/tree"
  (cd "$work/tree" && git apply --whitespace=nowarn "$ROOT/scripts/mutants/$1.patch") || return 1
  # Unpacked files are as old as the tree's: cargo must not take what the last mutant made of them for this one.
  find "$work/tree/src" -name '*.rs' -exec touch {} +
  (cd "$work/tree" && cargo build -q --locked ${release[@]+"${release[@]}"} --bin katomic) || return 1
  cp "$CARGO_TARGET_DIR/$profile/katomic" "$work/bin/$1"
}

caught=0 broken=()
for name in "${names[@]}"; do
  patch=$ROOT/scripts/mutants/$name.patch
  [ -e "$patch" ] || die "no such mutant: $name"
  if [ -n "$building" ] && ! build "$name" >"$work/out/$name.build" 2>&1; then
    echo "mutant $name: DOES NOT BUILD: $(grep -m1 -e '^error' "$work/out/$name.build" || tail -n 1 "$work/out/$name.build")"
    broken+=("$name")
    continue
  fi
  [ -n "$trying" ] || continue
  faults=$(sed -n 's/^Faults: //p' "$patch" | head -n 1)
  verdict=MISSED began=$SECONDS
  for seed in $(seq "$tries"); do
    rm -rf "$work/run"
    "$ROOT/scripts/faults.sh" --seconds "$seconds" --seed "$seed" --faults "$faults" --binary "$work/bin/$name" \
      --dir "$work/run" ${more[@]+"${more[@]}"} >"$work/out/$name.$seed" 2>&1 </dev/null || true
    # A run that only came to no end proves nothing: the machine may have been slow.
    found=$(sed -n 's/^faults: FAIL[^:]*: //p' "$work/out/$name.$seed" | sed 's/\(, \)*not finished x [0-9]*\(, \)*//')
    if [ -n "$found" ]; then
      verdict="caught with seed $seed"
      caught=$((caught + 1))
      break
    fi
  done
  echo "mutant $name: $verdict after $((SECONDS - began)) s${found:+: $found}"
  rm -rf "$work/run"
done
if [ -z "$trying" ] && [ ${#broken[@]} = 0 ]; then echo "mutants: ${#names[@]} built"; exit 0; fi
echo "mutants: $caught of ${#names[@]} were caught${broken[*]:+; do not build: ${broken[*]}}"
[ ${#broken[@]} = 0 ] || exit 2
[ "$caught" = ${#names[@]} ]
