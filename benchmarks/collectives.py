#!/usr/bin/env python3
"""Every collective on Gloo beside torch.distributed's, and starting 4 ranks beside torchrun, in rounds that take turns.

Prints two markdown tables: ratios of the fastest and of the median calls (the slowest rank counts), medians over rounds and their range;
seconds from starting a program to the end of its first collective."""
import argparse
import datetime
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
FIRST = """import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0: print("first collective", flush=True)
dist.destroy_process_group()
"""


def rows(command):
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{ran.stderr[-2000:]}")
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return {(line["kind"], line["bytes"]): line for line in lines}


def seconds_to_first(command):
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
        said = any("first collective" in line for line in program.stdout)
        took = time.perf_counter() - start
    if not said:
        raise SystemExit(f"{' '.join(map(str, command))} made no collective")
    return took


def spread(numbers, digits=2):
    return f"{statistics.median(numbers):.{digits}f} ({min(numbers):.{digits}f} to {max(numbers):.{digits}f})"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", required=True, help="the built program collectives")
    p.add_argument("--python", required=True, help="a Python with torch")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--repeats", type=int, default=25, help="calls of a kind and size in a round")
    p.add_argument("--sizes", nargs="+", default=["4096", "1048576", "16777216"])
    a = p.parse_args()
    options = ["--world", "2", "--repeats", str(a.repeats), "--sizes", *a.sizes]
    rounds = [(rows([a.program, *options]), rows([a.python, HERE / "peers" / "peer_coll.py", *options])) for _ in range(a.rounds)]
    print(f"{datetime.date.today()}, {a.rounds} rounds of {a.repeats} calls, 2 ranks.\n")
    print("| call | bytes | fastest | median | weft's fastest, us |\n|---|---|---|---|---|")
    for key in rounds[0][1]:
        ratios = {figure: [ours[key][figure] / theirs[key][figure] for ours, theirs in rounds] for figure in ("min_s", "median_s")}
        fastest = min(ours[key]["min_s"] for ours, _ in rounds)
        print(f"| {key[0]} | {key[1]} | {spread(ratios['min_s'])} | {spread(ratios['median_s'])} | {fastest * 1e6:.0f} |")
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(FIRST)
        script.flush()
        starts = [(seconds_to_first([a.program, "--world", "4", "--first-only"]),
                   seconds_to_first([a.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", script.name])) for _ in range(a.rounds)]
    print("\n| 4 ranks to their first collective | ratio | weft, s | torchrun, s |\n|---|---|---|---|")
    print(f"| | {spread([ours / theirs for ours, theirs in starts])} | {min(ours for ours, _ in starts):.2f} | {min(theirs for _, theirs in starts):.2f} |")


if __name__ == "__main__":
    sys.exit(main())
