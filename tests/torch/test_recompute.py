#!/usr/bin/env python3
"""Results of ops that are dropped and computed again have the same bits as the first time: the rules, and steps that follow their plan. test_training.py trains
whole models so."""
import textwrap
import unittest

import environment

environment.skip_without_pytorch()

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


class Rules(unittest.TestCase):
    def run_program(self, program):
        result = environment.run_program(BEGIN + textwrap.dedent(program))
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

    def check_in_place(self, body, again=True, setup=""):
        """[body] makes y from x and z: the same with plain PyTorch, and with y dropped and computed again."""
        self.run_program(f"""
            def train(big):
                torch.manual_seed(3)
                x, z = torch.randn(MIB // 4), torch.randn(MIB // 4)
{textwrap.indent(textwrap.dedent(setup), " " * 16)}
{textwrap.indent(textwrap.dedent(body), " " * 16)}
                if big:
                    before = recomputes()
                    evict_all()
                digest = hash(tuple(y.tolist())), torch.rand(1).item()
                if big:
                    assert (recomputes() > before) == {again}, plugin.lms_stats()
                return digest
            expected = train(False)
            install()
            for _ in range(2):
                assert train(True) == expected
            plugin.check()
            assert plugin.lms_stats()["num_failed_recomputes"] == 0
        """)

    def test_ops_in_place_are_repeated_in_order(self):
        self.check_in_place("""
            y = x.exp()
            y.relu_()
            y += z
            y.mul_(0.5)
            y[: MIB // 8].sub_(z[MIB // 8 :])    # a part of it
            y.view(-1, 64).t()[3].fill_(7)
            y.clamp_(max=9).masked_fill_(z > 1, 0.25)
            y.addcmul_(y, z)                     # the result is an argument, too
        """)

    def test_arguments_of_ops_in_place_may_be_freed(self):
        self.check_in_place("""
            y = x.exp() + 1
            y += z.sin()
            y.mul_(z * 2)
        """)

    def test_what_an_op_fills_is_filled_again(self):
        self.check_in_place("""
            y = torch.empty(MIB // 4)
            y.copy_(x)
            y.mul_(2)
        """)
        self.check_in_place("""
            y = x.exp()
            y.zero_()
            y += z
        """)
        self.check_in_place("y = torch.nn.functional.dropout(x + 1, 0.3, inplace=True)")
        self.check_in_place("y = torch.empty(MIB // 4).bernoulli_(0.3)")

    def test_an_op_in_place_that_cannot_be_repeated_ends_the_recipe(self):
        self.check_in_place("""
            y = x.exp()
            y.index_add_(0, torch.arange(MIB // 4), z)
        """, again=False)
        self.check_in_place("""
            y = x.exp()
            y.copy_(torch.as_tensor(numpy_array))    # its memory may be changed without an op
        """, again=False, setup="import numpy; numpy_array = numpy.ones(MIB // 4, dtype=numpy.float32)")
        self.check_in_place("""
            y = x.exp()
            for i in range(20):
                y.add_(1)       # a recipe has 16 ops at most
        """, again=False)

    def test_an_op_in_place_that_fails_ends_the_recipe(self):
        self.check_in_place("""
            y = x.exp()
            try:
                y.add_(torch.ones(3))
            except RuntimeError:
                pass
            y.add_(1)
        """, again=False)

    def test_what_depends_on_a_result_is_computed_before_an_op_changes_it(self):
        self.run_program("""
            install()
            x = torch.rand(MIB // 4)
            y = x.exp()
            later = y.sin()
            expected = later.tolist(), (y + 1).tolist()
            evict_all()
            y.add_(1)
            evict_all()
            assert (later.tolist(), y.tolist()) == expected
            plugin.check()
        """)

    def test_batch_norm_and_relu_in_place_run_again_together(self):
        self.run_program("""
            def train(big):
                torch.manual_seed(3)
                model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(inplace=True), torch.nn.Conv2d(16, 16, 3),
                                            torch.nn.BatchNorm2d(16), torch.nn.ReLU6(inplace=True), torch.nn.Dropout(0.2, inplace=True))
                x = torch.rand(4, 3, 64, 64)
                y = model(x)
                if big:
                    evict_all()
                y.square().sum().backward()
                return [p.grad.double().sum().item() for p in model.parameters()], [b.double().sum().item() for b in model.buffers()]
            expected = train(False)
            install()
            assert train(True) == expected
            assert recomputes() >= 5, plugin.lms_stats()
            assert plugin.lms_stats()["num_failed_recomputes"] == 0
            plugin.check()
        """)

    def test_nothing_is_computed_again_when_that_is_off(self):
        self.run_program("""
            plugin.install(limit="24MiB", lms=True, device="cpu", movable="64KiB", recompute=False)
            x = torch.rand(MIB // 4)
            y = x.exp()
            y.relu_()
            evict_all()
            assert drops() == 0 and plugin.lms_stats()["num_evictions"] > 0
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
        result = environment.run_program(textwrap.dedent("""
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
