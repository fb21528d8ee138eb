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
]
FACADE_STEPS = {"tiny": 500, "deep": 60, "small": 40}  # a second or more each: shorter runs measure the processor's moods


def program(a, name, world, model, steps, warmup):
    common = f"--model {model} --steps {steps} --warmup {warmup} --world {world}"
    if name == "raw":
        return f"{a.programs}/raw_loop {common}"
    return f"{a.programs}/train_lm --strategy {'single' if world == 1 else 'ddp'} --jsonl --audit none --no-norm {common}"


def facade_rows(model, a):
    """train_lm over the same loop by hand, both in C++: no peer in between, more steps, alternating."""
    rows = []
    for kind, world in (("single", 1), ("ddp", 2)):
        least, median = [], []
        for r in range(a.facade_rounds):
            seen = {}
            for name in ("weft", "raw") if r % 2 else ("raw", "weft"):
                out = subprocess.run(program(a, name, world, model, FACADE_STEPS[model], 10).split(), stdout=subprocess.PIPE, text=True, check=True).stdout
                seen[name] = json.loads([line for line in out.splitlines() if '"result"' in line][-1])
            least.append(seen["weft"]["min_step_s"] / seen["raw"]["min_step_s"])
            median.append(seen["weft"]["median_step_s"] / seen["raw"]["median_step_s"])
        rows.append(row(model, f"weft-{kind} over raw-{kind}", least, median, 1.02, None))
    return rows


def row(model, what, least, median, goal, ms):
    least, median = sorted(least), sorted(median)
    return (f"| {model} | {what} | {statistics.median(least):.2f} ({least[0]:.2f} to {least[-1]:.2f}) | "
            f"{statistics.median(median):.2f} ({median[0]:.2f} to {median[-1]:.2f}) | {'' if goal is None else f'{goal:.2f}'} | {'' if ms is None else f'{ms:.2f}'} |")


def rounds_of(model, a):
    externals = {f"weft-{kind}": program(a, "weft", world, model, a.steps, a.warmup) for kind, world in (("single", 1), ("ddp", 2))}
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
    p.add_argument("--facade-rounds", type=int, default=7, help="rounds of train_lm beside raw_loop")
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--warmup", type=int, default=10, help="steps of each case left out")
    p.add_argument("--budget", type=float, default=300.0, help="seconds per model; no new round starts past it")
    a = p.parse_args()
    rows, versions = [], {}
    for model in a.models:
        rows += facade_rows(model, a)
    for model in a.models if a.rounds else ():
        rounds, versions = rounds_of(model, a)
        for what, over, goal, models in PAIRS:
            if model not in models:
                continue
            rows.append(row(model, f"{what} over {over}", [r["min_s"][what] / r["min_s"][over] for r in rounds],
                            [r["median_s"][what] / r["median_s"][over] for r in rounds], goal, 1000 * min(r["min_s"][what] for r in rounds)))
    print(f"{datetime.date.today()}, {cpu_name()}, {os.cpu_count()} cores, torch {versions.get('torch')}, lightning {versions.get('lightning')}; "
          f"{a.rounds} rounds of {a.steps} steps, the first {a.warmup} left out (over raw: {a.facade_rounds} rounds of {FACADE_STEPS}, 10 left out); "
          "one thread a process, fp32, SGD.\n")
    print("| model | ratio | fastest step | median step | goal | weft's fastest, ms |\n|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
