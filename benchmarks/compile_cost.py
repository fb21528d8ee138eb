#!/usr/bin/env python3
"""What including weft costs over torch/torch.h and the c10d headers that any DDP program needs, and one strategy more.

Compiles each source several times in alternation (-O0, no debug information) and prints a markdown table of the medians."""
import argparse
import datetime
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import tempfile

TORCH = """#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
"""
USE = """
template <class Strategy> int job() {
  using Run = weft::Fabric<Strategy, weft::On<weft::Cpu>>;
  return Run::launch({.devices = 2}, [](Run& fabric) {
    auto [model, optimizer] = fabric.setup(torch::nn::Linear(4, 2), weft::SGD{.lr = 0.1});
    fabric.backward(model(torch::ones({1, 4})).sum());
    optimizer.step();
  }).exit_code();
}
"""
MORE = 6  # strategies, so that the cost of one stands out of the noise
SOURCES = {
    "torch": TORCH + "int main() {}\n",
    "weft": TORCH + "#include <weft/weft.hpp>\nint main() {}\n",
    "weft alone": "#include <weft/weft.hpp>\nint main() {}\n",
    "one": TORCH + "#include <weft/weft.hpp>\n" + USE + "int main() { return job<weft::SingleDevice>(); }\n",
    "two": TORCH + "#include <weft/weft.hpp>\n" + USE + "int main() { return job<weft::SingleDevice>() + job<weft::DDP<>>(); }\n",
    # More strategies on the same mechanism: what a Fabric itself costs, without the code that DDP runs on.
    "more": TORCH + "#include <weft/weft.hpp>\n" + USE + "int main() { return job<weft::SingleDevice>() + job<weft::DDP<>>()"
            + "".join(f" + job<weft::DDP<weft::Bucket<{n}>>>()" for n in range(1, 1 + MORE)) + "; }\n",
    "all": TORCH + "#include <weft/weft.hpp>\n" + USE + "int main() { return job<weft::SingleDevice>() + job<weft::DDP<>>() + job<weft::FSDP<>>()"
           " + job<weft::FSDP<weft::ShardGradOp>>() + job<weft::FSDP<weft::NoShard>>(); }\n",
}


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


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", required=True, help="a configured build folder")
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    build = pathlib.Path(a.build)
    commands = json.loads((build / "compile_commands.json").read_text())
    entry = next(c for c in commands if c["file"].endswith("train_lm.cpp"))
    words = shlex.split(entry["command"])
    flags = [words[0], "-std=c++20", "-O0"]
    for i, word in enumerate(words):
        if word.startswith(("-isystem", "-D", "-I")) and not word.startswith("-DNDEBUG"):
            flags.append(word if word not in ("-isystem", "-I") else word + words[i + 1])
    flags = [f"-I{(build / f[2:]).resolve()}" if f.startswith("-I") else f for f in flags]
    seconds, memory = {name: [] for name in SOURCES}, {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(a.rounds):
            for name, source in SOURCES.items():
                used, memory[name] = compile_once(source, flags, folder)
                seconds[name].append(used)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    compiler = subprocess.run([flags[0], "--version"], stdout=subprocess.PIPE, text=True).stdout.splitlines()[0]
    print(f"{datetime.date.today()}, {compiler}, -O0, {os.cpu_count()} cores, CPU seconds, medians of {a.rounds} (range).\n")
    print("| source | seconds | peak MiB |\n|---|---|---|")
    labels = {"torch": "torch/torch.h and c10d's headers", "weft": "the same and weft/weft.hpp", "weft alone": "weft/weft.hpp alone",
              "one": "and a SingleDevice program", "two": "and a DDP program",
              "more": f"and {MORE} programs of other DDP<Bucket<n>>",
              "all": "a program of each: SingleDevice, DDP, FSDP in three shardings"}
    for name, label in labels.items():
        values = sorted(seconds[name])
        print(f"| {label} | {median[name]:.1f} ({values[0]:.1f} to {values[-1]:.1f}) | {memory[name]:.0f} |")
    print(f"\nweft over torch: {median['weft'] / median['torch']:.3f} of the time, {memory['weft'] / memory['torch']:.3f} of the memory (goal 1.10); "
          f"one strategy more: {median['two'] - median['one']:.2f} s with its mechanism, {(median['more'] - median['two']) / MORE:.2f} s without (goal 0.3 s)")


if __name__ == "__main__":
    main()
