#!/usr/bin/env python3
"""Checks the architecture: which layer includes which, which calls the operating system, and that each header compiles alone.

    tools/check-layers.py

A layer of src/ includes only itself, the layers listed before it in LAYERS, and public headers. Only src/os includes the system's headers
for memory, threads and files, or calls malloc and similar functions.
"""
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LAYERS = ["base", "os", "trace", "device", "arena", "memory", "lms", "runtime", "profile"]
OS_HEADERS = {"sys/mman.h", "pthread.h", "threads.h", "unistd.h", "fcntl.h", "malloc.h", "sched.h", "sys/stat.h", "sys/syscall.h", "dlfcn.h"}
# A call of that name, but not of a member of a table (os->free), a member's declaration, or a longer name.
OS_CALL = re.compile(r"(?<![\w.>])(malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|strdup|strndup|free|mmap|munmap|getenv)\s*\(")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)

root = Path(__file__).resolve().parent.parent
problems = []


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def without_comments(text):
    """The text with comments and literals replaced by spaces, except in includes; line breaks are kept."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
                  lambda m: m.group(0) if is_include(text, m) else blank(m), text, flags=re.S)
    return text


def is_include(text, match):
    line = text[text.rfind("\n", 0, match.start()) + 1:match.start()]
    return re.fullmatch(r"[ \t]*#[ \t]*include[ \t]*", line) is not None


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def check_file(path):
    layer = path.relative_to(root / "src").parts[0]
    where = path.relative_to(root)
    text = without_comments(path.read_text())
    for match in INCLUDE.finditer(text):
        quote, name = match.groups()
        at = f"{where}:{line_of(text, match.start())}"
        if quote == "<":
            if layer != "os" and name in OS_HEADERS:
                problems.append(f"{at}: <{name}> belongs in src/os only; call through hr__os()")
            continue
        if (root / "include" / name).is_file():
            continue
        target = root / "src" / name if (root / "src" / name).is_file() else (path.parent / name).resolve()
        if not target.is_file() or not target.is_relative_to(root / "src"):
            problems.append(f'{at}: "{name}" is neither a public header nor one of src/')
            continue
        other = target.relative_to(root / "src").parts[0]
        if LAYERS.index(other) > LAYERS.index(layer):
            problems.append(f'{at}: {layer} includes "{name}", but {other} is a later layer; let {other} register a hook instead')
    if layer != "os":
        for match in OS_CALL.finditer(text):
            problems.append(f"{where}:{line_of(text, match.start())}: {match.group(1)}() belongs in src/os only; call through hr__os()")


def compiles_alone(job):
    path, language = job
    compiler, flags = ("cc", ["-std=gnu11", "-Wstrict-prototypes"]) if language == "c" else (CXX, ["-std=c++17"])
    include = ["-I", "include"] + ([] if path.is_relative_to(root / "include") else ["-I", "src"])
    source = f'#include "{path}"\n#include "{path}"\n'  # twice, to check the include guard
    done = subprocess.run([compiler, *flags, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *include, "-x", language, "-"],
                          input=source, text=True, capture_output=True, cwd=root)
    return None if done.returncode == 0 else f"{path.relative_to(root)} does not compile alone as {language}:\n{done.stderr}"


def first_command(*names):
    from shutil import which
    return next((name for name in names if which(name)), None)


CXX = first_command("c++", "g++", "clang++")

sources = sorted(p for p in (root / "src").rglob("*") if p.suffix in (".c", ".h"))
for source in sources:
    if source.relative_to(root / "src").parts[0] not in LAYERS:
        problems.append(f"{source.relative_to(root)}: no such layer; they are {', '.join(LAYERS)}")
    else:
        check_file(source)

public = sorted((root / "include").glob("*.h"))
jobs = [(p, "c") for p in public + [s for s in sources if s.suffix == ".h"]]
if CXX is None:
    problems.append("no C++ compiler to try the public headers with")
else:
    jobs += [(p, "c++") for p in public]
with ThreadPoolExecutor(os.cpu_count()) as pool:
    problems += [p for p in pool.map(compiles_alone, jobs) if p]

for problem in problems:
    print(f"check-layers: {problem}", file=sys.stderr)
if not problems:
    print(f"layers: {len(sources)} files in order; {len(jobs)} headers compile alone")
sys.exit(1 if problems else 0)
