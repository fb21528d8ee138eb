#!/usr/bin/env python3
"""torchrun, from a wheel whose CUDA libraries are not installed: python torchrun.py FOLDER ARGUMENTS-OF-TORCHRUN.

Python's half of torch loads all of it, and with it gigabytes of CUDA that torchrun never calls. The loader wants their names alone, so
empty libraries with those names are made in FOLDER, once, and torch finds them loaded already."""
import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

CUDA = re.compile(r"lib(cu|nccl|nvrtc|nvshmem|nvJitLink|nvToolsExt)(?!da\.so)")


def wanted_names(torch):
    """{library: {version: {symbols}}} of what torch's libraries expect from others."""
    wanted = {}
    for library in (torch / "lib").glob("*.so"):
        text = subprocess.run(["readelf", "--wide", "--dynamic", "--dyn-syms", "--version-info", library], capture_output=True, text=True, check=True).stdout
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", text):
            wanted.setdefault(name, {})
        library_of, name = {}, None
        for file, version in re.findall(r"File: (\S+)|Name: (\S+)\s+Flags", text):
            name = file or name
            library_of[version] = name
        for symbol, version in re.findall(r" UND ([^\s@]+)@(\S+)", text):
            if version in library_of:
                wanted.setdefault(library_of[version], {}).setdefault(version, set()).add(symbol)
    return wanted


def make(folder, torch):
    folder.mkdir(parents=True, exist_ok=True)
    there = {path.name for path in [*torch.rglob("lib/*.so*"), *torch.parent.glob("nvidia/**/*.so*")]}
    with tempfile.TemporaryDirectory(dir=folder) as drafts:
        source, script, library = (pathlib.Path(drafts, name) for name in ("names.s", "versions.map", "library.so"))
        for name, versions in wanted_names(torch).items():
            if name in there or not CUDA.match(name):
                continue
            symbols = sorted({symbol for group in versions.values() for symbol in group})
            source.write_text('.section .note.GNU-stack,""\n.data\n' + "".join(f".globl {s}\n{s}: .quad 0\n" for s in symbols))
            script.write_text("".join(f"{version} {{ global: {'; '.join(sorted(group))}; }};\n" for version, group in versions.items()))
            subprocess.run([os.environ.get("CXX", "g++"), "-shared", "-nostdlib", f"-Wl,-soname,{name}",
                            *([f"-Wl,--version-script={script}"] if versions else []), "-o", library, source], check=True)
            library.rename(folder / name)
    (folder / "complete").touch()


def main():
    torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent
    version = importlib.metadata.version("torch")
    folder = pathlib.Path(sys.argv[1]) / hashlib.sha256(f"{torch} {version}".encode()).hexdigest()[:12]
    if not (folder / "complete").exists():
        make(folder, torch)
    for library in sorted(folder.glob("lib*.so*")):
        ctypes.CDLL(str(library))
    sys.setdlopenflags(os.RTLD_LAZY)  # functions are looked for when they are called, and these never are
    from torch.distributed.run import main as torchrun
    torchrun(sys.argv[2:])


if __name__ == "__main__":
    main()
