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
# What is run: weft's strategy, its world, further options; the peers beside it; and pairs: what, over what, goal (None: none was
# set), models.
SETS = {
    "ddp": {
        "weft": {"weft-single": ("single", 1, ""), "weft-ddp": ("ddp", 2, "")},
        "peers": ["single", "ddp@2", "fabric-ddp@2"],
        "models": ["tiny", "deep", "small"],
        "pairs": [
            ("weft-single", "single", 0.85, ("tiny", "deep")),
            ("weft-single", "single", 1.05, ("small",)),
            ("weft-ddp", "ddp@2", 0.80, ("tiny",)),
            ("weft-ddp", "ddp@2", 0.90, ("deep",)),
            ("weft-ddp", "ddp@2", 1.05, ("small",)),
            ("weft-ddp", "fabric-ddp@2", None, ("tiny", "deep", "small")),
        ],
    },
    "sharded": {
        "weft": {"weft-fsdp": ("fsdp", 2, ""), "weft-shard-grad-op": ("fsdp-shard-grad-op", 2, "")},
        "peers": ["fsdp2@2", "fsdp1@2", "fsdp2-shard-grad-op@2"],
        "models": ["tiny", "deep", "small", "medium"],
        "pairs": [
            ("weft-fsdp", "fsdp2@2", 0.40, ("tiny",)),
            ("weft-fsdp", "fsdp2@2", 0.35, ("deep",)),
            ("weft-fsdp", "fsdp2@2", 0.70, ("small",)),
            ("weft-fsdp", "fsdp2@2", 0.80, ("medium",)),
            ("weft-fsdp", "fsdp1@2", None, ("tiny", "deep", "small", "medium")),
            ("weft-shard-grad-op", "fsdp2-shard-grad-op@2", 0.80, ("tiny", "deep", "small", "medium")),
        ],
    },
    "hybrid": {
        "weft": {"weft-hsdp": ("hsdp", 4, "--replicate 2")},
        "peers": ["hsdp@4"],
        "models": ["tiny", "deep", "small"],
        "pairs": [("weft-hsdp", "hsdp@4", 0.80, ("tiny", "deep", "small"))],
    },
}
FACADE_STEPS = {"tiny": 500, "deep": 60, "small": 40}  # a second or more each: shorter runs measure the processor's moods


def program(a, name, world, model, steps, warmup):
    common = f"--model {model} --steps {steps} --warmup {warmup} --world {world}"
    if name == "raw":
        return f"{a.programs}/raw_loop {common}"
    return f"{a.programs}/train_lm --strategy {name} --jsonl --audit none --no-norm {common}"


def facade_rows(model, a):
    """train_lm over the same loop by hand, both in C++: no peer in between, more steps, alternating."""
    rows = []
    for kind, world in (("single", 1), ("ddp", 2)):
        least, median = [], []
        for r in range(a.facade_rounds):
            seen = {}
            for name in (kind, "raw") if r % 2 else ("raw", kind):
                out = subprocess.run(program(a, name, world, model, FACADE_STEPS[model], 10).split(), stdout=subprocess.PIPE, text=True, check=True).stdout
                seen[name] = json.loads([line for line in out.splitlines() if '"result"' in line][-1])
            least.append(seen[kind]["min_step_s"] / seen["raw"]["min_step_s"])
            median.append(seen[kind]["median_step_s"] / seen["raw"]["median_step_s"])
        rows.append(row(model, f"weft-{kind} over raw-{kind}", least, median, 1.02, None))
    return rows


def row(model, what, least, median, goal, ms):
    least, median = sorted(least), sorted(median)
    return (f"| {model} | {what} | {statistics.median(least):.2f} ({least[0]:.2f} to {least[-1]:.2f}) | "
            f"{statistics.median(median):.2f} ({median[0]:.2f} to {median[-1]:.2f}) | {'' if goal is None else f'{goal:.2f}'} | {'' if ms is None else f'{ms:.2f}'} |")


def rounds_of(model, a):
    chosen = SETS[a.set]
    externals = {name: program(a, strategy, world, model, a.steps, a.warmup) + " " + more for name, (strategy, world, more) in chosen["weft"].items()}
    command = [sys.executable, str(HERE / "peers" / "peer_bench.py"), "--cases", *chosen["peers"], "--model", model, "--rounds", str(a.rounds),
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
    p.add_argument("--set", choices=SETS, default="ddp")
    p.add_argument("--models", nargs="+", help="default: the set's")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--facade-rounds", type=int, default=7, help="rounds of train_lm beside raw_loop")
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--warmup", type=int, default=10, help="steps of each case left out")
    p.add_argument("--budget", type=float, default=300.0, help="seconds per model; no new round starts past it")
    a = p.parse_args()
    a.models = a.models or SETS[a.set]["models"]
    rows, versions = [], {}
    if a.set == "ddp":
        for model in a.models:
            rows += facade_rows(model, a)
    for model in a.models if a.rounds else ():
        rounds, versions = rounds_of(model, a)
        for what, over, goal, models in SETS[a.set]["pairs"]:
            if model not in models:
                continue
            rows.append(row(model, f"{what} over {over}", [r["min_s"][what] / r["min_s"][over] for r in rounds],
                            [r["median_s"][what] / r["median_s"][over] for r in rounds], goal, 1000 * min(r["min_s"][what] for r in rounds)))
    print(f"{datetime.date.today()}, {cpu_name()}, {os.cpu_count()} cores, torch {versions.get('torch')}, lightning {versions.get('lightning')}; "
          f"{a.rounds} rounds of {a.steps} steps, the first {a.warmup} left out{f' (over raw: {a.facade_rounds} rounds of {FACADE_STEPS}, 10 left out)' if a.set == 'ddp' else ''}; "
          "one thread a process, fp32, SGD.\n")
    print("| model | ratio | fastest step | median step | goal | weft's fastest, ms |\n|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
