#!/usr/bin/env python3
"""tools/site-pages.py: every function of the headers and every command has a heading in the reference, and links lead to pages."""
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCED = re.compile(r"^```.*?^```", re.M | re.S)


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.temporary.name) / "pages"
        subprocess.run([sys.executable, ROOT / "tools" / "site-pages.py", os.environ["HEADROOM_COMMAND"], cls.folder], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def test_every_function_has_a_heading(self):
        for header in sorted((ROOT / "include").glob("*.h")):
            page = (self.folder / "reference" / f"{header.name}.md").read_text()
            declared = set(re.findall(r"^(?:HR_API|static inline)[^(;]*?\b(hr_[a-z0-9_]+)\(", header.read_text(), re.M))
            self.assertTrue(declared)
            # A heading names the first three; the block below it has all of them.
            shown = set(re.findall(r"\b(hr_\w+)\(", "".join(FENCED.findall(page))))
            self.assertEqual(declared - shown, set(), header.name)
            self.assertGreater(len(re.findall(r"^### ", page, re.M)), len(declared) // 4, header.name)

    def test_angle_brackets_are_text(self):
        self.assertIn("&lt;object>", (self.folder / "reference" / "headroom.h.md").read_text())
        for page in (self.folder / "reference").iterdir():
            self.assertNotRegex(re.sub("`[^`\n]*`", "", FENCED.sub("", page.read_text())), r"<\w", page.name)

    def test_every_command_has_a_heading(self):
        page = (self.folder / "reference" / "command.md").read_text()
        for name in ("demo", "run", "report", "plan", "replay", "top", "metrics"):
            self.assertIn(f"## headroom {name}\n", page)
        self.assertIn("--find-limit", page)

    def test_links_to_files_lead_to_pages(self):
        count = 0
        for page in self.folder.rglob("*.md"):
            for target in re.findall(r"\]\(([^)\s#]+)", FENCED.sub("", page.read_text())):
                if not re.match(r"[a-z]+:", target):
                    count += 1
                    self.assertTrue((page.parent / target).exists(), f"{page.relative_to(self.folder)}: {target}")
        self.assertGreater(count, 150)

    def test_every_document_is_in_the_navigation(self):
        listed = set(re.findall(r"([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
        made = {str(page.relative_to(self.folder)) for page in self.folder.rglob("*.md") if "source" not in page.relative_to(self.folder).parts}
        self.assertEqual(listed, made)


if __name__ == "__main__":
    unittest.main()
