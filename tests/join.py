#!/usr/bin/env python3
"""Joins test files into one that is compiled at once: OUTPUT INPUTS...

Most of a test's compile time is LibTorch's and weft's templates and inline code, which every file instantiates anew; files that are
joined do it once. Each lies in a namespace of its own, so names do not clash. Its includes stand before the first namespace, and are
empty, being guarded, where the file itself repeats them. A file that specialises a template or opens a named namespace itself stands
outside of any, behind the others."""
import pathlib
import re
import sys


def includes_of(path):
    """Its include lines, quoted names that lie beside it as paths; None if there are any below an #if."""
    depth, found = 0, []
    for line in path.read_text().splitlines():
        if re.match(r"\s*#\s*if", line):
            depth += 1
        elif re.match(r"\s*#\s*endif", line):
            depth -= 1
        elif match := re.match(r'\s*#\s*include\s*([<"])(.+?)[>"]', line):
            if depth > 0:
                return None
            beside = path.parent / match[2]
            found.append(f'#include "{beside}"' if match[1] == '"' and beside.exists() else match[0].strip())
    return found


def joined(paths, root):
    opening, text, closing = [], "", ""
    for path in paths:
        includes = includes_of(path)
        if includes is None or re.search(r"^(template <>|namespace [\w:]+ \{)", path.read_text(), re.M):
            closing += f'#include "{path}"\n'
            continue
        opening += includes
        name = re.sub(r"\W", "_", str(path.relative_to(root).with_suffix("")))
        text += f'namespace in_{name} {{\n#include "{path}"\n}}\n'
    return "\n".join(dict.fromkeys(opening)) + "\n" + text + closing


def main(output, *inputs):
    paths = [pathlib.Path(name).resolve() for name in inputs]
    pathlib.Path(output).write_text(joined(paths, pathlib.Path(__file__).resolve().parent))


if __name__ == "__main__":
    main(*sys.argv[1:])
