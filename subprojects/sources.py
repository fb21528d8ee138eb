#!/usr/bin/env python3
"""Lists the programs' sources, which Meson cannot do: ROOT tests torch|plain, ROOT examples, ROOT benchmarks.

A test that includes "test.hpp", directly or not, is a torch test; every other one is built without torch's include path."""
import pathlib
import re
import sys

NOT_TESTS = ("compile_fail", "gpu", "shared_objects")  # folders of tests/ that hold no Catch2 files


def is_torch_test(path, root):
    """Whether its quoted includes lead to tests/test.hpp."""
    seen, queue = set(), [path]
    while queue:
        file = queue.pop()
        if file in seen or not file.exists():
            continue
        seen.add(file)
        for name in re.findall(r'^\s*#\s*include\s*"(.+?)"', file.read_text(errors="replace"), re.M):
            queue += [(file.parent / name).resolve(), (root / "tests" / name).resolve()]
    return (root / "tests" / "test.hpp").resolve() in seen


def tests(root):
    folder = root / "tests"
    return [p for p in sorted(folder.rglob("*.cpp")) if p.relative_to(folder).parts[0] not in NOT_TESTS]


def programs(root, folder):
    return sorted((root / folder).glob("*.cpp"))


def main(root, folder=None, kind=None):
    root = pathlib.Path(root)
    if folder is None:  # everything: setup.sh compares this with what the build was configured from
        for path in tests(root):
            print("torch" if is_torch_test(path, root) else "plain", path.relative_to(root))
        for path in programs(root, "examples") + programs(root, "benchmarks"):
            print("program", path.relative_to(root))
    elif folder == "tests":
        for path in tests(root):
            if is_torch_test(path, root) == (kind == "torch"):
                print(path)
    else:
        for path in programs(root, folder):
            print(path)


main(*sys.argv[1:])
