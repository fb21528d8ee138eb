#!/usr/bin/env python3
"""Time per step, weft beside its peers: every round runs each case once, so that a slow moment of the machine hits all.

Prints one markdown table: for each pair the ratio of the fastest steps inside a round (median over rounds, and its
range), the same for median steps, and weft's own fastest step. Built on peers/peer_bench.py, whose rounds it reads."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PAIRS = [  # what, over what, goal (None: none was set), models
    ("weft-single", "single", 0.85, ("tiny", "deep")),
    ("weft-single", "single", 1.05, ("small",)),
    ("weft-ddp", "ddp@2", 0.80, ("tiny",)),
    ("weft-ddp", "ddp@2", 0.90, ("deep",)),
    ("weft-ddp", "ddp@2", 1.05, ("small",)),
    ("weft-ddp", "fabric-ddp@2", None, ("tiny", "deep", "small")),
    ("weft-single", "raw-single", 1.02, ("tiny", "deep", "small")),
    ("weft-ddp", "raw-ddp", 1.02, ("tiny", "deep", "small")),
]


def rounds_of(model, a):
    common = f"--model {model} --steps {a.steps} --warmup {a.warmup}"
    externals = {}
    for name, world in (("single", 1), ("ddp", 2)):
        externals[f"weft-{name}"] = f"{a.programs}/train_lm --strategy {name} --world {world} --jsonl --audit none --no-norm {common}"
        externals[f"raw-{name}"] = f"{a.programs}/raw_loop --world {world} {common}"
    command = [sys.executable, str(HERE / "peers" / "peer_bench.py"), "--cases", "single", "ddp@2", "fabric-ddp@2", "--model", model, "--rounds", str(a.rounds),
               "--steps", str(a.steps), "--warmup", str(a.warmup), "--budget", str(a.budget)]
    for name, external in externals.items():
        command += ["--external", f"{name}={external}"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return [line for line in lines if line["type"] == "round"], next(line for line in lines if line["type"] == "config")["versions"]


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--programs", required=True, help="folder with train_lm and raw_loop")
    p.add_argument("--models", nargs="+", default=["tiny", "deep", "small"])
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--warmup", type=int, default=10, help="steps of each case left out")
    p.add_argument("--budget", type=float, default=300.0, help="seconds per model; no new round starts past it")
    a = p.parse_args()
    rows, versions = [], {}
    for model in a.models:
        rounds, versions = rounds_of(model, a)
        for what, over, goal, models in PAIRS:
            if model not in models:
                continue
            least = sorted(r["min_s"][what] / r["min_s"][over] for r in rounds)
            median = sorted(r["median_s"][what] / r["median_s"][over] for r in rounds)
            rows.append(f"| {model} | {what} over {over} | {statistics.median(least):.2f} ({least[0]:.2f} to {least[-1]:.2f}) | "
                        f"{statistics.median(median):.2f} ({median[0]:.2f} to {median[-1]:.2f}) | {'' if goal is None else f'{goal:.2f}'} | "
                        f"{1000 * min(r['min_s'][what] for r in rounds):.2f} |")
    print(f"{datetime.date.today()}, {cpu_name()}, {os.cpu_count()} cores, torch {versions.get('torch')}, lightning {versions.get('lightning')}; "
          f"{a.rounds} rounds of {a.steps} steps, the first {a.warmup} left out; one thread a process, fp32, SGD.\n")
    print("| model | ratio | fastest step | median step | goal | weft's fastest, ms |\n|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
