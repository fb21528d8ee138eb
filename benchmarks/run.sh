#!/usr/bin/env bash
# Measures weft beside its peers in one run and prints tables: bash benchmarks/run.sh [steps|host|memory|instructions|exchanges|collectives|recompute|deferred|loader|compile] [options].
#   steps     time per step of train_lm and raw_loop beside PyTorch's DDP, FSDP and Fabric's DDP (--set ddp, sharded or hybrid; options:
#             benchmarks/steps.py --help)
#   host      what a sharded step costs the host, with collectives that return at once, as JSON lines of weft and of FSDP2 (options: --model, --steps)
#   memory    bytes that a rank holds at most beside FSDP2 (options: --models)
#   instructions  what the facade adds to a step of raw_loop, counted by valgrind (options: --models, --worlds)
#   exchanges reduce-scatter and all-gather over c10d's on Gloo, 2 and 4 ranks (options: --rounds N)
#   collectives  every collective on Gloo beside torch.distributed's, 2 ranks, and starting 4 ranks beside torchrun (options: --rounds, --sizes)
#   recompute activation checkpointing beside torch.utils.checkpoint: time and bytes after forward (options: --rounds, --steps, --models)
#   deferred  construction and setup of a billion parameters, deferred and eager in turns: bytes and seconds of one rank of 8 (options: rounds, 2)
#   loader    the data loader over torch::data's, with 0 to 2 workers (options: rounds, 25)
#   compile   what including weft costs over LibTorch alone (options: benchmarks/compile_cost.py --help)
# The peers need Python with torch and Lightning, several GB; WEFT_PEER_PYTHON names one that is there already.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../subprojects/setup.sh"

# What is measured side by side: these targets are built, and the peers' Python is there.
beside_peers() {
  weft_setup programs
  weft_peers
  weft_build "$@"
  export OMP_NUM_THREADS=1
}

what=${1:-steps}
[ "$#" = 0 ] || shift
case $what in
  steps)
    beside_peers examples/train_lm examples/raw_loop
    exec "$WEFT_PEER_PYTHON" "$weft_root/benchmarks/steps.py" --programs "$WEFT_BUILD/examples" "$@"
    ;;
  host)
    beside_peers benchmarks/host_time
    "$WEFT_BUILD/benchmarks/host_time" "$@"
    exec "$WEFT_PEER_PYTHON" "$weft_root/benchmarks/peers/peer_host.py" --strategies fsdp2 --worlds 8 4096 "$@"
    ;;
  memory)
    beside_peers examples/train_lm
    exec python3 "$weft_root/benchmarks/memory.py" --programs "$WEFT_BUILD/examples" --python "$WEFT_PEER_PYTHON" "$@"
    ;;
  instructions)
    weft_setup programs
    weft_build examples/train_lm examples/raw_loop
    exec python3 "$weft_root/benchmarks/instructions.py" --programs "$WEFT_BUILD/examples" "$@"
    ;;
  compile)
    weft_setup programs
    exec python3 "$weft_root/benchmarks/compile_cost.py" --build "$WEFT_BUILD" "$@"
    ;;
  loader)
    weft_setup programs
    weft_build benchmarks/loader
    export OMP_NUM_THREADS=1
    exec "$WEFT_BUILD/benchmarks/loader" "$@"
    ;;
  exchanges)
    weft_setup programs
    weft_build benchmarks/exchanges
    export OMP_NUM_THREADS=1
    exec "$WEFT_BUILD/benchmarks/exchanges" "$@"
    ;;
  collectives)
    beside_peers benchmarks/collectives
    exec python3 "$weft_root/benchmarks/collectives.py" --program "$WEFT_BUILD/benchmarks/collectives" --python "$WEFT_PEER_PYTHON" "$@"
    ;;
  recompute)
    beside_peers benchmarks/recompute
    exec python3 "$weft_root/benchmarks/recompute.py" --program "$WEFT_BUILD/benchmarks/recompute" --python "$WEFT_PEER_PYTHON" "$@"
    ;;
  deferred)
    weft_setup programs
    weft_build examples/04_deferred_init
    export OMP_NUM_THREADS=1
    for ((round = 0; round < ${1:-2}; ++round)); do
      for how in --deferred --eager; do "$WEFT_BUILD/examples/04_deferred_init" --whole "$how" | grep built; done
    done | awk '{ print; seconds = $(NF - 1); most = $8 }
      $1 == "deferred" { deferred_seconds = seconds; deferred_most = most }
      $1 == "eager" { printf "deferred over eager: time %.2f (goal 1.1), bytes at most %.2f\n", deferred_seconds / seconds, deferred_most / most }'
    ;;
  *) weft_stop "unknown benchmark $what: write steps, host, memory, instructions, exchanges, collectives, recompute, deferred or compile" ;;
esac
