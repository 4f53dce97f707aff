#!/usr/bin/env python3
"""document_code.py, which runs the code of the documents, refuses what it cannot run and output that differs."""
import os
import tempfile
import unittest

from document_code import Failure, Reader, same_output


def read(text, missing=lambda block: None):
    with tempfile.TemporaryDirectory() as folder:
        return Reader(folder, dict(os.environ), [], missing).read(text)


class Blocks(unittest.TestCase):
    def test_output_is_compared(self):
        self.assertEqual(read("```sh\necho 12\n```\nprints\n```text\n12\n```\n"), {"run": 1, "compared": 1})
        self.assertEqual(read("```console\n$ echo a; echo b\na\n...\n$ echo c\nc\n```\n"), {"run": 1, "compared": 2})
        for text in ("```sh\necho 12\n```\n```text\n13\n```\n", "```console\n$ echo a\nb\n```\n", "```text\nof nothing\n```\n"):
            with self.assertRaises(Failure, msg=text):
                read(text)

    def test_what_fails_is_seen(self):
        for text in ("```sh\nfalse\ntrue\n```\n", "```console\n$ false\n```\n", "```sh\nnot-a-command\n```\n", "```c\nint main(void) { return 1; }\n```\n", "```c\nint main(void) { return x; }\n```\n",
                     "<!-- exit: 1 -->\n```sh\ntrue\n```\n"):
            with self.assertRaises(Failure, msg=text):
                read(text)
        read("<!-- exit: 1 -->\n```sh\nfalse\n```\n")
        read("```c\n#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n```\nIt prints\n```text\nhello\n```\n")

    def test_a_block_that_cannot_be_run_is_an_error_unless_it_is_marked(self):
        for text in ("```\necho\n```\n", "```yaml\na: 1\n```\n", "text\n\n    indented code\n", "<!-- not run: I do not like it -->\n```sh\nfalse\n```\n", "<!-- nothing -->\n```sh\ntrue\n```\n",
                     "```sh\ntrue\n"):
            with self.assertRaises(Failure, msg=text):
                read(text)
        self.assertEqual(read("<!-- not run: needs a card -->\n```sh\nfalse\n```\n```text\nwhat it would print\n```\n"), {"run": 0, "compared": 0, "not run: needs a card": 1})

    def test_a_saved_file_is_used(self):
        read("<!-- file: a.sh -->\n```sh\necho 1\n```\n```console\n$ bash a.sh\n1\n```\n")
        with self.assertRaises(Failure):
            read("<!-- file: a.sh -->\n```sh\necho 1\n```\n")

    def test_a_command_of_several_documents_runs_once_unless_it_writes(self):
        with tempfile.TemporaryDirectory() as folder:
            command, log = os.path.join(folder, "headroom"), os.path.join(folder, "log")
            with open(command, "w") as file:
                file.write(f"#!/bin/sh\necho run >>{log}\necho ran\n")
            os.chmod(command, 0o755)
            remembered = {}
            for count, text in ((1, "headroom run a"), (1, "headroom run a"), (2, "headroom run --trace x a"), (3, "headroom run --trace x a")):
                environment = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}")
                Reader(folder, environment, [], remembered=remembered).read(f"```console\n$ {text}\nran\n```\n")
                with open(log) as file:
                    self.assertEqual(len(file.readlines()), count, text)
            with self.assertRaises(Failure):  # another status than the one that was right before
                Reader(folder, environment, [], remembered=remembered).read("<!-- exit: 1 -->\n```console\n$ headroom run a\nran\n```\n")

    def test_what_is_missing_is_counted(self):
        self.assertEqual(read("```python\nimport torch\n```\n```text\n1\n```\n", lambda block: "no torch" if "torch" in block.text else None), {"run": 0, "compared": 0, "skipped: no torch": 1})


class Output(unittest.TestCase):
    def test_dots_stand_for_anything(self):
        self.assertTrue(same_output("a\n...\nz", "a\nb\nc\nz"))
        self.assertTrue(same_output("a ... z", "a b c z"))
        self.assertFalse(same_output("a\n...\nz", "a\nb"))
        self.assertFalse(same_output("a", "a\nb"))

    def test_numbers(self):
        self.assertTrue(same_output("loss 1.25 after 1.8 s, 3 steps", "loss 1.26 after 210 ms, 3 steps"))
        self.assertFalse(same_output("loss 1.25", "loss 1.45"))
        self.assertFalse(same_output("3 steps", "4 steps"))
        self.assertTrue(same_output("3 steps", "4 steps", vary=True))
        self.assertFalse(same_output("3 steps", "no steps", vary=True))


if __name__ == "__main__":
    unittest.main()
