#!/usr/bin/env bash
# Sets up, builds everything and runs every test: bash tests/run.sh [--peers] [--sanitize] [filter].
# filter: part of a test's name, or a Catch2 pattern such as "[unit]"; --peers compares with live Python peers, too; --sanitize
# runs test cases and examples, built in build/sanitize, under the address, leak and undefined-behaviour sanitizers. The last line is `N passed, N failed`, with `, N skipped` when there were some.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../subprojects/setup.sh"

peers=false sanitize=false filter=
for argument in "$@"; do
  case $argument in
    --peers) peers=true ;;
    --sanitize) sanitize=true ;;
    --help | -h) sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --*) weft_stop "unknown option $argument: bash tests/run.sh [--peers] [--sanitize] [filter]" ;;
    *) filter=$argument ;;
  esac
done

only=()
if [ "$sanitize" = true ]; then
  mkdir -p "$WEFT_BUILD"
  WEFT_BUILD=$WEFT_BUILD/sanitize
  # vptr asks for the type of objects of LibTorch's, which hides some of its type infos.
  weft_options=(-Db_sanitize=address,undefined -Db_lundef=false "-Dcpp_args=-fno-sanitize=vptr -fno-sanitize-recover=undefined -fno-omit-frame-pointer")
  export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=0:handle_abort=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
  export UBSAN_OPTIONS=print_stacktrace=1
  only=(--programs-only)  # a sanitizer has nothing to say on what only compiles
fi

weft_setup tests
[ "$peers" = false ] || weft_peers
export OMP_NUM_THREADS=1  # see [Note: one thread before the fork] in examples/run.sh
exec python3 "$weft_root/tests/driver.py" --build "$WEFT_BUILD" --jobs "$WEFT_JOBS" ${only[@]+"${only[@]}"} "$filter"
