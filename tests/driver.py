#!/usr/bin/env python3
"""Builds what meson configured and runs every check of weft; tests/run.sh calls it. Standard library only.

What a check is: a Catch2 test case; a header (alone and twice in one file, without a warning; the torch-free ones without
torch's include path); all headers in two files of one program; what
tests/packaging/checks.py lists; a CASE_ of tests/compile_fail; an example with its
`// run:` line; a benchmark (compiles), and what a program may cost to compile; a program in README.md or in a page of the guide (compiles), and README.md's table of failures; tests/gpu/run.sh, which skips where there is no GPU. The last line
printed is `N passed, N failed`, `, N skipped` when there were some.

tests/compile_fail/*.cpp:
    #if defined(CASE_name)  // expect-error: TEXT      the compiler's first error must begin with `weft:` and hold TEXT
    #elif defined(CASE_other)  // expect-error: TEXT
    #else                   // control                 without any CASE_ the file must compile
    #endif
A file whose first line begins with `// torch` is compiled with torch's include path, every other one without.

examples/*.cpp, in comment lines:
    // run: ARGS            one run; $ROOT is the checkout, $TMP a fresh folder, which is also where it runs
    // expect: TEXT         must be printed by the run above; any number of them
    // expect-exit: N       exit status of the run above; 0 if not said
    // limit: SECONDS       of the run above; 120 if not said
    // run-skip: REASON     instead of run lines
"""
import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "packaging"), str(ROOT / "tests"), str(ROOT / "benchmarks")]
import checks as packaging  # noqa: E402
import compile_budget  # noqa: E402
import compile_cost  # noqa: E402
import join  # noqa: E402
INCLUDE = ROOT / "include"
TORCH_FREE = ("core/", "plan/", "strategy/")  # rooms below include/weft
TORCH_FREE_FILES = ("fwd.hpp", "version.hpp", "comm/trace.hpp", "shard/layout.hpp", "shard/buckets.hpp", "estimates/estimate.hpp")
MANY_NOTES = 15
UMBRELLA = "weft/weft.hpp"
SEPARATE = "-DWEFT_SEPARATE_COMPILATION"  # see include/weft/core/build.hpp
# What most of weft's headers include of LibTorch, compiled once; see [Note: a header alone, quickly].
TORCH_BASES = (
    ("torch/nn/module.h", "torch/nn/modules/transformerlayer.h", "torch/optim/optimizer.h", "torch/csrc/distributed/c10d/ProcessGroup.hpp"),
    ("torch/nn/module.h",),
    ("torch/csrc/distributed/c10d/Backend.hpp", "torch/csrc/distributed/c10d/ProcessGroup.hpp", "torch/csrc/distributed/c10d/Store.hpp"),
    ("torch/data/datasets/base.h",), ("ATen/ATen.h",), ("torch/csrc/autograd/variable.h",), ("ATen/core/Tensor.h",))
BEHIND_TESTS = ("nice", "-n", "10")  # see [Note: compilers beside tests]
END_OF_CASE = "the end of this case"
CASE_LIMIT_S = float(os.environ.get("WEFT_TEST_LIMIT_S", 300))  # no test case may be silent for longer


@dataclasses.dataclass
class Result:
    group: str
    name: str
    status: str  # passed, failed, skipped
    seconds: float = 0.0
    message: str = ""


class Report:
    def __init__(self):
        self.results = []

    def add(self, result):
        self.results.append(result)
        if result.status != "passed":
            text = result.message.strip()
            print(f"{result.status.upper()}  {result.group}: {result.name}", flush=True)
            if text:
                print("    " + text.replace("\n", "\n    "), flush=True)

    def count(self, status, group=None):
        return sum(r.status == status and group in (None, r.group) for r in self.results)

    def finish(self, seconds):
        if not self.results:
            print("nothing has this name")
        slow = [r for r in sorted(self.results, key=lambda r: -r.seconds)[:5] if r.seconds >= 1]
        if slow:
            print("\nslowest: " + "; ".join(f"{r.seconds:.1f} s {r.name}" for r in slow))
        print(f"\n{'':24}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}")
        for group in dict.fromkeys(r.group for r in self.results):
            spent = sum(r.seconds for r in self.results if r.group == group)
            print(f"{group:24}" + "".join(f"{self.count(s, group):8}" for s in ("passed", "failed", "skipped")) +
                  f"{spent:9.1f}")
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"{'wall time':48}{seconds:9.1f}")
        print(f"{'of processors':48}{usage.ru_utime + usage.ru_stime:9.1f}\n")
        skipped = self.count("skipped")
        print(f"{self.count('passed')} passed, {self.count('failed')} failed" + (f", {skipped} skipped" if skipped else ""))
        # Nothing ran: a filter that matches nothing is a mistake of the caller, not a success.
        return 1 if self.count("failed") or not self.results else 0


def run(command, limit_s, **options):
    """Runs a command in a process group of its own, which is ended as a whole when the time is over: (status, output)."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", start_new_session=True, **options) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return None, output + f"\nno end after {limit_s:.0f} s: stopped"


# --- the build ------------------------------------------------------------------------------------------------------
class Build:
    """What meson knows: programs, compiler flags, link flags."""

    def __init__(self, folder, jobs):
        self.folder = folder
        self.jobs = jobs
        self.programs = {}  # path below the build folder -> target
        self.failed = set()
        self.precompiling = threading.Lock()
        self.is_clang = False
        self.precompiled = {}  # headers -> what a command that begins with them starts with

    def load(self):
        targets = json.loads((self.folder / "meson-info" / "intro-targets.json").read_text())
        for target in targets:
            path = pathlib.Path(target["filename"][0])
            if target["type"] == "executable" and "subprojects" not in path.relative_to(self.folder).parts:
                self.programs[str(path.relative_to(self.folder))] = target
        self.is_clang = "clang" in (self.folder / "meson-info" / "intro-compilers.json").read_text()

    def run(self):
        log = self.folder / "ninja.log"
        command = ["ninja", "-C", str(self.folder), "-j", str(self.jobs), "-k", "0"]
        with open(log, "w") as file:
            status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT).returncode
        self.load()  # after ninja, which may have configured again
        if status == 0:
            return ""
        for program in self.programs:
            plan = subprocess.run(["ninja", "-C", str(self.folder), "-n", program], capture_output=True, text=True).stdout
            if "no work to do" not in plan:
                self.failed.add(program)
        text = log.read_text(errors="replace")
        parts = [part for part in re.split(r"^(?=\[\d+/\d+\] |FAILED: )", text, flags=re.M) if part.startswith("FAILED: ")]
        # The command line is of no interest, the errors are.
        shown = "\n".join("\n".join(line for line in part.splitlines() if " -fdiagnostics-color" not in line)
                          for part in parts) or text[-4000:]
        return shown[:12000]

    def other_compiler(self):
        """The one of g++ and clang++ that tests are not compiled with; nothing if this machine lacks it."""
        return shutil.which("g++" if self.is_clang else "clang++")

    def compiler(self, with_torch):
        """Compiler and flags of the tests, without their precompiled header and header-only, where the tests themselves link weft's library."""
        for block in self.programs["tests/weft_tests" if with_torch else "tests/weft_plain_tests"]["target_sources"]:
            if "compiler" in block:
                flags, skip = [], False
                for flag in block["parameters"]:
                    if skip or flag in ("-include", "-include-pch", "-fpch-preprocess", "-fpch-instantiate-templates", "-Winvalid-pch"):
                        skip = flag in ("-include", "-include-pch")
                    elif not flag.startswith(("-fdiagnostics-color", "-DWEFT_SOURCE_DIR", "-DWEFT_BUILD_DIR", SEPARATE)):
                        if not (flag.startswith("-I") and str(INCLUDE) != flag[2:]):
                            flags.append(flag)
                return [*block["compiler"], *flags, "-fdiagnostics-color=never"]
        raise SystemExit("weft: meson's introspection names no compiler")

    def umbrella(self):
        """Flags that begin with weft/weft.hpp as tests/meson.build compiled it."""
        first = self.folder / "tests" / "libweft_umbrella.a.p" / "umbrella.hpp"
        return [SEPARATE, "-include", str(first)] if any(first.with_name(first.name + end).exists() for end in (".gch", ".pch")) else []

    def precompile(self, headers, command):
        """Flags that begin with these headers, compiled once by the command that many checks are made with."""
        with self.precompiling:
            if headers not in self.precompiled:
                first = self.folder / "precompiled" / ("_".join(pathlib.Path(header).stem for header in headers) + ".hpp")
                first.parent.mkdir(exist_ok=True)
                first.write_text("".join(f"#include <{header}>\n" for header in headers))
                quickly = ["-Xclang", "-fpch-instantiate-templates"] if self.is_clang else []
                status, _ = run([*BEHIND_TESTS, *(flag for flag in command if flag != "-fsyntax-only"), *quickly, "-x", "c++-header", str(first), "-o", f"{first}.gch"], 600)
                self.precompiled[headers] = ["-include", str(first)] if status == 0 else []
            return self.precompiled[headers]

    def linker(self):
        for block in self.programs["tests/weft_tests"]["target_sources"]:
            if "linker" in block:
                return [flag for flag in block["parameters"] if "Catch2" not in flag and "libweft" not in flag and flag != "-Wl,--no-undefined"]
        return []


# --- the cache: what was found right is not looked at again -------------------------------------------------------------
class Cache:
    def __init__(self, build):
        self.path = build.folder / "checked.json"
        try:
            self.known = set(json.loads(self.path.read_text()))
        except (OSError, ValueError):
            self.known = set()
        self.used = set()
        compiler = build.compiler(True)
        self.base = [subprocess.run([compiler[0], "--version"], capture_output=True, text=True).stdout]
        for flag in compiler:  # another LibTorch at the same place
            for name in ("torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h"):
                if flag.startswith("-isystem") and (path := pathlib.Path(flag[8:]) / name).exists():
                    self.base.append(path.read_text())
        self.texts = {}

    def text(self, path):
        if path not in self.texts:
            self.texts[path] = path.read_text(errors="replace")
        return self.texts[path]

    def closure(self, path):
        """The file and weft's headers that it includes, directly or not."""
        seen, queue = set(), [path]
        while queue:
            file = queue.pop()
            if file in seen or not file.exists():
                continue
            seen.add(file)
            for name in self.includes(file):
                queue += [INCLUDE / name, file.parent / name]
        return sorted(seen)

    def includes(self, path):
        return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', self.text(path), re.M)

    def key(self, kind, command, files):
        content = [kind, *self.base, *command]
        for file in sorted({f for path in files for f in self.closure(path)}):
            content += [str(file), self.text(file)]
        return hashlib.sha256("\0".join(content).encode()).hexdigest()

    def knows(self, key):
        if key in self.known:
            self.used.add(key)
            return True
        return False

    def add(self, key):
        self.used.add(key)

    def save(self, all_ran):
        self.path.write_text(json.dumps(sorted(self.used if all_ran else self.used | self.known)))


# --- Catch2 -----------------------------------------------------------------------------------------------------------
def catch2_spec(text):
    """A word is part of a name, or a tag; everything else is Catch2's own."""
    if not text:
        return []
    if re.search(r"[\[\]*~,]", text):
        return [text]
    return [f"*{text}*" + (f",[{text}]" if re.fullmatch(r"[\w-]+", text) else "")]


def watch(command, xml, log, environment):
    """Runs a Catch2 program; ends it when no test case finishes for too long. Returns the exit status, None if ended."""
    with open(log, "ab") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment,
                                   start_new_session=True)
        size, since = -1, time.monotonic()
        while process.poll() is None:
            time.sleep(0.05)
            now = xml.stat().st_size if xml.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > CASE_LIMIT_S:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return None
    return process.returncode


def read_catch2(xml, group):
    """Results of finished test cases, and the name of the one that was running when the file broke off."""
    parser, results, running = ElementTree.XMLPullParser(("start", "end")), [], None
    parser.feed(xml.read_bytes() if xml.exists() else b"")
    try:
        for event, element in parser.read_events():
            if element.tag != "TestCase":
                continue
            if event == "start":
                running = element.get("name")
                continue
            running = None
            verdict = element.find("OverallResult")
            skips = [text for skip in element.iter("Skip") if (text := (skip.text or "").strip())]
            status = ("failed" if verdict is None or verdict.get("success") != "true" else
                      "skipped" if int(verdict.get("skips", "0")) else "passed")
            where = f"{element.get('filename')}:{element.get('line')}".replace(str(ROOT) + "/", "")
            where = re.sub(r"^(\.\./)+", "", where)
            message = where + "\n" + "\n".join(failures(element)) if status == "failed" else "; ".join(dict.fromkeys(skips))
            results.append(Result(group, element.get("name"), status,
                                  float(verdict.get("durationInSeconds", 0)) if verdict is not None else 0, message))
    except ElementTree.ParseError:
        pass
    return results, running


def failures(case):
    for element in case.iter():
        at = f"line {element.get('line')}: "
        if element.tag == "Expression" and element.get("success") == "false":
            text = [(element.findtext(tag) or "").strip() for tag in ("Original", "Expanded", "Exception")]
            yield at + f"{element.get('type')}( {text[0]} )  with  {text[1]}" + (f"  threw  {text[2]}" if text[2] else "")
        elif element.tag in ("Failure", "Exception", "FatalErrorCondition") and element.get("line"):
            yield at + f"{element.tag.lower()}: {(element.text or '').strip()}"
        elif element.tag == "Info" and (element.text or "").strip():
            yield "info: " + element.text.strip()


# [Note: other processors] Which kernels LibTorch, oneDNN and MKL choose decides the bits of bf16 and of sums. Test cases with the tag [processor] run
# again with the choices of other processors than this one; see [Note: bits of a processor] in tests/raw_training.hpp.
PROCESSORS = {
    "without AMX": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},  # AMD's with AVX-512
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "SSE": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}


def processors():
    """Those that this one can stand in for, and is not."""
    flags = re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    needed = {"without AMX": "amx_bf16", "AVX2": "avx2"}
    return {name: choices for name, choices in PROCESSORS.items() if name not in needed or (flags and needed[name] in flags[1].split())}


def catch2(build, report, program, group, text, extra_environment=None):
    environment = {**os.environ, **(extra_environment or {})}
    folder = build.folder / "test-logs"
    folder.mkdir(exist_ok=True)
    log = folder / (pathlib.Path(program).name + ".log")
    log.write_bytes(b"")
    executable = str(build.folder / program)
    listed = subprocess.run([executable, *catch2_spec(text), "--list-tests", "-v", "quiet"], capture_output=True, text=True)
    names = [name for name in listed.stdout.splitlines() if name]
    if listed.returncode != 0:
        report.add(Result(group, program, "failed", 0, f"does not start: {(listed.stderr or listed.stdout)[-2000:]}"))
        return
    spec, done = catch2_spec(text), set()
    for attempt in range(len(names)):  # each further one goes on behind a test case that crashed
        xml = folder / f"{pathlib.Path(program).name}.{attempt}.xml"
        xml.unlink(missing_ok=True)
        log_size = log.stat().st_size
        status = watch([executable, *spec, "--durations", "yes", "-r", "console::colour-mode=none", "-r", f"xml::out={xml}"],
                       xml, log, environment)
        results, running = read_catch2(xml, group)
        for result in results:
            done.add(result.name)
            report.add(result)
        failed = any(result.status == "failed" for result in results)
        reason = (f"no end after {CASE_LIMIT_S:.0f} s" if status is None else f"ended by signal {-status}" if status < 0
                  else f"ended with status {status}")
        reason += "\n" + log.read_bytes()[log_size:].decode(errors="replace")[-3000:]
        if running is not None:
            report.add(Result(group, running, "failed", 0, reason))
            done.add(running)
        elif status != 0 and results and not failed:
            report.add(Result(group, program, "failed", 0, f"outside of a test case: {reason}"))
        rest = [name for name in names if name not in done]
        if not rest or (running is None and not results):
            break
        remaining = folder / "remaining.txt"
        remaining.write_text("".join('"' + re.sub(r'([\\"])', r"\\\1", name) + '"\n' for name in rest))
        spec = ["--input-file", str(remaining)]
    for name in names:
        if name not in done:
            report.add(Result(group, name, "failed", 0, f"did not run (log: {log})"))


# --- headers ----------------------------------------------------------------------------------------------------------
# [Note: includes point down] A room may include the rooms of lower lines here, and itself; rooms of one line never include each other. Files that lie
# beside the rooms have lines of their own.
ROOMS = ("core", "fwd.hpp version.hpp", "plan", "strategy", "comm precision optim", "init activation", "unit", "model", "shard data_parallel nn",
         "launch checkpoints data report estimates", "fabric", "fabric.hpp", "weft.hpp src.hpp")


def check_rooms(cache, headers):
    """That includes point down, and that a file opens no namespace of another room."""
    level = {room: line for line, rooms in enumerate(ROOMS) for room in rooms.split()}
    room_of = lambda path: path.split("/")[0].replace(".ipp", ".hpp")
    wrong = []
    for name in headers:
        room = room_of(name.removeprefix("weft/"))
        if room not in level:
            wrong.append(f"{name}: no room of this name in ROOMS")
            continue
        if name.endswith("src.hpp"):
            continue  # a list of definitions, which no header includes
        for include in re.findall(r"^#include <weft/(.+?)>", cache.text(INCLUDE / name), re.M):
            other = room_of(include)
            if other != room and level.get(other, len(ROOMS)) >= level[room]:
                wrong.append(f"{name} includes weft/{include}, which is not below it")
        if "." in room:
            continue
        for namespace in re.findall(r"^namespace (?:weft::(?:inline v0::)?)?(\w+)(?:::\w+)* \{(?!\n(?:class|struct) \w+;)", cache.text(INCLUDE / name), re.M):
            if namespace in level and namespace != room:
                wrong.append(f"{name} defines something in the namespace {namespace}, which belongs to another room")
    return ("failed", "\n".join(wrong)) if wrong else ("passed", "")


def check_layout(formatter, paths):
    """That clang-format would change nothing."""
    status, output = run([formatter, "--dry-run", "-Werror", *map(str, paths)], 600)
    return ("passed", "") if status == 0 else ("failed", output[:3000] + f"\nrun: {formatter} -i FILES")


def is_torch_free(name):
    return name.removeprefix("weft/").startswith(TORCH_FREE) or name.removeprefix("weft/") in TORCH_FREE_FILES


def compile_text(command, text, folder, name="check.cpp"):
    path = pathlib.Path(folder) / name
    path.write_text(text)
    return run([*BEHIND_TESTS, *command, str(path)], 600)


def base_of(build, cache, path, command):
    """Flags that begin with one of TORCH_BASES that the file includes, itself or by weft's headers."""
    named = {include for file in cache.closure(path) for include in cache.includes(file)}
    base = next((base for base in TORCH_BASES if named.issuperset(base)), None)
    return build.precompile(base, command) if base else []


# [Note: a header alone, quickly] A header that names one of TORCH_BASES, itself or by a header of weft's that it includes, is compiled
# with that one in front. It could only miss an include that another header owes it, and that header has its own check, where what it
# does not name is not in front either. Includes stand on top of each file, which is checked, too.
def check_header(build, cache, name):
    command = [*build.compiler(not is_torch_free(name)), "-fsyntax-only"]
    key = cache.key("header", command, [INCLUDE / name])
    if cache.knows(key):
        return "passed", ""
    code = re.sub(r"//.*|/\*.*?\*/|^\s*#.*(?:\\\n.*)*", lambda m: m[0] if "include" in m[0] and ".ipp" not in m[0] else "", cache.text(INCLUDE / name), flags=re.M)
    if re.search(r"^\s*(namespace|template|struct|class|inline)\b.*^\s*#\s*include", code, re.M | re.S):
        return "failed", "an include below code: includes stand on top"
    command += base_of(build, cache, INCLUDE / name, command)
    with tempfile.TemporaryDirectory() as folder:
        status, output = compile_text(command, f"#include <{name}>\n#include <{name}>\n", folder)
    if status == 0:
        cache.add(key)
        return "passed", ""
    return "failed", output[:3000]


def check_program(build, cache, names):
    """Two files with all headers make one program, and a program with a shared library."""
    command = build.compiler(True)
    key = cache.key("program", [*command, *build.linker()], [INCLUDE / name for name in names])
    if cache.knows(key):
        return "passed", ""
    includes = "".join(f"#include <{name}>\n" for name in names)
    sources = {
        "one.cpp": includes + "int other();\nint main() { return weft::version.empty() + other(); }\n",
        "other.cpp": includes + "int other() { return weft::version.empty(); }\n"}
    compiler = command[0]
    with tempfile.TemporaryDirectory() as folder:
        for name, text in sources.items():
            flags = ["-fPIC"] if name == "other.cpp" else []
            status, output = compile_text([*command, *flags, "-c", "-o", f"{folder}/{name}.o"], text, folder, name)
            if status != 0:
                return "failed", output[:3000]
        link = build.linker()
        for step in ([compiler, f"{folder}/one.cpp.o", f"{folder}/other.cpp.o", *link, "-o", f"{folder}/program"],
                     [f"{folder}/program"],
                     [compiler, "-shared", f"{folder}/other.cpp.o", *link, "-o", f"{folder}/libother.so"],
                     [compiler, f"{folder}/one.cpp.o", f"{folder}/libother.so", f"-Wl,-rpath,{folder}", *link, "-o",
                      f"{folder}/with_library"],
                     [f"{folder}/with_library"]):
            status, output = run(step, 300, cwd=build.folder)
            if status != 0:
                return "failed", f"{shlex.join(step)[:300]}\nstatus {status}\n{output[:3000]}"
    cache.add(key)
    return "passed", ""


def check_shared_objects(build, cache):
    """One program with weft in two shared objects, whether the loader lets them see each other's symbols or not."""
    folder_of_sources = ROOT / "tests" / "shared_objects"
    sources = {name: folder_of_sources / f"{name}.cpp" for name in ("part", "program")}
    # Of what a process has once only g++ makes one symbol, also where libraries don't see each other's.
    gnu = build.other_compiler() if build.is_clang else build.compiler(True)[0]
    command = [gnu or build.compiler(True)[0], *build.compiler(True)[1:], "-fPIC"]
    key = cache.key("shared objects", [*command, *build.linker()], list(sources.values()))
    if cache.knows(key):
        return "passed", ""
    link, compiler = build.linker(), command[0]
    with tempfile.TemporaryDirectory() as folder:
        for visibility in ("default", "hidden"):
            status, output = run([*BEHIND_TESTS, *command, f"-fvisibility={visibility}", "-c", str(sources["part"]), "-o", f"{folder}/part.o"], 600)
            if status != 0:
                return "failed", output[:3000]
            for part in ("first", "second"):
                status, output = run([compiler, "-shared", f"{folder}/part.o", *link, "-o", f"{folder}/{visibility}_{part}.so"], 300, cwd=build.folder)
                if status != 0:
                    return "failed", output[:3000]
        status, output = run([*BEHIND_TESTS, *command, str(sources["program"]), *link, "-ldl", "-o", f"{folder}/program"], 600, cwd=build.folder)
        if status != 0:
            return "failed", output[:3000]
        for visibility in ("default", "hidden"):
            for mode in ("local", "global") if gnu else ("global",):
                status, output = run([f"{folder}/program", mode, f"{folder}/{visibility}_first.so", f"{folder}/{visibility}_second.so"], 60)
                if status != 0:
                    return "failed", f"{visibility} visibility, loaded {mode}: status {status}\n{output[:3000]}"
    cache.add(key)
    return "passed", ""


def check_package(cache, build, name, function, files):
    key = cache.key(f"package {name}", [*build.compiler(True), *build.linker()], files) if files else ""
    if cache.knows(key):
        return "passed", ""
    with tempfile.TemporaryDirectory() as folder:
        try:
            function(pathlib.Path(folder))
        except packaging.Skip as skip:
            return "skipped", str(skip)
        except packaging.Wrong as wrong:
            return "failed", str(wrong)
    if key:
        cache.add(key)
    return "passed", ""


# --- must not compile -------------------------------------------------------------------------------------------------
CASE = re.compile(r"^\s*#\s*(?:(?:el)?if\s+defined\s*\(?\s*|ifdef\s+)(CASE_\w+)\s*\)?(.*)$", re.M)


def cases_of(text):
    """(name, expected text or None) in the order of the file."""
    return [(name, (m := re.search(r"//\s*expect-error:\s*(.*?)\s*$", rest)) and m.group(1))
            for name, rest in CASE.findall(text)]


def check_case(build, cache, path, case, expected):
    with_torch = cache.text(path).startswith("// torch")
    command = [*build.compiler(with_torch), "-I" + str(ROOT / "tests"), "-fsyntax-only", *([f"-D{case}"] if case else [])]
    if case and not expected:
        return "failed", "the case says no text: write `// expect-error: TEXT` behind its #if"
    key = cache.key(f"case {case}: {expected}", command, [path])
    if cache.knows(key):
        return "passed", ""
    # A case is about its error; warnings on the way (unused variables of broken code) are not its business.
    command = [flag for flag in command if flag != "-Werror"]
    if f"#include <{UMBRELLA}>" in cache.text(path):
        command += build.umbrella()
    elif with_torch:
        command += base_of(build, cache, path, [flag for flag in command if not flag.startswith("-DCASE_")])
    if not case:
        status, output = run([*BEHIND_TESTS, *command, str(path)], 600)
        if status == 0:
            cache.add(key)
        return ("passed", "") if status == 0 else ("failed", "the control must compile\n" + output[:3000])
    wrong = "not compiled"
    if with_torch and not build.is_clang:  # clang's word for it is another one, and it is quick
        # Two errors of ours behind the case end the compiler there, before it instantiates what LibTorch's inline code uses, which takes most
        # of the time. An error that comes only from there is looked for below.
        with tempfile.TemporaryDirectory() as folder:
            end = f'static_assert(sizeof(int) == 0, "{END_OF_CASE}");\n'
            _, output = compile_text([*command, "-fmax-errors=2"], f'#include "{path}"\n{end}{end}', folder)
        before = output.split(END_OF_CASE)[0]
        wrong = wrong_error(build, before[:before.rfind("\n") + 1], expected)
    if wrong:
        status, output = run([*BEHIND_TESTS, *command, str(path)], 600)
        wrong = f"compiles, but should fail with: {expected}" if status == 0 else wrong_error(build, output, expected)
    if wrong:
        return "failed", wrong
    cache.add(key)
    return "passed", ""


def wrong_error(build, output, expected):
    """What is wrong with a compiler's messages for a case; nothing if its first error is the expected one, and it is short."""
    most = 3 if build.is_clang else 1  # clang goes on, without the members of a class in which an assertion failed
    errors = re.findall(r"\berror: (.*)", output)
    notes = len(re.findall(r"\bnote: ", output))
    first = errors[0] if errors else ""
    if "weft:" not in first or expected not in first:
        return f"expected first: {expected}\nfound: {first or output[:500]}"
    if notes >= MANY_NOTES or len(errors) > most:
        return f"the error is right, but has company: {len(errors)} errors, {notes} notes; at most {most} and {MANY_NOTES - 1}"
    return ""


# --- examples, README -------------------------------------------------------------------------------------------------
@dataclasses.dataclass
class ExampleRun:
    arguments: str
    expected: list
    exit_status: int = 0
    limit_s: float = 120


def runs_of(text):
    """([ExampleRun], reason to skip)."""
    runs, skip = [], ""
    for word, value in re.findall(r"^//\s*(run|run-skip|expect|expect-exit|limit):[ \t]*(.*?)\s*$", text, re.M):
        if word == "run":
            runs.append(ExampleRun(value, []))
        elif word == "run-skip":
            skip = value
        elif not runs:
            raise ValueError(f"`// {word}:` before the first `// run:`")
        elif word == "expect":
            runs[-1].expected.append(value)
        elif word == "expect-exit":
            runs[-1].exit_status = int(value)
        else:
            runs[-1].limit_s = float(value)
    return runs, skip


def check_example(build, path, example):
    with tempfile.TemporaryDirectory() as folder:
        arguments = [a.replace("$ROOT", str(ROOT)).replace("$TMP", folder) for a in shlex.split(example.arguments)]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        status, output = run([str(build.folder / "examples" / path.stem), *arguments], example.limit_s, cwd=folder, env=environment)
    missing = [text for text in example.expected if text not in output]
    if status == example.exit_status and not missing:
        return "passed", ""
    return "failed", f"exit status {status}, expected {example.exit_status}; not printed: {missing}\n{output[-2500:]}"


def programs_of(page):
    return [block for block in re.findall(r"^```cpp[^\n]*\n(.*?)^```", page.read_text(), re.M | re.S) if "int main" in block]


def check_compiles(build, cache, kind, path, text, files):
    """That a program of this text compiles; `files` are what it depends on."""
    command = [flag for flag in build.compiler(True) if flag != "-Werror"] + ["-fsyntax-only"]
    key = cache.key(kind, command, files)
    if cache.knows(key):
        return "passed", ""
    if f"#include <{UMBRELLA}>" in text:
        command += build.umbrella()
    status, output = run([*BEHIND_TESTS, *command, str(path)], 600)
    if status == 0:
        cache.add(key)
        return "passed", ""
    return "failed", output[:3000]


def check_page(build, cache, block):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "page.cpp"
        path.write_text(block)
        return check_compiles(build, cache, "page " + block, path, block, [INCLUDE / n for n in re.findall(r"#include <(weft/[^>]+)>", block)])


# [Note: two compilers] clang++ compiles weft in a third of the time that g++ takes, so tests are compiled with clang++ where no compiler is chosen.
# That the other one compiles weft, too, is seen from every example, and from a consumer that it builds; CXX=g++ makes all with g++.
def check_other_compiler(build, cache, compiler, paths):
    """That all examples compile with it."""
    command = [compiler, *(flag for flag in build.compiler(True)[1:] if flag != "-Werror"), "-fsyntax-only"]
    key = cache.key("other compiler", command, paths)
    if cache.knows(key):
        return "passed", ""
    with tempfile.TemporaryDirectory() as folder:
        status, output = compile_text(command, join.joined(paths, ROOT), folder)
    if status == 0:
        cache.add(key)
        return "passed", ""
    return "failed", output[:3000]


def check_benchmark(build, cache, path):
    """benchmarks/run.sh builds it."""
    return check_compiles(build, cache, "benchmark", path, cache.text(path), [path])


def check_compile_budget(build):
    """That a program with one FSDP strategy reads and instantiates no more than benchmarks/compile_budget.txt allows."""
    if not build.is_clang:
        return "skipped", "only clang++ tells what it instantiates"
    command = ["clang++", *compile_cost.flags_of(build.folder)]
    allowed_for, allowed = compile_budget.budget()
    here = compile_budget.versions(command)
    if here != allowed_for:
        return "skipped", f"the budget is that of {allowed_for}, here is {here}"
    grown = compile_budget.over_budget(compile_budget.counts(command), allowed)
    return ("failed", "\n".join(grown) + "\nif that is worth it: benchmarks/compile_budget.py --build build --write") if grown else ("passed", "")


def failure_table():
    """{(kind, launcher): outcome} as the README's table says it: a cell is `outcome, seconds`."""
    text = (ROOT / "README.md").read_text()
    table = re.search(r"^\| how a rank fails \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.M)
    if not table:
        return {}
    split = lambda line: [cell.strip() for cell in line.strip().strip("|").split("|")]
    launchers = [name.strip("`") for name in split(table[0].splitlines()[0])[1:]]
    return {(row[0], launcher): cell.split(",")[0] for row in map(split, table[1].splitlines())
            for launcher, cell in zip(launchers, row[1:], strict=True)}


def check_failures(folder):
    """The README's table of failures against the columns that the tests of launchers wrote in this run; which launchers had none."""
    said, found = failure_table(), {}
    for path in sorted(folder.glob("*")):
        for line in path.read_text().splitlines():
            kind, cell = line.split(" | ")
            found[kind, path.name] = cell
    wrong = [f"{kind} under {launcher}: README.md says {said.get((kind, launcher), 'nothing')}, seen: {cell}"
             for (kind, launcher), cell in found.items() if said.get((kind, launcher)) != cell.split(",")[0]]
    launchers = list(dict.fromkeys(launcher for _, launcher in said))
    seen = {launcher for _, launcher in found}
    wrong += [f"{kind} under {launcher}: only README.md knows it" for kind, launcher in said if launcher in seen and (kind, launcher) not in found]
    if wrong or not said:
        kinds = list(dict.fromkeys(kind for kind, _ in found))
        columns = list(dict.fromkeys(launcher for _, launcher in found))
        table = ["| how a rank fails | " + " | ".join(f"`{it}`" for it in columns) + " |", "|" + "---|" * (len(columns) + 1)]
        table += ["| " + " | ".join([kind, *(found.get((kind, it), "") for it in columns)]) + " |" for kind in kinds]
        return "failed", "\n".join([*wrong, "as seen:", *table])
    missing = [launcher for launcher in launchers if launcher not in seen]
    return ("skipped", "not measured in this run: " + ", ".join(missing)) if missing else ("passed", "")


# --- all of it --------------------------------------------------------------------------------------------------------
def check_gpu():
    status, output = run(["bash", str(ROOT / "tests" / "gpu" / "run.sh")], 490)
    lines = output.strip().splitlines() or [""]
    return ("passed", "") if status == 0 else ("skipped", lines[-1]) if status == 77 else ("failed", output[-4000:])


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--build", type=pathlib.Path, required=True)
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--programs-only", action="store_true", help="test cases and examples, without the checks that compile")
    arguments.add_argument("filter", nargs="?", default="")
    options = arguments.parse_args()
    began = time.monotonic()
    report = Report()
    build = Build(options.build.resolve(), options.jobs)
    words = re.sub(r"[\[\]*~]", "", options.filter).lower()

    def wanted(group, name):
        return words in f"{group} {name}".lower()

    print("weft: building", flush=True)
    errors = build.run()
    if errors:
        print(errors, flush=True)
        for program in sorted(build.failed):
            report.add(Result("build", program, "failed", 0, f"does not build (log: {build.folder}/ninja.log)"))
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"weft: built in {time.monotonic() - began:.0f} s, with {usage.ru_utime + usage.ru_stime:.0f} s of processors and at most {usage.ru_maxrss / 2**20:.1f} GiB in one compiler", flush=True)
    failures_folder = build.folder / "failures"  # written by tests/programs/launchers.cpp
    shutil.rmtree(failures_folder, ignore_errors=True)
    cache = Cache(build)
    headers = sorted(str(path.relative_to(INCLUDE)) for path in INCLUDE.rglob("*.hpp") if path.name != "src.hpp")
    jobs = []  # (group, name, function, arguments)
    for name in headers:
        jobs.append(("headers", name, check_header, (build, cache, name)))
    jobs.append(("headers", "all in two files of one program", check_program, (build, cache, headers)))
    jobs.append(("headers", "includes point down", check_rooms, (cache, sorted(str(path.relative_to(INCLUDE)) for path in INCLUDE.rglob("*.[hi]pp")))))
    if (formatter := ROOT / ".venv" / "bin" / "clang-format").exists():
        sources = [path for folder in ("include", "tests", "examples", "benchmarks") for path in sorted((ROOT / folder).rglob("*.[chi]pp"))]
        jobs.append(("layout", "clang-format", check_layout, (str(formatter), sources)))
    else:
        report.add(Result("layout", "clang-format", "skipped", 0, "no clang-format from PyPI in .venv"))
    jobs += [("packaging", name, check_package, (cache, build, name, function, files)) for name, function, files in packaging.checks(build)]
    jobs.append(("shared objects", "what a process has once, in two", check_shared_objects, (build, cache)))
    for path in sorted((ROOT / "tests" / "compile_fail").rglob("*.cpp")):
        name = str(path.relative_to(ROOT / "tests" / "compile_fail"))
        for case, expected in [(None, None), *cases_of(path.read_text())]:
            jobs.append(("must not compile", f"{name} {case or 'control'}", check_case,
                         (build, cache, path, case, expected)))
    if other := build.other_compiler():
        jobs.append(("other compiler", f"{pathlib.Path(other).name} compiles the examples", check_other_compiler, (build, cache, other, sorted((ROOT / "examples").glob("*.cpp")))))
    jobs.append(("benchmarks", "compile budget", check_compile_budget, (build,)))
    for path in sorted((ROOT / "benchmarks").glob("*.cpp")):
        jobs.append(("benchmarks", f"{path.stem} compiles", check_benchmark, (build, cache, path)))
    for page in [ROOT / "README.md", *sorted((ROOT / "examples" / "guide").glob("*.md"))]:
        for number, block in enumerate(programs_of(page), 1):
            jobs.append((page.name, f"program {number}", check_page, (build, cache, block)))

    def timed(job):
        start = time.monotonic()
        group, name, function, values = job
        try:
            status, message = function(*values)
        except Exception as error:  # one broken check is one failure, not the end of the others
            status, message = "failed", f"{type(error).__name__}: {error}"
        return Result(group, name, status, time.monotonic() - start, message)

    # [Note: compilers beside tests] Test cases mostly wait for each other's ranks, so the checks that compile run beside them, behind them.
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        compiled = [pool.submit(timed, job) for job in jobs if wanted(job[0], job[1]) and not options.programs_only]
        for program, group in (("tests/weft_plain_tests", "tests without torch"), ("tests/weft_tests", "tests")):
            if program not in build.failed:
                catch2(build, report, program, group, options.filter)
        for name, choices in processors().items():
            if "tests/weft_tests" not in build.failed and wanted("tests", f"[processor] {name}"):
                catch2(build, report, "tests/weft_tests", f"tests, {name}", "[processor]", choices)
        for result in compiled:
            report.add(result.result())
    cache.save(all_ran=not words)
    if (failures_folder.exists() or not words) and wanted("README.md", "table of failures"):
        report.add(timed(("README.md", "table of failures", check_failures, (failures_folder,))))

    for path in sorted((ROOT / "examples").glob("*.cpp")):
        if not wanted("examples", path.stem) or f"examples/{path.stem}" in build.failed:
            continue  # one that does not build is reported above
        try:
            runs, skip = runs_of(path.read_text())
        except ValueError as error:
            report.add(Result("examples", path.stem, "failed", 0, str(error)))
            continue
        if not runs:
            report.add(Result("examples", path.stem, "skipped" if skip else "failed", 0, skip or "says no `// run: ARGS`"))
        for example in runs:
            report.add(timed(("examples", f"{path.stem} {example.arguments}".strip(), check_example, (build, path, example))))
    if wanted("gpu", "tests/gpu/run.sh"):
        report.add(timed(("gpu", "tests/gpu/run.sh", check_gpu, ())))
    return report.finish(time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
