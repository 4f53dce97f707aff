#!/usr/bin/env python3
"""torch.compile at a limit gives the losses and weights that it gives without Headroom, to the bit (compiled.py)."""
import json
import tempfile
import unittest

import environment

environment.skip_without_pytorch()
environment.skip_without_python_headers()


class Compile(unittest.TestCase):
    def test_compiled_graphs(self):
        results = []
        with tempfile.TemporaryDirectory() as folder:  # inductor's cache: compiled in the first run, loaded in the second
            for mode in ("plain", "8MB"):
                result = environment.run_python(environment.ROOT / "tests/torch/compiled.py", mode, TORCHINDUCTOR_CACHE_DIR=folder, TORCHINDUCTOR_COMPILE_THREADS="1")
                self.assertEqual(result.returncode, 0, result.stderr[-6000:])
                self.assertNotIn("Headroom", result.stderr)
                self.assertNotIn("global hooks", result.stderr)
                results.append(json.loads(result.stdout))
        plain, limited = results
        self.assertEqual(plain["losses"], limited["losses"])
        self.assertEqual(plain["digest"], limited["digest"])
        self.assertEqual((limited["graphs"], limited["breaks"]), (plain["graphs"], {}))
        self.assertGreater(limited["lms"]["num_evictions"], 6)
        self.assertEqual(limited["pinned"], 0)


if __name__ == "__main__":
    unittest.main()
