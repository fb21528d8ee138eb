#!/usr/bin/env python3
"""Bytes that rank 0 holds at most, weft beside FSDP2: all of LibTorch's CPU allocations of three steps, from before the model is built.

One unit a trip (--bucket-mb 0), as FSDP2 has it; the last column is weft's default, which trades bytes for time where units are small."""
import argparse
import datetime
import json
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
CASES = [("fsdp", "fsdp2", 2, ""), ("fsdp-shard-grad-op", "fsdp2-shard-grad-op", 2, ""), ("hsdp", "hsdp", 4, "--replicate 2")]


def peak(command):
    ran = subprocess.run(command, capture_output=True, text=True)
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    for line in lines:
        if line.get("type") == "memory" and line.get("rank", 0) == 0 and "alloc" in line:
            return line["alloc"]["peak_bytes"]
    raise SystemExit(f"{' '.join(command)} told no peak:\n{ran.stdout[-1000:]}{ran.stderr[-1000:]}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--programs", required=True, help="folder with train_lm")
    p.add_argument("--python", required=True, help="a Python with torch, for the peers")
    p.add_argument("--models", nargs="*", default=["tiny", "deep", "small", "medium"])
    a = p.parse_args()
    print(f"{datetime.date.today()}, MiB at most on rank 0, SGD, three steps.\n")
    print("| model | strategy | ranks | weft | FSDP2 | ratio | weft's default buckets |\n|---|---|---|---|---|---|---|")
    for model in a.models:
        for ours, theirs, world, more in CASES:
            common = [*more.split(), "--world", str(world), "--model", model, "--steps", "3", "--audit", "memory"]
            weft = [str(pathlib.Path(a.programs) / "train_lm"), "--jsonl", "--strategy", ours, *common]
            peer = peak([a.python, str(HERE / "peers" / "peer_train.py"), "--strategy", theirs, *common])
            alone, grouped = peak([*weft, "--bucket-mb", "0"]), peak(weft)
            print(f"| {model} | {ours} | {world} | {alone / 2**20:.2f} | {peer / 2**20:.2f} | {alone / peer:.3f} | {grouped / 2**20:.2f} |", flush=True)


if __name__ == "__main__":
    main()
