#!/usr/bin/env python3
"""The pytest plug-in, in real runs of pytest: limits, leaks, mistakes in marks, out-of-memory reports, PyTorch."""
import re
import tempfile
import textwrap
import unittest
from pathlib import Path

import environment

BEGIN = "import pytest\nimport headroom as tf\nkept = []\n"


class Plugin(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_tests(self, program, *arguments, begin=BEGIN, **changes):
        (self.folder / "test_it.py").write_text(begin + textwrap.dedent(program))
        return environment.run_python("-m", "pytest", "-p", "headroom.pytest", "-p", "no:cacheprovider", f"--basetemp={self.folder / 'tmp'}", *arguments, "test_it.py", cwd=self.folder, **changes)

    def counts(self, result):
        return {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|error|errors|warning|warnings)\b", result.stdout.strip().split("\n")[-1])}

    def test_a_test_within_its_limits_passes_and_leaves_nothing(self):
        result = self.run_tests("""
            @pytest.mark.headroom(limit="2MiB", leaks=False)
            def test_it():
                x = tf.ones([256, 256])
                y = x @ x
        """)
        self.assertEqual((result.returncode, self.counts(result)), (0, {"passed": 1}), result.stdout)
        self.assertEqual(list(self.folder.rglob("*.hrt")), [])

    def test_a_peak_above_the_limit_fails_and_says_what_held_it(self):
        result = self.run_tests("""
            @pytest.mark.headroom(limit="1MiB")
            def test_it():
                with tf.name_scope("encoder"):
                    big = tf.ones([512, 1024])
        """)
        self.assertEqual((result.returncode, self.counts(result)), (1, {"failed": 1}))
        self.assertIn("2.0 MiB (2,097,152 bytes) were in use at the peak of the test, above its limit of 1MiB", result.stdout)
        self.assertRegex(result.stdout, r"encoder +2.0 MiB")
        path = re.search(r"recording: (.*\.hrt)", result.stdout).group(1)
        self.assertTrue(Path(path).exists())

    def test_memory_that_a_test_leaves_is_a_leak(self):
        result = self.run_tests("""
            @pytest.fixture
            def large():
                yield tf.ones([512, 512])      # outside of the test
            @pytest.mark.headroom(leaks=False)
            def test_leaks(large):
                gone = tf.ones([512, 512])
                with tf.name_scope("cache"):
                    kept.append(tf.ones([256, 256]))
            @pytest.mark.headroom(leaks="256KiB")
            def test_allowed():
                kept.append(tf.ones([256, 256]))
            @pytest.mark.headroom(limit="8MiB")
            def test_unchecked():
                kept.append(tf.ones([256, 256]))
            @pytest.mark.headroom(leaks=False)
            def test_cycle():
                cycle = [tf.ones([256, 256])]
                cycle.append(cycle)
        """)
        self.assertEqual((result.returncode, self.counts(result)), (1, {"failed": 1, "passed": 3}), result.stdout)
        self.assertIn("the test leaves 256.0 KiB (262,144 bytes) more in use than before it", result.stdout)
        self.assertRegex(result.stdout, r"full +256.0 KiB .* cache .* yes")

    def test_a_test_that_fails_by_itself_is_not_blamed_for_its_memory(self):
        result = self.run_tests("""
            @pytest.mark.headroom(limit="1KiB", leaks=False)
            def test_it():
                kept.append(tf.ones([256, 256]))
                assert False, "its own reason"
        """)
        self.assertEqual(self.counts(result), {"failed": 1})
        self.assertIn("its own reason", result.stdout)
        self.assertNotIn("above its limit", result.stdout)

    def test_mistakes_in_a_mark_show_a_good_one(self):
        result = self.run_tests("""
            @pytest.mark.headroom(limit="12 bananas")
            def test_limit(): pass
            @pytest.mark.headroom(leaks="some")
            def test_leaks(): pass
            @pytest.mark.headroom("2GiB")
            def test_position(): pass
            @pytest.mark.headroom(limits="2GiB")
            def test_name(): pass
            @pytest.mark.headroom(limit="2GiB", device="GPU:9")
            def test_device(): pass
        """)
        self.assertEqual(self.counts(result), {"errors": 5}, result.stdout)
        for text in ("limit is '12 bananas'; give a size such as '2GiB'", "leaks is 'some'; give False, True, or a size", "the mark headroom has ['2GiB']",
                     "the mark headroom has ['limits']", "there is no device \"GPU:9\""):
            self.assertIn(text, result.stdout)

    def test_a_mark_without_memory_is_a_warning(self):
        result = self.run_tests("@pytest.mark.headroom(limit='2GiB')\ndef test_it(): pass\n")
        self.assertEqual(self.counts(result), {"passed": 1, "warning": 1})
        self.assertIn("allocates nothing through Headroom", result.stdout)

    def test_a_recording_of_the_program_goes_on(self):
        result = self.run_tests("""
            @pytest.mark.headroom(limit="1KiB")
            def test_it():
                kept.append(tf.ones([256, 256]))
        """, HEADROOM_TRACE=str(self.folder / "mine.hrt"))
        self.assertEqual(self.counts(result), {"failed": 1})
        self.assertTrue((self.folder / "mine.hrt").exists())

    def test_an_error_for_lack_of_memory_comes_with_the_report(self):
        result = self.run_tests("""
            def test_it():
                with tf.Graph().as_default() as graph:
                    big = tf.ones([1024, 1024])
                with tf.Session(graph=graph, memory_limit="2MiB") as session:
                    session.run(big, options=tf.RunOptions(report_allocations_on_oom=True))
        """)
        self.assertEqual(self.counts(result), {"failed": 1})
        self.assertIn("Headroom's out-of-memory report", result.stdout)
        self.assertIn("The request alone is 2.0 MiB above the limit of 2.0 MiB", result.stdout)

    def test_nothing_is_loaded_without_a_mark(self):
        result = self.run_tests("def test_it():\n    import sys\n    assert not [name for name in sys.modules if name.startswith('headroom._runtime')]\n", begin="")
        self.assertEqual(self.counts(result), {"passed": 1}, result.stdout)
        self.assertIn("headroom(limit=None, leaks=True, device=None)", self.run_tests("", "--markers").stdout)

    def test_pytorch(self):
        begin = "import pytest\nimport torch\nkept = []\n"
        program = """
            @pytest.mark.headroom(limit="2MiB", leaks=False)
            def test_good():
                model = torch.nn.Linear(256, 256)
                model(torch.ones(4, 256)).sum().backward()
            @pytest.mark.headroom(limit="2MiB")
            def test_limit():
                torch.ones(1 << 20)
            @pytest.mark.headroom(leaks=False)
            def test_leak():
                kept.append(torch.ones(1 << 16))
        """
        result = self.run_tests(program, "--headroom-torch=cpu", begin=begin)
        self.assertEqual(self.counts(result), {"passed": 1, "failed": 2}, result.stdout)
        self.assertRegex(result.stdout, r"aten::ones +4.0 MiB")
        self.assertIn("leaves 256.0 KiB", result.stdout)
        (self.folder / "pytest.ini").write_text("[pytest]\nheadroom_torch = cpu\n")
        self.assertEqual(self.counts(self.run_tests(program, begin=begin)), {"passed": 1, "failed": 2})
        (self.folder / "pytest.ini").write_text("[pytest]\nheadroom_torch = tpu\n")
        result = self.run_tests(program, begin=begin)
        self.assertIn("headroom_torch is 'tpu'; give 'cpu' or 'cuda'", result.stderr)
        (self.folder / "pytest.ini").write_text("[pytest]\nheadroom_torch = cuda\n")
        result = self.run_tests(program, begin=begin)
        self.assertIn("headroom_torch is 'cuda', but Headroom cannot be installed: PyTorch finds no CUDA device", result.stderr)


if __name__ == "__main__":
    unittest.main()
