#!/usr/bin/env python3
"""Checks the architecture: which layer may use which, that only one layer calls the operating system, that each header stands alone, and that a
type's name means one type.

    tools/check-layers.py [BUILD_FOLDER]

A layer of src/ uses only layers listed before it here: in #include, and in the symbols of its object files where a build folder is given. Public
headers may be included by all. Only src/core/os includes the system's headers for memory, threads and files, or calls malloc and its kin.

No name of a struct, union, enum or typedef is defined in two files of include/, src/ and cli/, not even where each is local to its .c file: a
debugger and a reader who searches for the name would find the wrong layout.
"""
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LAYERS = ["core/base", "core/os", "core/trace", "core/device", "core/arena", "core/memory", "core/lms", "core/record", "runtime", "analysis"]
STRANGERS = {"runtime", "analysis"}  # libraries of their own, which do not know each other
HOOKS = "hr__hooks_table"            # the one symbol that lower layers use from above (core/base/hooks.h)
OS = "core/os"
OS_HEADERS = {"sys/mman.h", "pthread.h", "threads.h", "unistd.h", "fcntl.h", "malloc.h", "sched.h", "sys/stat.h", "sys/syscall.h", "dlfcn.h"}
# A call of that name, but not of a member of a table (os->free), a member's declaration, or a longer name.
OS_CALL = re.compile(r"(?<![\w.>])(malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|strdup|strndup|free|mmap|munmap|getenv)\s*\(")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
TAG = re.compile(r"\b(?:struct|union|enum)\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?(\w+)\s*\{")
TYPEDEF = re.compile(r"\btypedef\b")
TOKEN = re.compile(r"\w+|[^\w\s]")

root = Path(__file__).resolve().parent.parent
problems = []


def layer_of(path):
    """The layer that a file of src/ belongs to: subfolders are part of their layer."""
    inside = path.relative_to(root / "src").as_posix()
    return next((layer for layer in LAYERS if inside.startswith(layer + "/")), None)


def may_use(layer, other):
    return LAYERS.index(other) <= LAYERS.index(layer) and not {layer, other} == STRANGERS


def check_objects(build):
    """The same by symbols: a declaration in the wrong place hides a call from the check of includes."""
    objects = {}
    for path in sorted((root / build).glob("CMakeFiles/headroom*_objects.dir/src/**/*.o")):
        source = root / "src" / path.as_posix().split("_objects.dir/src/")[1].removesuffix(".o")
        if source.is_file():  # it may have been moved since
            objects[path] = layer_of(source)
    if not objects:
        problems.append(f"no object files in {build}; build it first")
        return
    defined, used = {}, []
    listing = subprocess.run(["nm", "-A", "-g", "-P", *map(str, objects)], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        path, name, kind = line.split()[:3]
        path = Path(path.rstrip(":"))
        if kind in "Uw":
            used.append((path, name))
        else:
            defined[name] = objects[path]
    for path, name in used:
        layer, other = objects[path], defined.get(name)
        if other and name != HOOKS and not may_use(layer, other):
            problems.append(f"{path.name}: {layer} uses {name}, which {other} defines; let {other} register a hook instead (core/base/hooks.h)")
    return len(defined)


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
    layer = layer_of(path)
    where = path.relative_to(root)
    text = without_comments(path.read_text())
    for match in INCLUDE.finditer(text):
        quote, name = match.groups()
        at = f"{where}:{line_of(text, match.start())}"
        if quote == "<":
            if layer != OS and name in OS_HEADERS:
                problems.append(f"{at}: <{name}> belongs in src/{OS} only; call through hr__os()")
            continue
        if (root / "include" / name).is_file():
            continue
        target = root / "src" / name if (root / "src" / name).is_file() else (path.parent / name).resolve()
        if not target.is_file() or not target.is_relative_to(root / "src"):
            problems.append(f'{at}: "{name}" is neither a public header nor one of src/')
            continue
        other = layer_of(target)
        if not may_use(layer, other):
            problems.append(f'{at}: {layer} includes "{name}", but may not use {other}; let {other} register a hook instead (core/base/hooks.h)')
    if layer != OS:
        for match in OS_CALL.finditer(text):
            problems.append(f"{where}:{line_of(text, match.start())}: {match.group(1)}() belongs in src/{OS} only; call through hr__os()")


def typedef_names(text, position):
    """The names that the typedef declares whose text begins at [position]; none for `typedef struct x x`, which defines nothing."""
    before, flat, depth = ["", ""], [], 0  # flat: the tokens outside of brackets, and the name in (*name)
    for token in (match.group(0) for match in TOKEN.finditer(text, position)):
        if token == ";" and depth == 0:
            break
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
        elif depth == 0 or depth == 1 and before == ["(", "*"]:
            flat.append(token)
        before = [before[1], token]
    if "#" in flat or flat[0] in ("struct", "union", "enum") and flat[1:2] == flat[2:]:
        return []  # the name is made by a macro; a tag's own name
    declared = " ".join(token for token in flat if token != "__attribute__").split(",")
    return [re.findall(r"\w+", each)[-1] for each in declared]


def types_defined(text):
    """The names of the types that a file defines, and where."""
    for match in TAG.finditer(text):
        yield match.group(1), match.start()
    for match in TYPEDEF.finditer(text):
        for name in typedef_names(text, match.end()):
            yield name, match.start()


def check_types(paths):
    """Names each type that is defined in more than one file. Returns the number of types."""
    defined = {}
    for path in paths:
        text = without_comments(path.read_text())
        for name, position in types_defined(text):
            defined.setdefault(name, {}).setdefault(path, line_of(text, position))
    for name, places in sorted(defined.items()):
        if len(places) > 1:
            where = ", ".join(f"{path.relative_to(root)}:{line}" for path, line in places.items())
            problems.append(f"type {name} is defined {len(places)} times: {where}; name each after what it is in its module")
    return len(defined)


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
    if layer_of(source) is None:
        problems.append(f"{source.relative_to(root)}: no such layer; they are {', '.join(LAYERS)}")
    else:
        check_file(source)

symbols = check_objects(sys.argv[1]) if len(sys.argv) > 1 else 0

public = sorted((root / "include").glob("*.h"))
types = check_types(public + sources + sorted((root / "cli").rglob("*.[ch]")))
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
    print(f"layers: {len(sources)} files{f' and {symbols} symbols' if symbols else ''} in order; {len(jobs)} headers compile alone; {types} types have names of their own")
sys.exit(1 if problems else 0)
