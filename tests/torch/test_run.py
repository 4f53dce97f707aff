#!/usr/bin/env python3
"""`headroom run` with PyTorch programs that do not mention Headroom: limits, Large Model Support, traces, children, and what happens when it cannot work."""
import os
import shutil
import signal
import subprocess
import tempfile
import textwrap
import unittest
from pathlib import Path

import environment

environment.skip_without_pytorch()

COMMAND = os.environ["HEADROOM_COMMAND"]
TRAIN = """
import torch
torch.manual_seed(1)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)])    # 4 MiB each
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    loss = model(torch.randn(512, 1024)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
"""
STATS = """
import sys
if "headroom.torch" in sys.modules:
    plugin = sys.modules["headroom.torch"]
    plugin.check()
    print("limit", plugin.stats()["bytes_limit"], "evictions", plugin.lms_stats()["num_evictions"], "peak", plugin.stats()["peak_bytes_in_use"])
else:
    print("no plug-in")
"""


class Run(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def script(self, program, name="train.py"):
        path = self.folder / name
        path.write_text(textwrap.dedent(program))
        return str(path)

    def run_program(self, options, program, returncode=0, python_options=(), **changes):
        """Without PYTHONPATH and HEADROOM_LIBRARY_DIR: the command finds the package by itself."""
        env = environment.environment(TMPDIR=str(self.folder), **changes)
        for name in ("PYTHONPATH", "HEADROOM_LIBRARY_DIR"):
            if name not in changes:
                env.pop(name, None)
        result = subprocess.run([COMMAND, "run", *options, "--", environment.PYTHON, *python_options, self.script(program)], env=env, cwd=self.folder,
                                capture_output=True, text=True, timeout=600)
        self.assertEqual(result.returncode, returncode, result.stdout[-3000:] + result.stderr[-6000:])
        self.assertEqual([path.name for path in self.folder.glob("headroom-run-*")], [])
        return result

    def words(self, result):
        line = result.stdout.splitlines()[-1].split()
        return {line[i]: int(line[i + 1]) for i in range(0, len(line), 2)}

    def test_an_unmodified_program_trains_at_a_limit_with_the_same_result(self):
        plain = self.run_program(["--device", "none"], TRAIN + STATS)
        limited = self.run_program(["--limit", "64MB", "--lms", "--device", "cpu"], TRAIN + STATS)
        self.assertEqual(plain.stdout.splitlines()[1], "no plug-in")
        self.assertEqual(limited.stdout.splitlines()[0], plain.stdout.splitlines()[0])
        self.assertNotIn("had no effect", limited.stderr)
        words = self.words(limited)
        self.assertLessEqual(words["limit"], 64_000_000)
        self.assertLessEqual(words["peak"], words["limit"])
        self.assertGreater(words["evictions"], 0)

    def test_settings_of_headroom_lms_are_kept(self):
        result = self.run_program(["--limit", "64MB", "--lms", "--device", "cpu"], TRAIN + STATS, HEADROOM_LMS=f"spill_dir={self.folder},step_csv={self.folder}/steps.csv")
        self.assertGreater(self.words(result)["evictions"], 0)
        self.assertGreaterEqual(len((self.folder / "steps.csv").read_text().splitlines()), 4)

    def test_headroom_lms_alone_turns_it_on(self):
        result = self.run_program(["--limit", "64MB", "--device", "cpu"], TRAIN + STATS, HEADROOM_LMS="policy=lru")
        self.assertGreater(self.words(result)["evictions"], 0)

    def test_a_trace_has_the_ops_modules_and_steps_of_the_program(self):
        self.run_program(["--trace", "out.hrt", "--device", "cpu"], TRAIN)
        for view, expected in {"op": ["aten::addmm"], "scope": ["0", "7"], "peak": ["gradients"]}.items():
            report = subprocess.run([COMMAND, "report", "--json", "--view", view, str(self.folder / "out.hrt")], capture_output=True, text=True)
            self.assertEqual(report.returncode, 0, report.stderr)
            for name in expected:
                self.assertIn(f'"{name}"', report.stdout)

    def test_a_program_may_install_the_plugin_itself(self):
        install = """
import headroom.torch
headroom.torch.install(limit="32MB", device="cpu")
print("limit", headroom.torch.stats()["bytes_limit"], "lms", int(headroom.torch._lms))
"""
        paths = {"PYTHONPATH": str(environment.ROOT / "python"), "HEADROOM_LIBRARY_DIR": str(environment.BUILD)}
        for options, program, limit, lms in ((["--device", "none", "--limit", "1GB"], install, 32_000_000, 0),
                                             (["--device", "cpu", "--lms", "--limit", "1GB"], install, 32_000_000, 1),    # HEADROOM_LMS
                                             (["--device", "cpu", "--limit", "64MB"], "import torch" + install, 64_000_000, 0)):
            result = self.run_program(options, program, **paths)
            words = self.words(result)
            self.assertEqual(words["lms"], lms)
            self.assertTrue(limit - 65536 <= words["limit"] <= limit, words)
            self.assertEqual("settings are used, not those of this call" in result.stderr, limit == 64_000_000, result.stderr)

    def test_without_a_gpu_pytorch_keeps_its_allocator_and_one_line_says_so(self):
        for options, lines in ((["--lms"], 1), (["--limit", "64MB"], 1), ([], 0)):
            result = self.run_program(options, TRAIN + STATS, CUDA_VISIBLE_DEVICES="")
            self.assertIn("no plug-in", result.stdout)
            self.assertEqual(len(result.stderr.splitlines()), lines, result.stderr)
            if lines:
                self.assertIn("--device cpu", result.stderr)

    def test_a_failed_installation_is_one_line_and_the_program_runs_on(self):
        plain = self.run_program(["--device", "none"], TRAIN)
        for options, changes, reason in ((["--limit", "100TB"], {}, "above the host's memory"),
                                         (["--lms"], {"HEADROOM_LIBRARY_DIR": "/nowhere"}, "cannot load libheadroom"),
                                         ([], {"XDG_CACHE_HOME": str(self.folder), "PATH": "/nowhere", "CXX": ""}, "C++ compiler")):
            result = self.run_program([*options, "--device", "cpu"], TRAIN, **changes)
            self.assertEqual(result.stdout, plain.stdout)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertIn(reason, result.stderr)

    def test_a_setting_that_is_ignored_is_named(self):
        result = self.run_program(["--lms", "--limit", "64MB", "--device", "cpu"], TRAIN + STATS, HEADROOM_LMS="policy=none")
        self.assertGreater(self.words(result)["evictions"], 0)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn('no policy is named "none"', result.stderr)

    def test_lms_without_pytorch_is_told_at_the_end(self):
        result = self.run_program(["--lms"], "print('done')")
        self.assertEqual(result.stdout, "done\n")
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn("--lms had no effect", result.stderr)
        result = self.run_program(["--lms", "--device", "cpu"], "import torch", python_options=["-I"])
        self.assertIn("python -I", result.stderr)
        self.assertEqual(self.run_program(["--limit", "64MB"], "print('done')").stderr, "")

    def test_lms_keeps_the_exit_status_and_signals_of_the_program(self):
        self.assertEqual(self.run_program(["--lms"], "raise SystemExit(7)", returncode=7).returncode, 7)
        self.run_program(["--lms"], "import os, signal; os.kill(os.getpid(), signal.SIGTERM)", returncode=-signal.SIGTERM)
        self.run_program(["--lms"], """
            import os
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                raise SystemExit(0)
            raise SystemExit("a child that the program did not start")
        """)

    def test_a_program_that_looks_for_torch_first_gets_the_plugin_when_it_imports_it(self):
        result = self.run_program(["--device", "cpu"], """
            import importlib.util, sys
            assert importlib.util.find_spec("torch") is not None
            assert "torch" not in sys.modules and "headroom" not in sys.modules
            import torch.nn
            assert "headroom.torch" in sys.modules
            assert sys.modules["headroom.torch"].installed()
        """)
        self.assertEqual(result.stderr, "")

    def test_nothing_is_loaded_before_torch(self):
        result = self.run_program(["--device", "cpu"], "import sys; print(sorted(name for name in sys.modules if name.startswith(('headroom', 'ctypes', 'importlib.util'))))")
        bare = subprocess.run([environment.PYTHON, "-c", "import sys; print(sorted(name for name in sys.modules if name.startswith(('ctypes', 'importlib.util'))))"],
                              capture_output=True, text=True)
        self.assertEqual(result.stdout, bare.stdout)

    def test_the_sitecustomize_of_the_program_runs_too(self):
        other = self.folder / "other"
        other.mkdir()
        (other / "sitecustomize.py").write_text("value = 42\n")
        result = self.run_program(["--device", "cpu"], """
            import sitecustomize, sys
            print(sitecustomize.value, sitecustomize.__file__)
            assert not any(path.endswith("_start") for path in sys.path), sys.path
            import torch
            assert "headroom.torch" in sys.modules
        """, PYTHONPATH=str(other))
        self.assertEqual(result.stdout.split()[0], "42")
        (other / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
        result = self.run_program(["--device", "cpu"], "import torch, sys; assert 'headroom.torch' in sys.modules", PYTHONPATH=str(other))
        self.assertIn("theirs", result.stderr)

    def test_an_installed_command_finds_its_package(self):
        """The folders that `pip install .` makes."""
        package = self.folder / "lib" / "python3.11" / "site-packages" / "headroom"
        shutil.copytree(environment.ROOT / "python" / "headroom", package, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(environment.ROOT / "plugins", package / "plugins")
        shutil.copytree(environment.ROOT / "include", package / "include")
        (package / "lib").mkdir()
        shutil.copy(environment.BUILD / "libheadroom.so.0", package / "lib")
        (self.folder / "bin").mkdir()
        command = shutil.copy(COMMAND, self.folder / "bin")
        env = environment.environment(TMPDIR=str(self.folder))
        for name in ("PYTHONPATH", "HEADROOM_LIBRARY_DIR"):
            env.pop(name)
        program = self.script("import torch, sys; print(sys.modules['headroom'].__file__, sys.modules['headroom._library'].path())")
        result = subprocess.run([command, "run", "--device", "cpu", "--", environment.PYTHON, program], env=env, capture_output=True, text=True, timeout=600)
        self.assertEqual(result.stdout.split(), [str(package / "__init__.py"), str(package / "lib" / "libheadroom.so.0")], result.stderr)

    def test_children_are_treated_alike_unless_asked_otherwise(self):
        program = """
            import subprocess, sys
            subprocess.run([sys.executable, "-c", "import sys, torch; print('headroom.torch' in sys.modules)"], check=True)
        """
        self.assertEqual(self.run_program(["--device", "cpu"], program).stdout, "True\n")
        self.assertEqual(self.run_program(["--device", "cpu", "--no-children"], program).stdout, "False\n")

    def test_wrong_options_are_refused_before_the_program_starts(self):
        for options, text in ((["--device", "tpu"], "cuda, cpu or none"), (["--limit", "much"], "--limit"), (["--limit", "0"], "--limit is 0")):
            result = self.run_program(options, "raise SystemExit('started')", returncode=2)
            self.assertIn(text, result.stderr)
        result = self.run_program(["--device", "cpu"], "raise SystemExit('started')", returncode=2, HEADROOM_PYTHON_DIR="/nowhere")
        self.assertIn("pip install .", result.stderr)
        result = self.run_program(["--lms"], "", HEADROOM_PYTHON_DIR="/nowhere")
        self.assertIn("HEADROOM_PYTHON_DIR", result.stderr)
        result = subprocess.run([COMMAND, "run", "--lms", "--", "/nowhere/train"], capture_output=True, text=True)
        self.assertEqual((result.returncode, len(result.stderr.splitlines())), (127, 1), result.stderr)


if __name__ == "__main__":
    unittest.main()
