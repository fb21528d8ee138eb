#!/usr/bin/env python3
"""What clang++ reads and instantiates for a program with one FSDP strategy, in both ways to build, beside compile_budget.txt.

Counts are exact for a compiler and a LibTorch, seconds are not: tests/driver.py fails where a count is more than 5 % above the
budget. After a change that is worth its cost: benchmarks/compile_budget.py --build build --write."""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import compile_cost

BUDGET = pathlib.Path(__file__).with_name("compile_budget.txt")
GROWTH = 1.05


def versions(command):
    """The compiler and the LibTorch that counts belong to."""
    compiler = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    asked = subprocess.run([*command, "-E", "-P", "-include", "torch/version.h", "-x", "c++", "-"], input="torch:TORCH_VERSION_MAJOR.TORCH_VERSION_MINOR\n",
                           capture_output=True, text=True, check=True).stdout
    torch = re.sub(r"[^0-9.]", "", asked.strip().split("\n")[-1])
    return f"{re.search(r'clang version [0-9]+', compiler).group(0)}, torch {torch}"


def counts(command):
    """{way: {what: count}} of the FSDP program."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "program.cpp"
        path.write_text(compile_cost.program(compile_cost.FSDP))
        for way, macro in compile_cost.WAYS.items():
            trace = path.with_suffix(".json")
            subprocess.run([*command, *macro, "-O0", "-c", str(path), "-o", str(path.with_suffix(".o")), "-MD", "-MF", str(path.with_suffix(".d")),
                            "-ftime-trace", "-ftime-trace-granularity=0"], check=True)
            text = trace.read_text()
            files = path.with_suffix(".d").read_text().replace("\\\n", " ").split()[2:]
            found[way] = {"files": len(files), "files of weft": sum("/weft/" in name for name in files),
                          "functions instantiated": text.count('"name":"InstantiateFunction"'),
                          "classes instantiated": text.count('"name":"InstantiateClass"')}
    return found


def budget():
    """(versions, {way: {what: count}})."""
    lines = [line for line in BUDGET.read_text().splitlines() if line and not line.startswith("#")]
    table = {}
    for line in lines[1:]:
        way, what, count = (part.strip() for part in line.split("|"))
        table.setdefault(way, {})[what] = int(count)
    return lines[0], table


def over_budget(found, allowed):
    """Lines that say what grew."""
    return [f"{way}, {what}: {count}, budget {allowed[way][what]}" for way, all_counts in found.items() for what, count in all_counts.items()
            if count > GROWTH * allowed[way][what]]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", required=True, help="a configured build folder")
    p.add_argument("--write", action="store_true", help="these counts are the budget from now on")
    a = p.parse_args()
    command = ["clang++", *compile_cost.flags_of(pathlib.Path(a.build))]
    found = counts(command)
    lines = [f"{way} | {what} | {count}" for way, all_counts in found.items() for what, count in all_counts.items()]
    if a.write:
        BUDGET.write_text("# What clang++ -O0 reads and instantiates for a program with one FSDP strategy; made by benchmarks/compile_budget.py --write.\n"
                          + "\n".join([versions(command), *lines]) + "\n")
    print("\n".join(lines))
    before, allowed = budget()
    print("\n".join(over_budget(found, allowed)) or f"within 5 % of the budget ({before})")


if __name__ == "__main__":
    main()
