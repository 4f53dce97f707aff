#!/usr/bin/env python3
"""`headroom run` with PyTorch programs that do not mention Headroom: limits, Large Model Support, traces, children."""
import json
import shutil
import subprocess
import time
import unittest
from pathlib import Path

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

    def test_top_has_programs_of_the_plugin_and_others_in_one_table(self):
        cuda = Path(COMMAND).parent / "tests" / "cuda" / "cuda_program"
        if not cuda.exists() or not (Path(COMMAND).parent / "libheadroom_cuda.so").exists():
            self.skipTest("there is no program of CUDA")
        program = "import torch, time\nkept = torch.ones(1 << 20)\nprint(flush=True)\ntime.sleep(300)\n"
        common = environment.environment(TMPDIR=str(self.folder), XDG_RUNTIME_DIR=str(self.folder), LD_LIBRARY_PATH=str(cuda.parents[2] / "fake_cuda" / "whole"))
        without_driver = {name: value for name, value in common.items() if name != "LD_LIBRARY_PATH"}
        processes = [subprocess.Popen([COMMAND, "run", "--device", "cpu", "--", environment.PYTHON, self.script(program)], env=without_driver, cwd=self.folder, stdout=subprocess.DEVNULL),
                     subprocess.Popen([COMMAND, "run", "--", str(cuda), "proc", "start", "alloc:0:123456", "sleep:0:300000"],
                                      env={name: value for name, value in common.items() if name != "HEADROOM_CUDA"}, stdout=subprocess.DEVNULL)]
        self.addCleanup(lambda: [(process.kill(), process.wait()) for process in processes])
        seen, until = {}, time.monotonic() + 200
        while time.monotonic() < until and not (4 << 20 <= sum(seen.get(processes[0].pid, [0])) and seen.get(processes[1].pid) == [123456]):
            shown = json.loads(subprocess.run([COMMAND, "top", "--once", "--json"], env=without_driver, capture_output=True, text=True).stdout)["programs"]
            seen = {p["process"]: [d["bytes_in_use"] for d in p["devices"] if d["bytes_in_use"]] for p in shown}
            time.sleep(0.2)
        self.assertGreaterEqual(sum(seen.get(processes[0].pid, [0])), 4 << 20)
        self.assertEqual(seen.get(processes[1].pid), [123456])

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
