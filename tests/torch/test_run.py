#!/usr/bin/env python3
"""`headroom run` with PyTorch programs that do not mention Headroom: limits, Large Model Support, traces, children."""
import shutil
import subprocess
import unittest

import environment

environment.skip_without_pytorch()

from running import COMMAND, STATS, TRAIN, RunCase


class Run(RunCase):
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


if __name__ == "__main__":
    unittest.main()
