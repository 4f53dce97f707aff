#!/usr/bin/env python3
"""Installations that cannot work: each raises an exception of the right type that says what to do, and PyTorch keeps its own allocator."""
import tempfile
import textwrap
import unittest

import environment

environment.skip_without_pytorch()

BEGIN = """
import resource
import torch
import headroom
import headroom.torch as plugin
def refused(kind, text, **options):
    try:
        plugin.install(**{"device": "cpu", **options})
    except kind as error:
        assert text in str(error), error
    else:
        raise SystemExit(f"no {kind}")
    assert not plugin.installed()
    assert torch.ones(1 << 20).sum().item() == 1 << 20
    model = torch.nn.Linear(8, 8)
    model(torch.ones(4, 8)).sum().backward()
"""


class Install(unittest.TestCase):
    def run_program(self, program, **changes):
        result = environment.run_program(BEGIN + textwrap.dedent(program), **changes)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-6000:])
        return result

    def test_refused_installations_say_what_to_do(self):
        self.run_program("""
            refused(ValueError, "above the host's memory", limit="100TB")
            refused(ValueError, "host_limit", limit="64MB", lms=True, host_limit="100TB")
            refused(ValueError, "below one page", limit="1KB")
            refused(ValueError, "limit is '12 bananas'; give a number of bytes, or a size such as '26GB'", limit="12 bananas")
            refused(TypeError, "movable is 1.5", limit="64MB", movable=1.5)
            refused(headroom.FileError, "/nowhere", limit="64MB", lms=True, spill_dir="/nowhere")
            refused(RuntimeError, "use device='cpu'", device="cuda")
            torch.cuda.is_available = lambda: True
            torch.cuda.is_initialized = lambda: True
            refused(RuntimeError, "before the first CUDA tensor", device="cuda")
            version, torch.__version__ = torch.__version__, "2.8.1+cu128"
            refused(plugin.UnsupportedVersion, "2.9 or newer, and this is 2.8.1+cu128", device="cuda")
            refused(plugin.BuildError, "pip install --upgrade torch")
            torch.__version__ = version
            plugin.install(device="cpu", limit="64MB", lms=True)      # after all of them
            assert plugin.stats()["bytes_limit"] <= 64_100_000
            refused = None
            try:
                plugin.install(device="cpu")
            except plugin.AlreadyInstalled as error:
                assert "cannot be changed" in str(error)
            assert torch.ones(1 << 20).sum().item() == 1 << 20
        """)

    def test_without_a_compiler_the_message_says_what_to_install(self):
        with tempfile.TemporaryDirectory() as folder:
            result = self.run_program("refused(plugin.BuildError, 'apt-get install g++')", XDG_CACHE_HOME=folder, PATH=folder, CXX="")
            self.assertEqual(result.stderr, "")

    def test_a_compiler_that_fails_is_quoted(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_program("refused(plugin.BuildError, 'of Headroom\\'s PyTorch plug-in failed')", XDG_CACHE_HOME=folder, CXX="false")


if __name__ == "__main__":
    unittest.main()
