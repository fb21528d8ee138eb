#!/usr/bin/env python3
"""Finds LibTorch and prints what meson.build needs of it, one KEY=VALUE;VALUE line each.

Order: the argument (Meson option), $LIBTORCH, the torch wheel of this Python. The wheel is looked up and never
imported: with only the wheels that are linked against, `import torch` fails."""
import argparse
import glob
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

OLDEST = (2, 11)


def stop(text):
    sys.exit("weft: " + text)


def find_root(option):
    spec = importlib.util.find_spec("torch")
    for found_by, folder in (("Meson option", option), ("LIBTORCH", os.environ.get("LIBTORCH")),
                             ("wheel of python3", spec and spec.submodule_search_locations and
                              spec.submodule_search_locations[0])):
        if not folder:
            continue
        root = pathlib.Path(folder).resolve()
        if not (root / "lib" / "libtorch_cpu.so").exists():
            stop(f"{root} ({found_by}) holds no lib/libtorch_cpu.so: name the folder with LibTorch's include/ and lib/")
        return root, found_by
    stop("no LibTorch: set -Dlibtorch=FOLDER or LIBTORCH=FOLDER, or install PyPI's torch for python3 "
         "(bash tests/run.sh does)")


def version_of(root):
    include = root / "include"  # the file has moved between releases
    for header in (include / "torch/headeronly/version.h", include / "torch/csrc/api/include/torch/version.h"):
        text = header.read_text() if header.exists() else ""
        numbers = [re.search(rf"define TORCH_VERSION_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
        if all(numbers):
            return tuple(int(number.group(1)) for number in numbers)
    stop(f"{include} holds no version.h of LibTorch")


def string_abi_of(root):
    """_GLIBCXX_USE_CXX11_ABI that libc10 was built with, read off the name of c10::Error's constructor."""
    names = (root / "lib" / "libc10.so").read_bytes()
    if b"NS_14SourceLocationENSt7__cxx1112basic_string" in names:
        return "1"
    if b"NS_14SourceLocationESs" in names:
        return "0"
    stop(f"cannot tell the string ABI of {root}/lib/libc10.so")


def needed_by(library):
    text = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+?)\]", text)


def library_folders(root):
    """Folders where the libraries beside LibTorch may be: the nvidia wheels, then a CUDA installation."""
    folders = sorted(glob.glob(str(root.parent / "nvidia" / "*" / "lib")))
    for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        folders += [folder for folder in (f"{home}/lib64", f"{home}/extras/CUPTI/lib64") if home and os.path.isdir(folder)]
    return folders


class Libraries:
    def __init__(self, root):
        self.root = root
        self.folders = library_folders(root)
        self.used = []  # folders that hold something that is linked
        try:
            text = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
        except OSError:
            text = ""
        self.system = dict(re.findall(r"^\s*(\S+) .* => (\S+)$", text, re.M))

    def find(self, name):
        """Path of a library, remembering its folder unless the system's loader knows it anyway."""
        for folder in (str(self.root / "lib"), *self.folders):
            if os.path.exists(f"{folder}/{name}"):
                if folder not in self.used and folder != str(self.root / "lib"):
                    self.used.append(folder)
                return f"{folder}/{name}"
        return self.system.get(name)

    def missing(self, names):
        """What cannot be found of the libraries, and of those they need."""
        seen, queue, lost = set(), list(names), []
        while queue:
            name = queue.pop()
            if name in seen or name.startswith("ld-linux"):
                continue
            seen.add(name)
            path = self.find(name)
            if path is None:
                lost.append(name)
            elif path.startswith(str(self.root.parent)):
                queue += needed_by(path)
        return sorted(lost)


def include_folders(root, headers):
    folders = [str(root / "include"), str(root / "include" / "torch" / "csrc" / "api" / "include")]
    elsewhere = sorted(glob.glob(str(root.parent / "nvidia" / "*" / "include")))
    for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        elsewhere += [f"{home}/include"] if home else []
    for header in headers:
        for folder in elsewhere:
            if os.path.exists(f"{folder}/{header}"):
                folders += [folder] if folder not in folders else []
                break
    return folders


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("option")
    parser.add_argument("--no-cuda", action="store_true")
    parser.add_argument("--require-cuda", action="store_true")
    args = parser.parse_args()
    root, found_by = find_root(args.option)
    version = version_of(root)
    if version[:2] < OLDEST:
        stop(f"LibTorch {'.'.join(map(str, version))} in {root} is too old: 2.11 or newer is needed")

    libraries = Libraries(root)
    lost = libraries.missing(["libtorch_cpu.so", "libc10.so"])
    if lost:
        stop(f"{root}/lib/libtorch_cpu.so needs {', '.join(lost)}: install the nvidia-cuda-runtime and nvidia-cuda-cupti "
             "wheels that torch's metadata names (bash tests/run.sh does)")
    used_without_cuda = list(libraries.used)

    cuda, cuda_link, reason = False, [], "switched off"
    if not args.no_cuda:
        if not (root / "lib" / "libtorch_cuda.so").exists():
            reason = "LibTorch for CPU only"
        else:
            lost = libraries.missing(["libtorch_cuda.so", "libc10_cuda.so"])
            reason = "not found: " + ", ".join(lost)
            cuda = not lost
            headers = include_folders(root, ("cuda_runtime.h", "nccl.h"))
            if cuda and not any(os.path.exists(f"{folder}/nccl.h") for folder in headers):
                cuda, reason = False, "no nccl.h"
        if cuda:
            needed = needed_by(root / "lib" / "libtorch_cuda.so")
            cuda_link = [libraries.find(name) for name in needed if name.startswith(("libcudart.", "libnccl."))]
        elif args.require_cuda:
            stop(f"CUDA was asked for, but {root} cannot be linked with it: {reason}")
    folders = libraries.used if cuda else used_without_cuda

    for key, values in {
            "root": [root], "found_by": [found_by], "version": [".".join(map(str, version))],
            "string_abi": [string_abi_of(root)],
            "include": include_folders(root, ("cuda_runtime.h", "nccl.h") if cuda else ("cuda_runtime.h",)),
            "lib": [root / "lib", *folders],
            "cuda": ["yes" if cuda else "no"], "cuda_reason": [reason or "-"], "cuda_link": cuda_link}.items():
        print(f"{key}={';'.join(map(str, values))}")


main()
