#!/usr/bin/env python3
"""What a program that uses weft costs to compile, over torch/torch.h in the same run: both ways to build, each compiler, -O0 and -O2.

Compiles each source several times in alternation, without debug information, and prints a markdown table of the fastest: CPU
seconds and peak MiB as ratios to torch/torch.h by the same compiler and level."""
import argparse
import datetime
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile

USE = """#include <torch/nn/modules/linear.h>
#include <weft/weft.hpp>
struct BlockImpl : torch::nn::Module {
  BlockImpl() { linear = register_module("linear", torch::nn::Linear(4, 4)); }
  at::Tensor forward(at::Tensor const& x) { return linear(x); }
  torch::nn::Linear linear = nullptr;
};
WEFT_MODULE(Block);
template <class Strategy> int job() {
  using Run = weft::Fabric<Strategy, weft::On<weft::Cpu>>;
  return Run::launch({.devices = 2}, [](Run& fabric) {
    auto [model, optimizer] = fabric.setup(Block(), weft::SGD{.lr = 0.1});
    fabric.backward(model(at::ones({1, 4})).sum());
    optimizer.step();
  }).exit_code();
}
"""
FSDP = "job<weft::FSDP<weft::FullShard, weft::WrapPolicy<Block>>>()"
MORE = [f"job<weft::FSDP<weft::ShardGradOp, weft::WrapPolicy<Block>, weft::Bucket<{n}>>>()" for n in range(1, 7)]


def program(*jobs):
    return USE + "int main() { return " + " + ".join(jobs) + "; }\n"


SOURCES = {  # label: text
    "torch/torch.h": "#include <torch/torch.h>\nint main() {}\n",
    "weft/weft.hpp": "#include <weft/weft.hpp>\nint main() {}\n",
    "a SingleDevice program": program("job<weft::SingleDevice>()"),
    "a DDP program": program("job<weft::DDP<>>()"),
    "an FSDP program": program(FSDP),
    "the FSDP program and 6 other combinations": program(FSDP, *MORE),
}
BASE = "torch/torch.h"
WAYS = {"header-only": [], "separate": ["-DWEFT_SEPARATE_COMPILATION"]}


def compile_once(source, flags, folder):
    """CPU seconds and peak MiB of one compiler run, the processes that the driver starts included."""
    path = pathlib.Path(folder) / "source.cpp"
    path.write_text(source)
    compiler = subprocess.Popen([*flags, "-c", str(path), "-o", str(path.with_suffix(".o"))])
    _, status, usage = os.wait4(compiler.pid, 0)
    compiler.returncode = os.waitstatus_to_exitcode(status)
    if compiler.returncode:
        raise SystemExit("this benchmark's source does not compile")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def flags_of(build):
    """Include paths and macros that train_lm is compiled with, without the way to build."""
    entry = next(c for c in json.loads((build / "compile_commands.json").read_text()) if c["file"].endswith("train_lm.cpp"))
    words, flags = shlex.split(entry["command"]), ["-std=c++20"]
    for i, word in enumerate(words):
        if word.startswith(("-isystem", "-D", "-I")) and not word.startswith(("-DNDEBUG", "-DWEFT_SEPARATE")):
            flags.append(word if word not in ("-isystem", "-I") else word + words[i + 1])
    return [f"-I{(build / f[2:]).resolve()}" if f.startswith("-I") else f for f in flags]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", required=True, help="a configured build folder")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--compilers", nargs="*", default=[c for c in ("g++", "clang++") if shutil.which(c)])
    p.add_argument("--levels", nargs="*", default=["0", "2"], help="of optimization")
    a = p.parse_args()
    flags = flags_of(pathlib.Path(a.build))
    print(f"{datetime.date.today()}, {os.cpu_count()} cores; fastest of {a.rounds}: CPU seconds, and time and memory over torch/torch.h.\n")
    print("| compiler | source | " + " | ".join(f"{way}: seconds | time | memory" for way in WAYS) + " |\n|---|---|" + "---|" * (3 * len(WAYS)))
    for compiler in a.compilers:
        for level in a.levels:
            best = {}
            with tempfile.TemporaryDirectory() as folder:
                for _ in range(a.rounds):
                    for label, source in SOURCES.items():
                        for way, macro in WAYS.items():
                            if label == BASE and way != "header-only":
                                continue
                            cost = compile_once(source, [compiler, f"-O{level}", *flags, *macro], folder)
                            best[label, way] = min(best.get((label, way), cost), cost)
            base = best[BASE, "header-only"]
            for label in SOURCES:
                cells = []
                for way in WAYS:
                    seconds, memory = best.get((label, way), base)
                    cells.append(f"{seconds:.1f} | {seconds / base[0]:.2f} | {memory / base[1]:.2f}")
                print(f"| {compiler} -O{level} | {label} | " + " | ".join(cells) + " |", flush=True)
            for way in WAYS:
                each = (best["the FSDP program and 6 other combinations", way][0] - best["an FSDP program", way][0]) / len(MORE)
                print(f"| {compiler} -O{level} | each further combination, {way} | {each:.2f} s" + " | " * (3 * len(WAYS) - 1) + " |", flush=True)


if __name__ == "__main__":
    main()
