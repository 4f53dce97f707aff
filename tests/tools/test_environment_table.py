#!/usr/bin/env python3
"""Every variable that the library and the command read is in the tables of docs/environment.md, and the tables have no others."""
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for folder in ("src", "cli", "plugins/cuda") for path in sorted((ROOT / folder).rglob("*.[ch]"))]
# A name in a call, or a string that is only such a name: in a #define, or in an array for a loop.
READ = re.compile(r'(?:\benvironment|\bgetenv)\(\s*"([A-Z_]+)"|"(HEADROOM_[A-Z_]+|LC_[A-Z]+|LANG)"')


PYTHON_READ = re.compile(r'os\.environ(?:\.get)?[(\[]"([A-Z_]+)"')


def names_read_by_python():
    return {name for path in (ROOT / "python").rglob("*.py") for name in PYTHON_READ.findall(path.read_text())}


def names_read():
    found = {}
    for path in SOURCES:
        for match in READ.finditer(path.read_text()):
            found.setdefault(match.group(1) or match.group(2), path.relative_to(ROOT))
    for name in names_read_by_python():
        found.setdefault(name, "python")
    return found


def names_told():
    """First cells of table rows."""
    told = set()
    for line in (ROOT / "docs" / "environment.md").read_text().splitlines():
        if line.startswith("| `"):
            told.update(re.findall(r"`([A-Z_]+)`", line.split("|")[1]))
    return told


def names_in_header():
    """The list under ENVIRONMENT in headroom.h."""
    text = (ROOT / "include" / "headroom.h").read_text().split("* ENVIRONMENT\n", 1)[1].split("* RULES", 1)[0]
    return set(re.findall(r"^ \*     ([A-Z_]+)=", text, re.M))


class Table(unittest.TestCase):
    def test_all_that_is_read_is_told(self):
        read = names_read()
        self.assertIn("HEADROOM_TRACE", read)  # the pattern matches something
        missing = {name: str(path) for name, path in read.items() if name not in names_told()}
        self.assertEqual(missing, {}, "not in a table of docs/environment.md")

    def test_all_that_is_told_is_read(self):
        self.assertEqual(names_told() - set(names_read()), set(), "in docs/environment.md, and nothing reads it")

    def test_the_header_lists_all_settings_of_the_library(self):
        read = {name for name, path in names_read().items() if name.startswith("HEADROOM_") and str(path).startswith("src")}
        self.assertEqual(names_in_header(), read - {"HEADROOM_RUN_MARK"})  # only `headroom run` sets it


if __name__ == "__main__":
    unittest.main()
