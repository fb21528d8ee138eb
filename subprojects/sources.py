#!/usr/bin/env python3
"""Lists the programs' sources, which Meson cannot do: ROOT tests torch|plain, ROOT examples, ROOT benchmarks, ROOT rooms.

Torch tests come in lines of several, which tests/join.py makes one file of. A test that includes "test.hpp", directly or not, is a torch test; every other one is built without torch's include path."""
import pathlib
import re
import sys

NOT_TESTS = ("compile_fail", "gpu", "packaging", "shared_objects")  # folders of tests/ that hold no Catch2 files
LINES_TOGETHER = 2200


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


def together(paths):
    """Neighbours, as many as a compiler should have at once: about 3 GB."""
    groups, lines = [[]], 0
    for path in paths:
        more = path.read_text(errors="replace").count("\n")
        if groups[-1] and lines + more > LINES_TOGETHER:
            groups.append([])
            lines = 0
        groups[-1].append(path)
        lines += more
    return groups


def programs(root, folder):
    return sorted((root / folder).glob("*.cpp"))


def main(root, folder=None, kind=None):
    root = pathlib.Path(root)
    if folder is None:  # everything: setup.sh compares this with what the build was configured from
        for path in tests(root):
            print("torch" if is_torch_test(path, root) else "plain", path.relative_to(root))
        for path in programs(root, "examples") + programs(root, "benchmarks"):
            print("program", path.relative_to(root))
    elif folder == "rooms":
        print(*(path.parent.name for path in sorted((root / "include" / "weft").glob("*/src.hpp"))))
    elif folder == "tests":
        paths = [path for path in tests(root) if is_torch_test(path, root) == (kind == "torch")]
        for group in together(paths) if kind == "torch" else [[path] for path in paths]:
            print(";".join(map(str, group)))
    else:
        for path in programs(root, folder):
            print(path)


main(*sys.argv[1:])
