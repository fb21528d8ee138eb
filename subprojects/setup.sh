# setup.sh -- sourced by examples/run.sh and tests/run.sh: a bare Debian machine becomes one that can build weft.
# In: apt, pip, the requirements below. Out: tools on PATH, LibTorch in .venv (unless the machine has one), $WEFT_BUILD configured
# (programs: its folder release/).
#
# Nothing is done twice: each step asks for what is missing, or compares a stamp with what it would do.
# WEFT_BUILD chooses another build folder, weft_options adds options of Meson, LIBTORCH an installed LibTorch, WEFT_TORCH another release of the wheel, CXX a
# compiler: without it programs are compiled with g++, and tests with clang++, which takes a third of g++'s time for them; see [Note: two compilers] in tests/driver.py.

weft_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
WEFT_BUILD=$(realpath -m "${WEFT_BUILD:-$weft_root/build}")
WEFT_TORCH=${WEFT_TORCH:-2.15}
WEFT_JOBS=${WEFT_JOBS:-2}  # one compiler takes up to 3 GB, by what tests are compiled together
weft_chosen_cxx=${CXX:-}
CXX=${CXX:-g++}
export WEFT_BUILD WEFT_JOBS CXX
weft_venv=$weft_root/.venv
weft_log=$WEFT_BUILD/setup.log

weft_stop() { echo "weft: $*" >&2; exit 1; }

# Runs a step silently; its output is shown when it fails.
weft_step() {
  local title=$1 from
  shift
  from=$(wc -c <"$weft_log")
  echo "weft: $title" >&2
  echo "== $title: $*" >>"$weft_log"
  "$@" >>"$weft_log" 2>&1 </dev/null && return
  tail -c +$((from + 1)) "$weft_log" | tail -n 60 >&2
  weft_stop "this failed: $title (log: $weft_log)"
}

# Runs a step silently that may fail.
weft_try() {
  echo "weft: $1" >&2
  echo "== $1: ${*:2}" >>"$weft_log"
  "${@:2}" >>"$weft_log" 2>&1 </dev/null || echo "weft: going on without it: $1 failed (log: $weft_log)" >&2
}

# Builds targets silently; the end of the output is shown when one fails.
weft_build() {
  ninja -C "$WEFT_BUILD" -j "$WEFT_JOBS" "$@" >"$WEFT_BUILD/targets.log" 2>&1 && return
  tail -n 60 "$WEFT_BUILD/targets.log" >&2
  weft_stop "does not build: $* (log: $WEFT_BUILD/targets.log)"
}

weft_has_header() {
  echo "#include <$1>" | $CXX -std=c++20 -x c++ -M - >/dev/null 2>&1
}

# --- Debian's packages -------------------------------------------------------------------------------------------
weft_packages() {
  local missing=()
  command -v $CXX >/dev/null || missing+=(g++)
  command -v readelf >/dev/null || missing+=(binutils)
  python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3 python3-venv)
  [ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
  weft_has_header gloo/config.h || missing+=(libgloo-dev)
  weft_has_header nlohmann/json.hpp || missing+=(nlohmann-json3-dev)
  weft_has_header range/v3/version.hpp || missing+=(librange-v3-dev)
  weft_has_header CLI/CLI.hpp || missing+=(libcli11-dev)
  weft_has_header openssl/evp.h || missing+=(libssl-dev)
  [ "${#missing[@]}" = 0 ] && return
  [ "$(id -u)" = 0 ] || weft_stop "please install these packages, or run this once as root: ${missing[*]}"
  command -v apt-get >/dev/null || weft_stop "no apt-get here: please install what these Debian packages hold: ${missing[*]}"
  weft_step "reading the list of Debian packages" apt-get -o Acquire::Retries=3 update
  weft_step "installing ${missing[*]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -o Acquire::Retries=3 install -y --no-install-recommends "${missing[@]}"
}

# Packages of which one that can't be had leaves something out.
weft_try_packages() {
  [ "$#" != 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
  # Runlevel 1: the packages' services are not started; a test starts its own.
  weft_try "installing $*" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 bash -c \
    'apt-get -o Acquire::Retries=3 update && apt-get -o Acquire::Retries=3 install -y --no-install-recommends "$@"' apt "$@"
}

# clang++ for the tests where no compiler was chosen; g++ where it can't be had.
weft_clang() {
  local missing=()
  [ -z "$weft_chosen_cxx" ] || return 0
  command -v clang++ >/dev/null || missing+=(clang)
  case "${weft_options[*]-}" in *b_sanitize*)
    echo 'int main() {}' | clang++ -fsanitize=address,undefined -x c++ - -o /dev/null 2>/dev/null || missing+=(libclang-rt-dev) ;;
  esac
  weft_try_packages ${missing[@]+"${missing[@]}"}
  if command -v clang++ >/dev/null; then CXX=clang++; else echo "weft: no clang++ here: tests are compiled with $CXX, which takes longer" >&2; fi
}

# The launchers that tests start ranks with, and what they build weft's consumers with. Where one can't be had, its tests are skipped, and say so.
weft_test_tools() {
  local missing=()
  command -v mpirun >/dev/null || missing+=(openmpi-bin)
  command -v slurmctld >/dev/null || missing+=(slurm-wlm)
  command -v pkg-config >/dev/null || missing+=(pkg-config)
  command -v cmake >/dev/null || missing+=(cmake)
  weft_try_packages ${missing[@]+"${missing[@]}"}
  # All that the wheel's torchrun imports beside torch; CUDA's libraries stand in by tests/programs/torchrun.py.
  if [ -x "$weft_venv/bin/python" ] && ! "$weft_venv/bin/python" -c 'import typing_extensions' 2>/dev/null; then
    weft_try "installing typing_extensions from PyPI" "$weft_venv/bin/python" -m pip install --disable-pip-version-check --no-deps typing_extensions
  fi
}

# Lays code out as .clang-format says; one version, since each lays out a little otherwise.
weft_clang_format() {
  local version=23.1.5
  [ ! -x "$weft_venv/bin/python" ] || [[ "$("$weft_venv/bin/clang-format" --version 2>/dev/null)" = *" $version"* ]] ||
    weft_try "installing clang-format from PyPI" "$weft_venv/bin/python" -m pip install --disable-pip-version-check --no-deps "clang-format==$version"
}

# TensorBoard's own reader, for the test that it reads what weft writes: TensorBoard and what that part of it imports (90 MB, 73 of them numpy).
weft_tensorboard() {
  if [ -x "$weft_venv/bin/python" ] && ! "$weft_venv/bin/python" "$weft_root/tests/programs/tensorboard_events.py" check 2>/dev/null; then
    weft_try "installing TensorBoard's reader from PyPI" "$weft_venv/bin/python" -m pip install --disable-pip-version-check --no-deps tensorboard protobuf numpy absl-py
  fi
}

# --- LibTorch, Meson, Ninja --------------------------------------------------------------------------------------
# Requirements of torch that libtorch_cpu.so is linked against, as its metadata pins them.
weft_linked_wheels() {
  "$weft_venv/bin/python" - <<'PYTHON'
import importlib.metadata, re
for line in importlib.metadata.requires("torch") or []:
    requirement = line.split(";")[0].strip()
    if "extra ==" in line:
        continue
    if re.match(r"nvidia-cuda-(runtime|cupti)\b", requirement):
        print(requirement)
    elif requirement.startswith("cuda-toolkit"):  # names the wheels as extras
        print(re.sub(r"\[.*?\]", "[cudart,cupti]", requirement))
PYTHON
}

weft_python() {
  local wanted=() flags=() stamp pip
  # What the machine has is used: a LibTorch that is named, or a torch in its Python.
  if [ -z "${LIBTORCH:-}" ] && ! python3 "$weft_root/.packaging/locate_libtorch.py" "" >/dev/null 2>&1; then
    wanted+=("torch==$WEFT_TORCH.*")
  elif [ -z "${LIBTORCH:-}" ]; then
    flags+=(--system-site-packages)
  fi
  command -v meson >/dev/null && [ "$(printf '%s\n' 1.3.0 "$(meson --version)" | sort -V | head -n 1)" = 1.3.0 ] ||
    wanted+=(meson)
  command -v ninja >/dev/null || wanted+=(ninja)
  [ "${#wanted[@]}" = 0 ] && return
  stamp="$weft_root ${wanted[*]} ${flags[*]:-} $(python3 --version)"
  pip=("$weft_venv/bin/python" -m pip install --disable-pip-version-check --no-deps)
  if [ "$(cat "$weft_venv/weft-stamp" 2>/dev/null)" != "$stamp" ]; then
    weft_step "making the Python environment .venv" python3 -m venv --clear ${flags[@]+"${flags[@]}"} "$weft_venv"
    weft_step "installing ${wanted[*]} from PyPI" "${pip[@]}" "${wanted[@]}"
    case " ${wanted[*]}" in *" torch"*)
      local linked=()
      mapfile -t linked < <(weft_linked_wheels)
      # Here with dependencies: cuda-toolkit is a list of the wheels, and those need nothing themselves.
      [ "${#linked[@]}" = 0 ] || weft_step "installing ${linked[*]} from PyPI" "$weft_venv/bin/python" -m pip install \
        --disable-pip-version-check "${linked[@]}" ;;
    esac
    printf '%s' "$stamp" >"$weft_venv/weft-stamp"
  fi
  export PATH=$weft_venv/bin:$PATH
}

# A Python that can import torch and Lightning, for the comparisons with live peers. It is large, hence asked for.
weft_peers() {
  local venv=$weft_root/.venv-peers torch stamp
  [ -n "${WEFT_PEER_PYTHON:-}" ] && return
  torch=$(python3 "$weft_root/.packaging/locate_libtorch.py" "" | sed -n 's/^version=//p')
  stamp="$weft_root torch==$torch lightning safetensors numpy"
  if [ "$(cat "$venv/weft-stamp" 2>/dev/null)" != "$stamp" ]; then
    weft_step "making the Python environment .venv-peers" python3 -m venv --clear "$venv"
    weft_step "installing torch $torch, lightning, safetensors, numpy from PyPI (several GB)" \
      "$venv/bin/python" -m pip install --disable-pip-version-check "torch==$torch" lightning safetensors numpy
    printf '%s' "$stamp" >"$venv/weft-stamp"
  fi
  export WEFT_PEER_PYTHON=$venv/bin/python
}

# --- Catch2 ------------------------------------------------------------------------------------------------------
# Meson downloads what a wrap names. Where only Debian's archive can be reached, its source package holds the same file.
weft_catch2() {
  local wrap=$weft_root/subprojects/catch2.wrap cache=$weft_root/subprojects/packagecache name hash folder
  name=$(sed -n 's/^source_filename *= *//p' "$wrap")
  hash=$(sed -n 's/^source_hash *= *//p' "$wrap")
  if [ ! -e "$cache/$name" ] && command -v apt-get >/dev/null; then
    echo "weft: fetching Catch2's source from Debian's archive" >&2
    folder=$(mktemp -d)
    if weft_debian_source catch2 trixie "$folder" >>"$weft_log" 2>&1 </dev/null; then
      for archive in "$folder"/*.orig.tar.*; do
        if [ "$(sha256sum <"$archive")" = "$hash  -" ]; then
          mkdir -p "$cache" && cp "$archive" "$cache/$name.part" && mv "$cache/$name.part" "$cache/$name"
        fi
      done
    fi
    rm -rf "$folder"
    [ -e "$cache/$name" ] || echo "weft: not there (log: $weft_log); Meson will try Catch2's own address" >&2
  fi
}

# weft_debian_source PACKAGE SUITE FOLDER: downloads a source package from the archive this machine uses, with lists of
# its own, so that the machine's apt stays as it is.
weft_debian_source() {
  local lists=$3/lists options
  mkdir -p "$lists/partial" "$3/cache/archives/partial"
  python3 - "$2" >"$3/sources.list" <<'PYTHON'
import glob, re, sys
found = set()
for name in glob.glob("/etc/apt/sources.list.d/*.sources"):
    for stanza in re.split(r"\n\s*\n", open(name).read()):
        field = {m[1].lower(): m[2].strip() for m in re.finditer(r"^([\w-]+):[ \t]*(.*)$", stanza, re.M)}
        if field.get("enabled", "yes").lower() != "no":
            found |= {(uri, field.get("signed-by", "")) for uri in field.get("uris", "").split()}
for name in ["/etc/apt/sources.list", *glob.glob("/etc/apt/sources.list.d/*.list")]:
    try:
        lines = open(name).read().splitlines()
    except OSError:
        continue
    for line in lines:
        if m := re.match(r"\s*deb(?:-src)?\s+(?:\[(.*?)\]\s*)?(\S+)", line):
            key = re.search(r"signed-by=(\S+)", m[1] or "")
            found.add((m[2], key[1] if key else ""))
for uri, key in sorted(found):
    # The main archive, whatever mirror it is taken from; security updates have another layout.
    if re.search(r"/debian/?$", uri):
        option = f"[signed-by={key}] " if key.startswith("/") else ""
        print(f"deb-src {option}{uri} {sys.argv[1]} main")
        break
PYTHON
  [ -s "$3/sources.list" ] || { echo "no Debian archive among this machine's apt sources"; return 1; }
  options=(-o Dir::Etc::sourcelist="$3/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::Lists="$lists"
    -o Dir::Cache="$3/cache" -o Acquire::Retries=2 -o Acquire::http::Timeout=30 -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update && (cd "$3" && apt-get "${options[@]}" source --download-only "$1")
}

# --- Meson -------------------------------------------------------------------------------------------------------
# weft_configure tests|programs: each has a folder of its own. Tests are compiled without -O, for most of what they compile is
# LibTorch's headers; programs are for use and for measuring.
weft_configure() {
  local stamp=$WEFT_BUILD/weft-stamp wanted setup=(meson setup "$WEFT_BUILD" "$weft_root")
  # Sources are found at configure time: a new or vanished file is part of the stamp.
  wanted="$weft_root $1 $CXX ${LIBTORCH:-} ${WEFT_TORCH} ${weft_options[*]-}
$(python3 "$weft_root/subprojects/sources.py" "$weft_root")"
  [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && [ -e "$WEFT_BUILD/build.ninja" ] && return
  if [ "$1" = tests ]; then
    weft_catch2
    setup+=(-Dbenchmarks=false)  # tests/driver.py checks that they compile
  else
    setup+=(-Dtests=false -Doptimization=2 -Db_ndebug=true)
  fi
  setup+=(${weft_options[@]+"${weft_options[@]}"})
  if [ -e "$WEFT_BUILD/build.ninja" ]; then
    # The same compiler, LibTorch and options: only files changed.
    if [ "$(head -n 1 "$stamp" 2>/dev/null)" = "$(head -n 1 <<<"$wanted")" ]; then
      setup+=(--reconfigure)
    else
      rm -rf "$WEFT_BUILD/build.ninja" "$WEFT_BUILD/meson-private" "$WEFT_BUILD/meson-info"
    fi
  fi
  weft_step "configuring" "${setup[@]}"
  printf '%s' "$wanted" >"$stamp"
}

# weft_setup tests|programs
weft_setup() {
  mkdir -p "$WEFT_BUILD"
  # Two scripts at once in one checkout: the second one waits, and then has nothing to do.
  exec 9>"$(dirname "$weft_log")/setup.lock"
  if command -v flock >/dev/null; then flock 9; fi
  : >>"$weft_log"
  weft_packages 9>&-
  weft_python 9>&-
  if [ "$1" = tests ]; then
    weft_clang 9>&-
    weft_test_tools 9>&-
    weft_tensorboard 9>&-
    weft_clang_format 9>&-
  else
    WEFT_BUILD=$WEFT_BUILD/release
  fi
  mkdir -p "$WEFT_BUILD"
  weft_configure "$1" 9>&-
  exec 9>&-
}
