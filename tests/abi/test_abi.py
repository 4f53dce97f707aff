#!/usr/bin/env python3
"""Programs of older versions run with this library.

tests/abi/<version>/ has the public headers of each release that programs may have been compiled against, and a program. The headers
of today must contain all that those have, unchanged; structs with struct_size may be longer. The program, compiled against its own
headers, must run with the shared libraries of this build.

    test_abi.py --freeze 0.2    keeps today's headers as those of version 0.2; write its program.c, or copy the previous one
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
NOW = HERE.parents[1] / "include"
VERSIONS = sorted(path for path in HERE.iterdir() if (path / "include").is_dir())
BUILD = Path(os.environ.get("HEADROOM_COMMAND", HERE.parents[1] / "build" / "headroom")).resolve().parent


def all_headers(folder):
    return "".join(f'#include "{path.name}"\n' for path in sorted(folder.glob("*.h")))


def compiler(*arguments, folder):
    return subprocess.run([*arguments, "-I", str(folder), "-xc", "-"], input=all_headers(folder), capture_output=True, text=True, check=True).stdout


def enum_values(node):
    value, found = -1, {}
    for constant in node["inner"]:
        if constant["kind"] == "EnumConstantDecl":
            explicit = constant.get("inner", [{}])[0].get("value")
            value = int(explicit) if explicit is not None else value + 1
            found[constant["name"]] = value
    return found


def surface(folder):
    """All declarations of the headers of [folder]: functions, typedefs, structs with their fields, enum constants, macros."""
    found = {"functions": {}, "typedefs": {}, "structs": {}, "constants": {}, "macros": {}}
    for node in json.loads(compiler("clang", "-fsyntax-only", "-Xclang", "-ast-dump=json", folder=folder))["inner"]:
        name = node.get("name", "")
        if node["kind"] == "EnumDecl":
            found["constants"].update({k: v for k, v in enum_values(node).items() if k.startswith("HR_")})
        if not name.startswith("hr_"):
            continue
        if node["kind"] == "FunctionDecl":
            found["functions"][name] = node["type"]["qualType"]
        elif node["kind"] == "TypedefDecl":
            found["typedefs"][name] = node["type"]["qualType"]
        elif node["kind"] == "RecordDecl" and "inner" in node:
            found["structs"][name] = [(f["name"], f["type"]["qualType"]) for f in node["inner"] if f["kind"] == "FieldDecl"]
    for name, text in re.findall(r"^#define (HR_[A-Z0-9_]+) (.*)$", compiler("clang", "-dM", "-E", folder=folder), re.M):
        if not name.startswith("HR_VERSION_"):
            found["macros"][name] = text
    return found


def grown(before, now):
    """Whether a program that was compiled with the struct [before] may be given, or may give, the struct [now]."""
    if "struct_size" in [name for name, _ in before[:2]]:
        return now[: len(before)] == before
    return now == before


def differences(before, now):
    found = []
    for kind, names in before.items():
        for name, text in names.items():
            other = now[kind].get(name)
            if other is None:
                found.append(f"{kind}: {name} is missing")
            elif other != text and not (kind == "structs" and grown(text, other)):
                found.append(f"{kind}: {name} was {text} and is {other}")
    return found


@unittest.skipUnless(shutil.which("clang"), "needs clang")
class Headers(unittest.TestCase):
    def test_old_declarations_are_all_there(self):
        self.assertTrue(VERSIONS)
        now = surface(NOW)
        for version in VERSIONS:
            before = surface(version / "include")
            self.assertGreater(len(before["functions"]), 200)
            self.assertGreater(len(before["structs"]), 30)
            self.assertGreater(before["constants"].get("HR_OUT_OF_MEMORY", 0), 0)
            self.assertIn("HR_STREAM_HOST", before["macros"])
            self.assertEqual(differences(before, now), [], f"programs of {version.name} would break")

    def changed(self, file, old, new):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(NOW, folder, dirs_exist_ok=True)
            path = Path(folder) / file
            text = path.read_text()
            self.assertEqual(text.count(old), 1, old)
            path.write_text(text.replace(old, new))
            return differences(surface(NOW), surface(Path(folder)))

    def test_changes_that_break_programs_are_found(self):
        found = self.changed("headroom.h", "typedef struct hr_memory_info {\n\tsize_t struct_size;", "typedef struct hr_memory_info {\n\tsize_t struct_size;\n\tuint64_t more;")
        self.assertEqual(len(found), 1)
        self.assertIn("structs: hr_memory_info", found[0])
        found = self.changed("headroom.h", "typedef uint32_t hr_name;", "typedef uint64_t hr_name;")
        self.assertIn("typedefs: hr_name was uint32_t and is uint64_t", found)
        found = self.changed("headroom_lms.h", "} hr_pin;", "\tint more;\n} hr_pin;")
        self.assertIn("structs: hr_pin", found[0])
        found = self.changed("headroom.h", "X(NOT_READY, 22,", "X(NOT_READY, 30,")
        self.assertEqual(found, ["constants: HR_NOT_READY was 22 and is 30"])
        found = self.changed("headroom.h", "hr_allocator_trim(hr_allocator allocator, uint64_t *released)", "hr_allocator_trim(hr_allocator allocator)")
        self.assertIn("functions: hr_allocator_trim", found[0])
        found = self.changed("headroom_record.h", "#define HR_STACK_OTHER 1u", "#define HR_STACK_OTHER 2u")
        self.assertEqual(found, ["macros: HR_STACK_OTHER was 1u and is 2u"])

    def test_a_longer_struct_and_new_functions_are_no_change(self):
        self.assertEqual(self.changed("headroom.h", "} hr_memory_info;", "\tuint64_t more;\n} hr_memory_info;"), [])
        self.assertEqual(self.changed("headroom.h", "typedef uint32_t hr_name;", "typedef uint32_t hr_name;\nHR_API int hr_new_call(void);"), [])


@unittest.skipUnless((BUILD / "libheadroom.so").exists(), "this build has no shared libraries")
class Programs(unittest.TestCase):
    def test_old_programs_run(self):
        for version in VERSIONS:
            with tempfile.TemporaryDirectory() as work:
                program = Path(work) / "program"
                libraries = ["-lheadroom_analysis", "-lheadroom_runtime", "-lheadroom"]
                subprocess.run([shutil.which("cc") or "gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", str(version / "include"), str(version / "program.c"),
                                "-L", str(BUILD), *libraries, "-o", str(program)], check=True)
                environment = {**os.environ, "LD_LIBRARY_PATH": str(BUILD)}
                result = subprocess.run([str(program), str(Path(work) / "logs")], env=environment, capture_output=True, text=True)
                self.assertEqual((result.returncode, result.stderr), (0, ""), f"the program of {version.name}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--freeze"]:
        shutil.copytree(NOW, HERE / sys.argv[2] / "include", dirs_exist_ok=True)
    else:
        unittest.main()
