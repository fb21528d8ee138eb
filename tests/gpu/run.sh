#!/usr/bin/env bash
# Runs the checks that need a GPU: bash tests/gpu/run.sh [--build].
# Builds tests/gpu/nccl.cpp by hand, without Meson and without network, on the torch of python3 (2.11 or newer, with its CUDA wheels;
# LIBTORCH names another) and Debian's libgloo-dev, into build/gpu; ends within 8 minutes. Worlds 1 to 4, as far as there are GPUs.
# Exit code 77 and a line that says why without a GPU, or without CUDA's and NCCL's wheels; --build only builds, which needs no GPU.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CXX=${CXX:-g++}
stop() { echo "weft: $*" >&2; exit 1; }

[ "${1:-}" = --build ] || compgen -G '/dev/nvidia[0-9]*' >/dev/null || { echo "skipped: this machine shows no CUDA device"; exit 77; }
[ -z "${1:-}" ] || [ "$1" = --build ] || stop "unknown option $1: bash tests/gpu/run.sh [--build]"

declare -A found
located=$(python3 "$root/.packaging/locate_libtorch.py" "" --require-cuda 2>&1) || { echo "skipped: ${located#weft: }"; exit 77; }
while IFS='=' read -r key value; do found[$key]=$value; done <<<"$located"
echo '#include <gloo/config.h>' | $CXX -x c++ -M - >/dev/null 2>&1 || stop "Gloo's headers are missing: on Debian they are in libgloo-dev (CPLUS_INCLUDE_PATH may name a copy)"

compile=(-std=c++20 -O1 -pthread -DUSE_C10D_GLOO=1 -DUSE_C10D_NCCL=1 "-D_GLIBCXX_USE_CXX11_ABI=${found[string_abi]}" -Wall -Wextra "-I$root/include")
link=(-pthread -Wl,--no-as-needed)
IFS=';' read -ra folders <<<"${found[include]}"
for folder in "${folders[@]}"; do compile+=("-isystem$folder"); done
IFS=';' read -ra folders <<<"${found[lib]}"
for folder in "${folders[@]}"; do link+=("-L$folder" "-Wl,-rpath,$folder" "-Wl,-rpath-link,$folder"); done
IFS=';' read -ra libraries <<<"${found[cuda_link]}"
link+=(-ltorch_cpu -lc10 -ltorch_cuda -lc10_cuda "${libraries[@]}")

mkdir -p "$root/build/gpu"
started=$SECONDS
echo "weft: building for torch ${found[version]}" >&2
timeout 240 $CXX "${compile[@]}" "$root/tests/gpu/nccl.cpp" -o "$root/build/gpu/nccl" "${link[@]}" || stop "tests/gpu/nccl.cpp does not build"
echo "weft: built in $((SECONDS - started)) s" >&2
[ "${1:-}" = --build ] && exit 0
export OMP_NUM_THREADS=1  # ranks are forked, which a process with several threads refuses
exec timeout 220 "$root/build/gpu/nccl"
