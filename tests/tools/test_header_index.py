#!/usr/bin/env python3
"""The index at the top of headroom.h names every header and only functions that exist."""
import re
import unittest
from pathlib import Path

INCLUDE = Path(__file__).resolve().parents[2] / "include"
HEADER = (INCLUDE / "headroom.h").read_text()
INDEX = HEADER.split("* INDEX\n", 1)[1].split("* NAMES", 1)[0]
NAMES = HEADER.split("* NAMES\n", 1)[1].split("* ENVIRONMENT", 1)[0]


def declared():
    text = "".join(path.read_text() for path in INCLUDE.glob("*.h"))
    return set(re.findall(r"^(?:HR_API|static inline)[^(;]*?\b(hr_[a-z0-9_]+)\(", text, re.M))


class Index(unittest.TestCase):
    def test_every_header_is_listed(self):
        self.assertEqual(set(re.findall(r"^ \*     (headroom\w*\.h)", INDEX, re.M)), {path.name for path in INCLUDE.glob("*.h")})

    def test_every_function_exists(self):
        functions = set(re.findall(r"\bhr_[a-z0-9_]+\b", INDEX + NAMES))
        self.assertGreater(len(functions), 30)
        self.assertEqual(functions - declared(), set())


if __name__ == "__main__":
    unittest.main()
