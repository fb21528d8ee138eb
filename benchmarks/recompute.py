#!/usr/bin/env python3
"""Activation checkpointing beside torch.utils.checkpoint (non-reentrant): time of a step and bytes held after forward, in rounds that take turns.

Both programs stay up, and each round asks one after the other. The last table is a step under weft's autograd engine, whose hooks nobody uses,
over the same step under LibTorch's."""
import argparse
import datetime
import json
import pathlib
import statistics
import subprocess

from collectives import spread

HERE = pathlib.Path(__file__).resolve().parent


class Program:
    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.process.args[0]} gave no answer to: {line}")
        return json.loads(answer)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", required=True, help="the built program recompute")
    p.add_argument("--python", required=True, help="a Python with torch, for the peer")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--steps", type=int, default=12, help="steps of either kind in a round")
    p.add_argument("--models", nargs="*", default=["small", "stack"])
    a = p.parse_args()
    ours, theirs = Program(a.program), Program(a.python, str(HERE / "peers" / "peer_recompute.py"))
    print(f"{datetime.date.today()}, one process, one thread, {a.rounds} rounds of {a.steps} steps; the fastest step of each round, medians over rounds (range).\n")
    print("| model | recomputed, ms: weft | torch | ratio | over a kept step: weft | torch | bytes after forward, MiB: weft | torch | ratio | kept, MiB: weft | torch |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|")
    for model in a.models:
        for program in (ours, theirs):  # warm
            program.ask(f"{model} 3")
        rounds = [[program.ask(f"{model} {a.steps}") for program in (ours, theirs)] for _ in range(a.rounds)]
        best = lambda answer, kind: min(answer[f"{kind}_s"])
        times = [[best(answers[i], "recomputed") for answers in rounds] for i in (0, 1)]
        over = [[best(answers[i], "recomputed") / best(answers[i], "kept") for answers in rounds] for i in (0, 1)]
        held = [rounds[-1][i] for i in (0, 1)]
        mib = lambda i, kind: f"{held[i][f'{kind}_bytes'] / 2**20:.3f}"
        print(f"| {model} | {statistics.median(times[0]) * 1e3:.2f} | {statistics.median(times[1]) * 1e3:.2f} | {spread([b / t for b, t in zip(*times)], digits=3)} | {spread(over[0], digits=3)} | {spread(over[1], digits=3)} "
              f"| {mib(0, 'recomputed')} | {mib(1, 'recomputed')} | {held[0]['recomputed_bytes'] / held[1]['recomputed_bytes']:.4f} | {mib(0, 'kept')} | {mib(1, 'kept')} |", flush=True)
    ours.ask("hooks 3")
    ratios = []
    for _ in range(a.rounds):
        answer = ours.ask(f"hooks {a.steps}")
        ratios.append(min(answer["hooks_s"]) / min(answer["plain_s"]))
    print(f"\n| a step of small under an engine with hooks that nobody uses | {spread(ratios, digits=3)} |\n|---|---|")
    ours.end()
    theirs.end()


if __name__ == "__main__":
    main()
