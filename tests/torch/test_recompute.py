#!/usr/bin/env python3
"""Results of ops that are dropped and computed again have the same bits as the first time.

In the mode "recompute" of scenarios.py everything that has a recipe is dropped when memory is short, instead of copied to the host, and `verify` compares
each result with a checksum of the first one."""
import json
import os
import textwrap
import unittest

import environment

environment.skip_without_pytorch()

SCALE = float(os.environ.get("HR_TEST_SCALE", "1"))
STEPS = round(20 * SCALE) if SCALE > 1 else 6
# The part of the peak that the limit leaves (test_training.py).
PARTS = {"gpt": 0.5, "mixed": 0.5, "exceptions": 0.5, "saved": 0.5}
if SCALE > 1:
    PARTS.update({"conv": 0.5, "accumulate": 0.5, "shapes": 0.5, "lstm": 0.57})

BEGIN = """
import ctypes
import torch
from headroom._library import library
import headroom.torch as plugin
MIB = 1 << 20
def install(**options):
    plugin.install(limit="24MiB", lms=True, device="cpu", movable="64KiB", verify=True, policy="lru", **{"_always_recompute": True, **options})
def evict_all():
    library.load().hr_lms_reclaim_inactive(ctypes.c_uint64(plugin._plugin.headroom_torch_allocator()), 0, None)
def drops():
    return plugin.lms_stats()["num_drops"]
def recomputes():
    return plugin.lms_stats()["num_recomputes"]
"""


def scenarios(*arguments):
    result = environment.run_python(environment.ROOT / "tests/torch/scenarios.py", *arguments, timeout=36000)
    if result.returncode:
        raise AssertionError(f"scenarios.py {' '.join(map(str, arguments))} ended with {result.returncode}:\n{result.stderr[-6000:]}")
    return json.loads(result.stdout)


class Scenarios(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        names = ",".join(PARTS)
        cls.plain = scenarios(names, STEPS, "plain")
        cls.peak = scenarios(names, 4, "peak")

    def check(self, name):
        limit = int(self.peak[name]["stats"]["peak_bytes_in_use"] * PARTS[name])
        result = scenarios(name, STEPS, "recompute", limit)[name]
        for step, (expected, loss) in enumerate(zip(self.plain[name]["losses"], result["losses"])):
            self.assertEqual(expected, loss, f"the loss of step {step}")
        self.assertEqual(self.plain[name]["digest"], result["digest"])
        self.assertGreater(result["lms"]["num_recomputes"], STEPS)
        self.assertEqual(result["lms"]["num_failed_recomputes"], 0)
        self.assertEqual(result["pinned"], 0, "pins that nobody gave back")


for scenario in PARTS:
    setattr(Scenarios, f"test_{scenario}", lambda self, name=scenario: self.check(name))


class Rules(unittest.TestCase):
    def run_program(self, program):
        result = environment.run_python("-c", BEGIN + textwrap.dedent(program))
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-6000:])

    def test_a_dropped_result_is_computed_again(self):
        self.run_program("""
            install()
            x = torch.arange(MIB // 4, dtype=torch.float32) / MIB
            y = x.exp()
            evict_all()
            assert drops() >= 1, plugin.lms_stats()
            assert torch.equal(y, (torch.arange(MIB // 4, dtype=torch.float32) / MIB).exp())
            assert recomputes() >= 1, plugin.lms_stats()
            plugin.check()
        """)

    def test_a_write_to_an_argument_comes_after_what_depends_on_it(self):
        self.run_program("""
            install()
            x = torch.rand(MIB // 4)
            expected = [v.item() for v in (x.exp() + 1)[:9]]
            y = x.exp() + 1                 # exp() is a tensor that the program has freed
            evict_all()
            before = recomputes()
            x.zero_()
            assert recomputes() > before, "y was dropped, and is computed before x is written"
            assert [v.item() for v in y[:9]] == expected
        """)

    def test_a_write_to_a_small_argument_comes_after_what_depends_on_it(self):
        for results in ("(x * small[0])", "(x * small[0]).exp()"):    # the second one depends on it through a tensor that the program has freed
            self.run_program(f"""
                install()
                x, small = torch.rand(MIB // 4), torch.rand(16)
                y = {results}
                expected = [v.item() for v in y[:9]]    # tolist() counts as a write, which ends the recipe
                evict_all()
                before = recomputes()
                assert drops() > 0, plugin.lms_stats()
                small.zero_()
                assert recomputes() > before, plugin.lms_stats()
                assert [v.item() for v in y[:9]] == expected
                plugin.check()
            """)

    def test_dropout_draws_the_same_numbers_again_and_later_ops_other_ones(self):
        self.run_program("""
            def draws(big):
                torch.manual_seed(3)
                x = torch.ones(MIB // 4)
                y = torch.nn.functional.dropout(x, 0.5)
                if big:
                    evict_all()
                first, second = y.sum().item(), torch.nn.functional.dropout(x, 0.5).sum().item()
                return first, second, torch.rand(1).item()
            expected = draws(False)
            install()
            assert draws(True) == expected
            assert recomputes() >= 1, plugin.lms_stats()
        """)

    def test_batch_norm_updates_its_statistics_once(self):
        self.run_program("""
            def train(big):
                torch.manual_seed(3)
                norm = torch.nn.BatchNorm2d(16)
                y = norm(torch.rand(4, 16, 64, 64))
                if big:
                    evict_all()
                total = y.double().square().sum().item()
                return total, norm.running_mean.tolist(), norm.running_var.tolist()
            expected = train(False)
            install()
            assert train(True) == expected
            assert recomputes() >= 1, plugin.lms_stats()
        """)

    def test_a_result_that_the_program_writes_has_no_recipe(self):
        self.run_program("""
            install()
            x = torch.rand(MIB // 4)
            y = x.exp()
            y.add_(1)
            expected = y[:9].tolist()
            evict_all()
            assert y[:9].tolist() == expected
        """)

    def test_an_argument_whose_address_has_left_pytorch_gives_no_recipe(self):
        self.run_program("""
            install()
            x = torch.rand(MIB // 4)
            array = x.numpy()
            y = x.exp()
            expected = y[:9].tolist()
            array[:] = 0
            evict_all()
            assert y[:9].tolist() == expected
        """)

    def test_autocast_is_not_needed_to_repeat_an_op(self):
        self.run_program("""
            def train():
                torch.manual_seed(5)
                model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512))
                x = torch.rand(1024, 512)
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    product = torch.addmm(torch.ones(512), x, model[0].weight)
                    y = model(product)
                if plugin.installed():
                    evict_all()
                y.float().square().mean().backward()
                return [parameter.grad.double().sum().item() for parameter in model.parameters()]
            expected = train()
            install()
            assert train() == expected
            assert recomputes() >= 2, plugin.lms_stats()
            plugin.check()
        """)

    def test_nothing_is_recomputed_unless_asked_for(self):
        self.run_program("""
            install(_always_recompute=False, recompute=False)
            y = torch.rand(MIB // 4).exp()
            evict_all()
            y.sum().item()
            assert drops() == 0 and plugin.lms_stats()["num_restores"] > 0 and plugin.lms_stats()["num_recipes"] == 0, plugin.lms_stats()
        """)

    def test_checkpoints_of_pytorch_work_beside_it(self):
        self.run_program("""
            from torch.utils.checkpoint import checkpoint
            def train():
                torch.manual_seed(5)
                layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(6))
                x = torch.rand(512, 512)
                for layer in layers:
                    x = checkpoint(layer, x, use_reentrant=False)
                x.square().mean().backward()
                return [parameter.grad.double().sum().item() for parameter in layers.parameters()]
            expected = train()
            install()
            assert train() == expected
        """)


class Steps(unittest.TestCase):
    def test_steps_follow_their_plan(self):
        """At half the peak and with a slow link: three steps in a row recompute and move what the plan says, no byte more, and miss nothing."""
        result = environment.run_python("-c", textwrap.dedent("""
            import torch
            from torch import nn
            import headroom.torch as plugin
            torch.set_num_threads(1)
            plugin.install(limit="20MB", lms=True, device="cpu", movable="128KiB", recompute=True)
            class Block(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.norm, self.first, self.second = nn.LayerNorm(128), nn.Linear(128, 128), nn.Linear(128, 128)
                def forward(self, x):
                    h = self.first(self.norm(x))
                    h = 0.5 * h * (1 + torch.tanh(0.79 * (h + 0.044 * torch.pow(h, 3))))
                    return x + torch.nn.functional.dropout(self.second(h), 0.1)
            model = nn.ModuleList(Block() for _ in range(6))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
            def step():
                x = torch.randn(2048, 128)
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    y = x
                    for block in model:
                        y = block(y)
                    loss = (y.float() - x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            followed, seen = [], []
            for number in range(40):
                before = plugin.lms_stats()
                step()
                now = plugin.lms_stats()
                added = {name: now[name] - before[name] for name in now}
                seen.append({name: added[name] for name in ("num_prefetch_misses", "num_mismatches", "num_drops", "num_recomputes", "num_planned_recomputes", "bytes_copied_in", "bytes_copied_out")})
                followed.append(number > 1 and added["num_recomputes"] > 0 and added["num_drops"] == added["num_recomputes"] == added["num_planned_recomputes"] and
                                added["num_prefetch_misses"] == added["num_mismatches"] == 0 and
                                added["bytes_copied_in"] == now["plan_bytes_in"] and added["bytes_copied_out"] == now["plan_bytes_out"])
                if followed[-3:] == [True] * 3:
                    break
            assert followed[-3:] == [True] * 3, seen
            plugin.check()
            print(number)
        """), HEADROOM_EMULATED="page=64KiB,link=25MB/s")
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-6000:])


if __name__ == "__main__":
    unittest.main()
