#!/usr/bin/env python3
"""Instructions per step of train_lm beside raw_loop, counted by valgrind: what the facade adds, free of the machine's moods.

A step is a twentieth of the difference of two runs, so set-up is not in it. Kernels are the portable ones (valgrind knows no AVX-512),
which are longer than the fast ones: ratios are nearer to 1 than with those, the difference in instructions is the facade's own."""
import argparse
import datetime
import os
import pathlib
import re
import shutil
import subprocess

STEPS = (5, 25)
PORTABLE = {"ATEN_CPU_CAPABILITY": "default", "DNNL_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "OMP_NUM_THREADS": "1"}


def instructions(command):
    """Of all processes of the command."""
    counted = subprocess.run(["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", "--trace-children=yes", *command],
                             capture_output=True, text=True, env={**os.environ, **PORTABLE})
    counts = re.findall(r"I +refs: +([\d,]+)", counted.stderr)
    if counted.returncode or not counts:
        raise SystemExit(f"{' '.join(command)} failed:\n{counted.stdout[-1000:]}{counted.stderr[-1000:]}")
    return sum(int(count.replace(",", "")) for count in counts)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--programs", required=True, help="folder with train_lm and raw_loop")
    p.add_argument("--models", nargs="*", default=["tiny", "deep"])
    p.add_argument("--worlds", nargs="*", type=int, default=[1])
    a = p.parse_args()
    if not shutil.which("valgrind"):
        raise SystemExit("this benchmark needs valgrind: on Debian apt-get install valgrind")
    programs = pathlib.Path(a.programs)
    print(f"{datetime.date.today()}, instructions per step, millions, all processes together.\n")
    print("| model | processes | train_lm | raw_loop | ratio |\n|---|---|---|---|---|")
    for model in a.models:
        for world in a.worlds:
            weft = [str(programs / "train_lm"), "--strategy", "ddp" if world > 1 else "single", "--jsonl", "--audit", "none", "--no-norm"]
            per_step = []
            for program in (weft, [str(programs / "raw_loop")]):
                few, many = (instructions([*program, "--model", model, "--world", str(world), "--steps", str(steps)]) for steps in STEPS)
                per_step.append((many - few) / (STEPS[1] - STEPS[0]) / 1e6)
            print(f"| {model} | {world} | {per_step[0]:.2f} | {per_step[1]:.2f} | {per_step[0] / per_step[1]:.4f} |", flush=True)


if __name__ == "__main__":
    main()
