#!/usr/bin/env python3
"""Programs that are hard to stand in front of (hostile.c): they do the same with and without `headroom run`, and nothing is lost or left in the
statistics."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cuda_run import EMULATOR, LIBRARY, PROGRAMS, Run, environment, needs_command, start  # noqa: E402

OPTIONS = [("--observe",), ("--manage",), ("--observe", "--limit", "100MiB"), ("--observe", "--callers", "--trace", "%p-%n.hrt"),
           ("--manage", "--uses", "--trace", "%p-%n.hrt", "--stacks", "8")]
if EMULATOR:
    OPTIONS = OPTIONS[:2]


class Hostile(Run):
    def same(self, scenario, options=OPTIONS, **extra):
        command = [PROGRAMS / "cuda_hostile", scenario]
        plain = start(list(map(str, command)), environment(**extra))
        self.assertEqual((plain.returncode, plain.stderr), (0, ""))
        self.assertTrue(plain.stdout.endswith("live 0\nstats 0\nend\n") or scenario == "early", plain.stdout)
        for words in options:
            with self.subTest(words):
                named = [str(self.folder / word) if word.endswith(".hrt") else word for word in words]
                # Reports of refused requests go to files.
                result = self.under(command, *named, HOSTILE_MANAGED="1", HEADROOM_OOM_REPORT=str(self.folder / "oom-%p-%n"), **extra)
                self.assertEqual((result.returncode, result.stdout, result.stderr), (0, plain.stdout, ""))

    def test_threads_that_end_while_others_allocate(self):
        self.same("short_threads")

    def test_a_thread_with_little_stack(self):
        self.same("little_stack")

    def test_a_driver_that_is_closed(self):
        self.same("close")

    def test_children_that_use_cuda_before_their_parent(self):
        self.same("fork_first")

    @unittest.skipIf(EMULATOR, "QEMU 7.2 fails an assertion of its own when a process with threads forks")
    def test_a_fork_while_threads_allocate(self):
        self.same("fork_among_threads")

    @unittest.skipIf(EMULATOR, "as the test before")
    def test_a_process_that_ends_while_its_threads_allocate(self):
        self.same("exit_among_threads")

    @needs_command
    def test_children_that_are_other_programs(self):
        self.same("exec")

    def test_system_calls_that_are_interrupted(self):
        self.same("signals")

    def test_odd_searches_find_what_they_find(self):
        for version in ("11040", "12040", "13000", "14000"):
            for symbols in ({}, {"FAKE_CUDA_SYMBOLS": "1"}):
                self.same("odd_searches", options=OPTIONS[:2], FAKE_CUDA_VERSION=version, **symbols)

    def test_a_signature_of_a_later_driver_is_left_alone(self):
        self.same("later_signature", options=OPTIONS[:2], FAKE_CUDA_VERSION="14000", FAKE_CUDA_LATER="1")

    def test_names_with_suffixes_are_seen(self):
        self.same("symbol_names", options=OPTIONS[:2], FAKE_CUDA_SYMBOLS="1")

    def test_before_main_and_after_it(self):
        self.same("early")

    def test_very_many_blocks(self):
        self.same("many", options=OPTIONS[:2])

    def test_mappings_that_end_together(self):
        self.same("mappings")

    def test_off_means_that_deepbind_works(self):
        # The symbol of a library is bound to its own definition, as it is without Headroom.
        self.same("deepbind", options=[], **{})
        for run in ("0", ""):
            result = start([str(PROGRAMS / "cuda_hostile"), "deepbind"], environment(LD_PRELOAD=str(LIBRARY), HEADROOM_RUN=run))
            self.assertEqual(result.stdout.splitlines()[0], "bound to its own" if run == "0" else "bound to the program's")


if __name__ == "__main__":
    unittest.main()
