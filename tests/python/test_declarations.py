#!/usr/bin/env python3
"""The C declarations of the Python package are those of the headers: text, sizes, offsets, statuses."""
import ctypes
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from environment import ROOT, use

use()
from headroom import _library, errors
from headroom._c.structs import STRUCTS

HEADER = (ROOT / "include" / "headroom.h").read_text()


class Declarations(unittest.TestCase):
    def test_the_text_is_that_of_the_headers(self):
        result = subprocess.run([sys.executable, ROOT / "tools" / "python-declarations.py"], capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_a_changed_header_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            for part in ("include", "tools", "python/headroom/_c"):
                shutil.copytree(ROOT / part, Path(folder) / part)
            for old, new in (("hr_device_count(void)", "hr_device_count(int kind)"), ("int64_t peak;", "int32_t peak;")):
                path = Path(folder) / "include" / "headroom.h"
                path.write_text(HEADER.replace(old, new))
                result = subprocess.run([sys.executable, Path(folder) / "tools" / "python-declarations.py"], capture_output=True, text=True)
                self.assertEqual(result.returncode, 1, old)
                self.assertIn("differ from the headers", result.stderr)

    def test_structs_have_the_sizes_and_offsets_of_the_compiler(self):
        lines, expected = [], []
        for name in STRUCTS:
            kind = _library.struct_type(name)
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            expected.append(f"{name} {ctypes.sizeof(kind)}")
            for field, _ in kind._fields_:
                lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));')
                expected.append(f"{name}.{field} {getattr(kind, field).offset} {getattr(kind, field).size}")
        includes = "".join(f'#include "{path.name}"\n' for path in sorted((ROOT / "include").glob("*.h")))
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "sizes.c"
            source.write_text(f"#include <stdio.h>\n{includes}int main(void) {{\n" + "\n".join(lines) + "\nreturn 0; }\n")
            subprocess.run(["cc", "-w", "-I", ROOT / "include", source, "-o", Path(folder) / "sizes"], check=True)
            printed = subprocess.run([Path(folder) / "sizes"], capture_output=True, text=True, check=True).stdout.split("\n")
        self.assertGreater(len(expected), 40)
        self.assertEqual(printed[:-1], expected)

    def test_every_function_is_in_its_library(self):
        for each in (_library.library, _library.runtime, _library.analysis):
            for name in each._prototypes:
                self.assertTrue(callable(getattr(each, name)), name)

    def test_every_status_that_has_an_exception_exists(self):
        statuses = {f"HR_{name}" for name in re.findall(r"^\tX\((\w+), \d+, \"", HEADER, re.M)}
        self.assertGreater(len(statuses), 20)
        self.assertEqual(set(errors.BY_STATUS) - statuses, set())

    def test_a_function_that_is_not_declared_says_where_to_add_it(self):
        with self.assertRaisesRegex(AttributeError, "functions.py"):
            _library.library.hr_nothing


if __name__ == "__main__":
    unittest.main()
