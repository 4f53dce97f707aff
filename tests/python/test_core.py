#!/usr/bin/env python3
"""The Python package without a framework: sizes, statistics, exceptions, traces."""
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["HEADROOM_COMMAND"]).parent
sys.path.insert(0, str(ROOT / "python"))
os.environ["HEADROOM_LIBRARY_DIR"] = str(BUILD)

if not (BUILD / "libheadroom.so.0").exists():
    print("skipped: this build has no shared library")
    sys.exit(0)

import headroom
from headroom import _stats


class Sizes(unittest.TestCase):
    def test_units_are_decimal_or_binary(self):
        for text, size in {"26GB": 26_000_000_000, "1.5GiB": 1_610_612_736, "512MiB": 536_870_912, "2K": 2048, " 7 b ": 7, "4096": 4096, ".5KB": 500}.items():
            self.assertEqual(headroom.parse_size(text), size, text)
        self.assertEqual(headroom.parse_size(4096), 4096)

    def test_other_texts_are_refused(self):
        for text in ("", "GB", "26GX", "-1GB", "1e9", "26 GB more", "1..5GB", "0x10"):
            with self.assertRaisesRegex(ValueError, "not a size|negative"):
                headroom.parse_size(text)
        for value in (-1,):
            with self.assertRaises(ValueError):
                headroom.parse_size(value)
        for value in (True, 1.5, None, b"1GB"):
            with self.assertRaises(TypeError):
                headroom.parse_size(value)

    def test_format(self):
        self.assertEqual([headroom.format_size(size) for size in (0, 1023, 1024, 3 << 20, 5 << 50)], ["0 B", "1023 B", "1.0 KiB", "3.0 MiB", "5120.0 TiB"])


class Statistics(unittest.TestCase):
    def test_a_device_has_all_statistics_of_the_header(self):
        header = (ROOT / "include" / "headroom.h").read_text().split("#define HR_STATS_TABLE(X)", 1)[1].split("\n\n", 1)[0]
        expected = re.findall(r"^\s*X\((\w+),", header, re.M)
        self.assertGreater(len(expected), 30)
        stats = headroom.device_stats("GPU:0")
        self.assertEqual([name for name in expected if name not in stats], [])
        self.assertIn("bytes_in_use", headroom.device_summary("GPU:0"))

    def test_fields_of_lms_are_those_of_the_header(self):
        header = (ROOT / "include" / "headroom_lms.h").read_text().split("#define HR_LMS_STATS_TABLE(X)", 1)[1].split("\n\n", 1)[0]
        self.assertEqual(_stats.LMS_FIELDS, re.findall(r"^\s*X\((\w+),", header, re.M))

    def test_memory_info(self):
        self.assertEqual(headroom.memory_info(), {"current": 0, "peak": 0})
        headroom.reset_stats("GPU:0")


class Exceptions(unittest.TestCase):
    def test_statuses_are_exceptions_of_python(self):
        with self.assertRaises(headroom.NoSuchDevice) as caught:
            headroom.memory_info("GPU:77")
        self.assertEqual(caught.exception.status, "HR_NO_SUCH_DEVICE")
        self.assertIsInstance(caught.exception, LookupError)
        self.assertIn("GPU:77", str(caught.exception))
        with self.assertRaises(headroom.InvalidArgument) as caught:
            headroom.stop_trace()
        self.assertIsInstance(caught.exception, ValueError)

    def test_a_missing_library_says_what_to_do(self):
        environment = dict(os.environ, HEADROOM_LIBRARY_DIR="/nowhere", PYTHONPATH=str(ROOT / "python"))
        result = subprocess.run([sys.executable, "-c", "import headroom"], env=environment, capture_output=True, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn("HEADROOM_LIBRARY_DIR", result.stderr)


class Traces(unittest.TestCase):
    def test_a_trace_is_readable_by_the_command(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.hrt"
            with headroom.trace(path):
                with self.assertRaises(headroom.InUse):
                    headroom.start_trace(Path(folder) / "second.hrt")
            with self.assertRaises(headroom.FileError):
                headroom.start_trace(path)  # it exists
            subprocess.run([os.environ["HEADROOM_COMMAND"], "report", str(path)], check=True, capture_output=True)


if __name__ == "__main__":
    unittest.main()
