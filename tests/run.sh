#!/usr/bin/env bash
# Sets up, builds everything and runs every test: bash tests/run.sh [--peers] [filter].
# filter: part of a test's name, or a Catch2 pattern such as "[unit]"; --peers compares with live Python peers, too.
# The last line is `N passed, N failed`, with `, N skipped` when there were some.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../subprojects/setup.sh"

peers=false filter=
for argument in "$@"; do
  case $argument in
    --peers) peers=true ;;
    --help | -h) sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --*) weft_stop "unknown option $argument: bash tests/run.sh [--peers] [filter]" ;;
    *) filter=$argument ;;
  esac
done

weft_setup tests
[ "$peers" = false ] || weft_peers
export OMP_NUM_THREADS=1  # see [Note: one thread before the fork] in examples/run.sh
exec python3 "$weft_root/tests/driver.py" --build "$WEFT_BUILD" --jobs "$WEFT_JOBS" "$filter"
