"""Checks of weft as a package, for tests/driver.py: installed, found by pkg-config, CMake and Meson, linked as it should be.

`checks(build)` lists them as (name, function, files that they depend on); a function gets a fresh folder and returns what is wrong, or
nothing; it raises Skip where a tool is missing."""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
INCLUDE = ROOT / "include"


class Skip(Exception):
    pass


class Wrong(Exception):
    pass


def tool(name):
    if path := shutil.which(name):
        return path
    raise Skip(f"no {name} here")


def call(*command, fails=False, **options):
    """Output of a command, which has to succeed, or to fail."""
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=900, **options)
    if (done.returncode != 0) != fails:
        raise Wrong(f"{shlex.join(map(str, command))[:400]}\nstatus {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def expect(text, output):
    if text not in output:
        raise Wrong(f"expected: {text}\nfound: {output[-3000:]}")


class Package:
    def __init__(self, build):
        self.build = build
        self.compiler = build.compiler(True)[0]
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "CXX": os.environ.get("CXX", self.compiler)}
        folders = [pathlib.Path(flag[8:]).parent for flag in build.compiler(True) if flag.startswith("-isystem")]
        self.torch = next(folder for folder in folders if (folder / "lib" / "libtorch_cpu.so").exists())
        self.version = json.loads((build.folder / "meson-info" / "intro-projectinfo.json").read_text())["version"]

    def install(self, folder):
        """The prefix, at another place than the build thinks: an installed weft may be moved."""
        call("meson", "install", "-C", self.build.folder, "--no-rebuild", "--skip-subprojects", "--destdir", folder / "moved")
        return next((folder / "moved").rglob("share/pkgconfig")).parent.parent

    def runs(self, program):
        expect(f"weft {self.version} by gloo: 6", call("nice", program, env=self.environment))

    def cmake(self, prefix, source, folder, *options, **how):
        return call("nice", tool("cmake"), "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={shutil.which(self.compiler)}",
                    f"-DWEFT_LIBTORCH={self.torch}", *options, env=self.environment, **how)

    # --- a consumer, three ways ---------------------------------------------------------------------------------------
    def by_pkg_config(self, folder):
        pkg_config = tool("pkg-config")
        environment = {**self.environment, "PKG_CONFIG_PATH": str(self.install(folder) / "share" / "pkgconfig")}
        flags = shlex.split(call(pkg_config, "--cflags", "--libs", f"weft = {self.version}", env=environment))
        call("nice", self.build.other_compiler() or self.compiler, "-std=c++20", HERE / "consumer.cpp", "-o", folder / "consumer", *flags)
        self.runs(folder / "consumer")

    def by_cmake(self, folder):
        self.cmake(self.install(folder), HERE, folder / "build", "-DCMAKE_UNITY_BUILD=ON")  # weft's library in fewer files
        call("nice", "cmake", "--build", folder / "build")
        self.runs(folder / "build" / "consumer")
        call("nice", "cmake", "--build", folder / "build", "--target", "consumer_of_library")
        self.runs(folder / "build" / "consumer_of_library")

    def source_once(self, folder):
        """weft/src.hpp in no file, or in two, of a program that is compiled separately is told by the linker, by the name of a symbol."""
        flags = [*self.build.compiler(True), "-DWEFT_SEPARATE_COMPILATION"]
        for name, include in (("program", "weft/core/error.hpp"), ("first", "weft/core/src.hpp"), ("second", "weft/core/src.hpp")):
            body = "int main() {}\n" if name == "program" else ""
            (folder / f"{name}.cpp").write_text(f"#include <{include}>\n{body}")
            call(*flags, "-c", folder / f"{name}.cpp", "-o", folder / f"{name}.o")
        symbol, link = "include_weft_src_hpp_in_exactly_one_source_file", [self.compiler, "-o", folder / "program", *self.build.linker()]
        call(*link, folder / "program.o", folder / "first.o", cwd=self.build.folder)
        for objects in (("program",), ("program", "first", "second")):
            expect(symbol, call(*link, *(folder / f"{name}.o" for name in objects), cwd=self.build.folder, fails=True))

    def one_grade(self, folder):
        """NEW-11: one file with WEFT_CHECKING makes it the grade of the program, in whatever order files are linked."""
        (folder / "says.cpp").write_text("#include <cstdio>\n#include <weft/launch/launch_options.hpp>\nweft::LaunchOptions options();\n"
                                         "int main() { std::printf(\"%d%d\\n\", weft::LaunchOptions().check_collectives, options().check_collectives); }\n")
        (folder / "other.cpp").write_text("#include <weft/launch/launch_options.hpp>\nweft::LaunchOptions options() { return weft::LaunchOptions(); }\n")
        link = self.build.linker()
        for checked in ("says", "other", ""):
            for name in ("says", "other"):
                macro = ["-DWEFT_CHECKING=1"] if name == checked else []
                call("nice", *self.build.compiler(True), *macro, "-c", folder / f"{name}.cpp", "-o", folder / f"{name}.o")
            for order in (("says", "other"), ("other", "says")):
                call(self.compiler, *(folder / f"{name}.o" for name in order), *link, "-o", folder / "program", cwd=self.build.folder)
                expect("11" if checked else "00", call(folder / "program", env=self.environment))

    def by_meson(self, folder):
        for name in ("consumer.cpp", "meson.build"):
            shutil.copy(HERE / name, folder)
        (folder / "subprojects").mkdir()
        (folder / "subprojects" / "weft").symlink_to(ROOT)
        call("meson", "setup", folder / "build", folder, "--force-fallback-for=weft", f"-Dweft:libtorch={self.torch}", env=self.environment)
        call("nice", "ninja", "-C", folder / "build", "consumer")
        self.runs(folder / "build" / "consumer")

    # --- what CMake is told -------------------------------------------------------------------------------------------
    def versions_of_cmake(self, folder):
        file = self.install(folder) / "share" / "cmake" / "weft" / "weft-config-version.cmake"
        major, minor, patch = map(int, self.version.split("."))
        for wanted, right in ((f"{major}.{minor}", True), (self.version, True), (f"{major}.{minor}.{patch + 1}", False), (f"{major}.{minor + 1}", False),
                              (f"{major + 1}.0", False)):
            parts = wanted.split(".")
            script = folder / "version.cmake"
            script.write_text(f'set(PACKAGE_FIND_VERSION {wanted})\nset(PACKAGE_FIND_VERSION_COUNT {len(parts)})\nset(PACKAGE_FIND_VERSION_MAJOR {parts[0]})\n'
                              f'set(PACKAGE_FIND_VERSION_MINOR {parts[1]})\ninclude("{file}")\nmessage("it is ${{PACKAGE_VERSION_COMPATIBLE}}")\n')
            expect(f"it is {str(right).upper()}", call(tool("cmake"), "-P", script))

    def torch_of_cmake(self, folder):
        """find_package(Torch) before find_package(weft): that LibTorch is taken, and no other one looked for."""
        (folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.18)\nproject(consumer CXX)\nadd_library(torch INTERFACE IMPORTED)\nfind_package(weft REQUIRED)\n"
            "get_target_property(linked weft::weft INTERFACE_LINK_LIBRARIES)\nmessage(STATUS \"linked: ${linked}.\")\n")
        expect("linked: Threads::Threads;torch.", self.cmake(self.install(folder), folder, folder / "build", "-DWEFT_LIBTORCH=/nowhere"))

    def twice_of_cmake(self, folder):
        """A second find_package(weft) after one that found no LibTorch finds none either."""
        (folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.18)\nproject(consumer CXX)\nfind_package(weft QUIET)\nmessage(STATUS \"first: ${weft_FOUND}.\")\n"
            "find_package(weft QUIET)\nmessage(STATUS \"second: ${weft_FOUND}.\")\n")
        output = self.cmake(self.install(folder), folder, folder / "build", "-DWEFT_LIBTORCH=/nowhere")
        for text in ("first: 0.", "second: 0."):
            expect(text, output)

    # --- the configuration --------------------------------------------------------------------------------------------
    def libtorch_like(self, folder, **libraries):
        """A LibTorch made of links to the real one, with other libraries where they are named."""
        root = folder / "site" / "torch"
        (root / "lib").mkdir(parents=True)
        (root / "include").symlink_to(self.torch / "include")
        (root.parent / "nvidia").symlink_to(self.torch.parent / "nvidia")
        for name in ("libtorch_cpu.so", "libc10.so"):
            if name not in libraries:
                (root / "lib" / name).symlink_to(self.torch / "lib" / name)
        return root

    def configure(self, folder, root, *options, **how):
        return call("meson", "setup", root.parent / "build", ROOT, f"-Dlibtorch={root}", "-Dtests=false", "-Dexamples=false", "-Dbenchmarks=false", *options,
                    env=self.environment, **how)

    def wrong_string_abi(self, folder):
        """A libc10 whose names say the other string ABI than the one that it has."""
        root = self.libtorch_like(folder, **{"libc10.so": True})
        names = (self.torch / "lib" / "libc10.so").read_bytes()
        said = b"NS_14SourceLocationENSt7__cxx1112basic_string"
        (root / "lib" / "libc10.so").write_bytes(names.replace(said, said.swapcase()) + b"NS_14SourceLocationESs\0")
        expect("does not compile or link with this compiler (string ABI 0)", self.configure(folder, root, fails=True))

    def cpu_only(self, folder):
        """A LibTorch without libtorch_cuda, as the wheels for the CPU are."""
        output = self.configure(folder, self.libtorch_like(folder))
        expect("not linked: LibTorch for CPU only", output)
        expect("cannot be linked with it: LibTorch for CPU only", self.configure(folder, self.libtorch_like(folder / "again"), "-Dcuda=enabled", fails=True))

    def linker_keeps_cuda(self, folder):
        """A program that names nothing of libtorch_cuda is linked with it all the same, also by linkers that drop what is not named."""
        (folder / "empty.cpp").write_text("int main() {}\n")
        root = self.libtorch_like(folder)
        (root.parent / "nvidia").unlink()
        beside = root.parent / "nvidia" / "made_up"
        (beside / "lib").mkdir(parents=True)
        (beside / "include").mkdir()
        (beside / "include" / "nccl.h").touch()
        for library in (self.torch.parent / "nvidia").glob("*/lib/*.so*"):  # what libtorch_cpu itself needs
            (beside / "lib" / library.name).symlink_to(library)
        for name, needs in {"libnccl.so.2": (), "libc10_cuda.so": (), "libtorch_cuda.so": ("libnccl.so.2",)}.items():
            path = (beside if name.startswith("libnccl") else root) / "lib" / name
            path.unlink(missing_ok=True)
            call(self.compiler, "-shared", "-fPIC", folder / "empty.cpp", "-o", path, f"-Wl,-soname,{name}", "-Wl,--no-as-needed",
                 *(beside / "lib" / other for other in needs))
        self.configure(folder, root, "-Dcuda=enabled", "--prefix", folder / "prefix")
        call("meson", "install", "-C", root.parent / "build")
        flags = call(tool("pkg-config"), "--libs", "weft", env={**self.environment, "PKG_CONFIG_PATH": str(folder / "prefix/share/pkgconfig")})
        call(self.compiler, "-Wl,--as-needed", folder / "empty.cpp", "-o", folder / "empty", *shlex.split(flags))
        needed = call("readelf", "-d", folder / "empty")
        for name in ("libtorch_cpu.so", "libtorch_cuda.so", "libc10_cuda.so"):
            expect(f"[{name}]", needed)

    # --- headers ------------------------------------------------------------------------------------------------------
    def version_of_meson(self, folder):
        found = [re.search(rf"define WEFT_VERSION_{part} (\d+)", (INCLUDE / "weft/version.hpp").read_text())[1] for part in ("MAJOR", "MINOR", "PATCH")]
        if ".".join(found) != self.version:
            raise Wrong(f"weft/version.hpp says {'.'.join(found)}, meson.build {self.version}")

    def without_macros(self, folder):
        (folder / "main.cpp").write_text("#include <weft/comm/gloo.hpp>\n")
        flags = [flag for flag in self.build.compiler(True) if not flag.startswith("-DUSE_C10D")]
        expect("weft: build with -DUSE_C10D_GLOO=1", call(*flags, "-fsyntax-only", "-Wfatal-errors", folder / "main.cpp", fails=True))

    def narrow_includes(self, folder):
        for path in INCLUDE.rglob("*.hpp"):
            for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.M):
                if name in ("weft/weft.hpp", "torch/torch.h", "torch/all.h", "torch/extension.h", "range/v3/all.hpp") or name.startswith("c10d/"):
                    raise Wrong(f"{path.relative_to(ROOT)} includes {name}: name the narrowest header, and c10d's below torch/csrc/distributed")


def checks(build):
    package = Package(build)
    configured = [HERE / "checks.py", ROOT / ".packaging" / "locate_libtorch.py", ROOT / "meson.build", ROOT / "meson.options"]
    installed = [*configured, HERE / "consumer.cpp", *sorted(path for path in (ROOT / ".packaging").rglob("*") if path.is_file())]
    return [
        ("a consumer by Meson", package.by_meson, [*installed, HERE / "meson.build"]),
        ("a consumer by pkg-config", package.by_pkg_config, installed),
        ("a consumer by CMake", package.by_cmake, [*installed, HERE / "CMakeLists.txt"]),
        ("versions that CMake accepts", package.versions_of_cmake, installed),
        ("CMake takes a Torch that was found before", package.torch_of_cmake, installed),
        ("CMake asked twice", package.twice_of_cmake, installed),
        ("CPP-04: a wrong string ABI stops the configuration", package.wrong_string_abi, configured),
        ("a LibTorch for the CPU only", package.cpu_only, configured),
        ("CPP-06: no linker drops CUDA", package.linker_keeps_cuda, installed),
        ("one version", package.version_of_meson, None),
        ("weft/src.hpp in no file or in two", package.source_once, [HERE / "checks.py", INCLUDE / "weft/core/src.hpp"]),
        ("NEW-11: one grade for a program", package.one_grade, [HERE / "checks.py", INCLUDE / "weft/launch/launch_options.hpp"]),
        ("CPP-01: a compile without macros says which one is missing", package.without_macros, [HERE / "checks.py", INCLUDE / "weft/comm/gloo.hpp"]),
        ("CPP-01, CPP-03: no header includes an umbrella or an old path", package.narrow_includes, None),
    ]
