#!/usr/bin/env python3
"""What memory is for, without a line of the program: weights, inputs, activations, gradients, optimizer, workspace, and the paths of modules."""
import json
import os
import subprocess
import tempfile
import textwrap
import unittest
from pathlib import Path

import environment

environment.skip_without_pytorch()

BEGIN = """
import ctypes
import torch
import headroom
import headroom.torch as plugin
MIB = 1 << 20
held = plugin.holders
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(512, 1024, bias=False), torch.nn.ReLU())    # 2 MiB
        self.head = torch.nn.Linear(1024, 512, bias=False)                                              # 2 MiB
        self.register_buffer("table", torch.ones(MIB // 4))                                             # 1 MiB
    def forward(self, x):
        return self.head(self.encoder(x)) + self.table[:512]
"""


class Names(unittest.TestCase):
    def run_program(self, program, **changes):
        for lms in (False, True):
            text = BEGIN + f"\nplugin.install(limit='256MB', lms={lms}, device='cpu', movable='64KiB')\nlms = {lms}\n" + textwrap.dedent(program)
            result = environment.run_program(text, **changes)
            self.assertEqual(result.returncode, 0, f"lms={lms}\n" + result.stdout[-3000:] + result.stderr[-6000:])

    def test_each_phase_of_a_step_has_its_tag(self):
        self.run_program("""
            model = Net()
            assert held()["weights"] == 5 * MIB, held()
            batch = torch.randn(1024, 512)    # 2 MiB
            assert held()["inputs"] == 2 * MIB, held()
            optimizer = torch.optim.Adam(model.parameters())
            loss = model(batch).square().mean()
            by_tag = held()
            assert by_tag["weights"] == 5 * MIB and by_tag["inputs"] == 2 * MIB, by_tag
            # relu's output 4 MiB, linear's output before it is freed, and what square() keeps: 2 MiB
            assert by_tag["activations"] >= 6 * MIB, by_tag
            loss.backward()
            by_tag = held()
            assert by_tag["gradients"] == 4 * MIB, by_tag
            assert by_tag.get("activations", 0) < MIB, by_tag
            optimizer.step()
            by_tag = held()
            assert 8 * MIB <= by_tag["optimizer"] < 8 * MIB + 65536, by_tag    # two moments of 4 MiB, and counters
            assert by_tag["weights"] == 5 * MIB, by_tag
            second = torch.randn(512, 512)    # 1 MiB, after the update
            assert held()["inputs"] == 3 * MIB, held()
        """)

    def test_weights_have_the_path_of_their_module(self):
        self.run_program("""
            model = Net()
            model(torch.randn(4, 512))
            by_scope = held("scope")
            assert by_scope["encoder.0"] >= 2 * MIB and by_scope["head"] >= 2 * MIB and by_scope["Net"] >= MIB, by_scope
        """)

    def test_weights_that_are_converted_or_replaced_stay_weights(self):
        self.run_program("""
            model = Net().double()
            assert held()["weights"] == 10 * MIB, held()
            model.load_state_dict({name: torch.zeros_like(value) for name, value in model.state_dict().items()}, assign=True)
            assert held()["weights"] == 10 * MIB, held()
            model.head = torch.nn.Linear(1024, 1024, bias=False)    # 4 MiB instead of 4 MiB
            assert held()["weights"] == 10 * MIB, held()
        """)

    def test_arguments_of_the_outermost_module_are_inputs(self):
        self.run_program("""
            model = Net()
            for _ in range(2):                # two forwards without an update in between
                batch = torch.randn(1024, 512)
                model(batch).mean().backward()
                assert held()["inputs"] == 2 * MIB, held()
        """)

    def test_arguments_by_name_are_inputs_and_may_have_any_name(self):
        self.run_program("""
            class Named(Net):
                def forward(self, *, module):
                    return super().forward(module)
            model = Named()
            for _ in range(2):                # the second batch is made after a forward, so its tag is not that of the phase
                batch = torch.randn(1024, 512)
                model(module=batch).mean().backward()
                assert held()["inputs"] == 2 * MIB, held()
        """)

    def test_a_forward_that_raises_leaves_no_scope_behind(self):
        self.run_program("""
            class Raises(torch.nn.Module):
                def forward(self, x):
                    raise KeyError("forward")
            model = torch.nn.Sequential(torch.nn.Sequential(Raises()), torch.nn.Identity())
            for _ in range(2):
                try:
                    model(torch.ones(4))
                except KeyError:
                    pass
            outside = torch.ones(MIB)         # 4 MiB
            assert held("scope")[""] >= 4 * MIB, held("scope")
        """)

    def test_an_evicted_weight_keeps_its_tag(self):
        result = environment.run_program(BEGIN + textwrap.dedent("""
            plugin.install(limit="16MB", lms=True, device="cpu", movable="64KiB")
            model = Net()
            model(torch.randn(4, 512))
            del_me = torch.ones(13 * MIB // 4)      # evicts
            assert plugin.lms_stats()["num_evictions"] > 0
            del del_me
            model(torch.randn(4, 512))
            assert held()["weights"] >= 4 * MIB, held()
        """))
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-6000:])

    def test_memory_that_never_becomes_a_tensor_is_workspace(self):
        """As the workspaces of cuBLAS: a library takes memory inside an op, and keeps it."""
        result = environment.run_program(BEGIN + textwrap.dedent("""
            import os
            plugin.install(limit="64MB", lms=True, device="cpu", movable="64KiB")
            c10 = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
            c10._ZN3c1015GetCPUAllocatorEv.restype = ctypes.c_void_p
            allocator = c10._ZN3c1015GetCPUAllocatorEv()
            methods = ctypes.cast(ctypes.cast(allocator, ctypes.POINTER(ctypes.c_void_p))[0], ctypes.POINTER(ctypes.c_void_p))
            allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(methods[2])    # after two destructors
            kept = ctypes.create_string_buffer(64)    # the DataPtr
            library = torch.library.Library("test", "DEF")
            library.define("multiply(Tensor x) -> Tensor")
            def multiply(x):
                allocate(ctypes.addressof(kept), allocator, 3 * MIB)
                return x * 2
            library.impl("multiply", multiply, "CPU")
            result = torch.ops.test.multiply(torch.ones(MIB // 4))
            assert held()["workspace"] == 3 * MIB, held()
            result.add_(1)
            assert held()["workspace"] == 3 * MIB and result[0].item() == 3.0, held()
            os._exit(0)    # the workspace is never freed
        """))
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-6000:])

    def test_lazy_modules_and_modules_without_tensors_work(self):
        self.run_program("""
            model = torch.nn.Sequential(torch.nn.LazyLinear(1024, bias=False), torch.nn.Identity())
            model(torch.randn(4, 512))
            model(torch.randn(4, 512))
            assert held()["weights"] == 2 * MIB, held()
            torch.nn.Identity()("no tensor")
            torch.nn.Linear(4, 4, device="meta")
        """)

    def test_the_peak_view_of_a_profile_has_the_tags(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.hrt"
            self.run_program(f"""
                model = Net()
                optimizer = torch.optim.Adam(model.parameters())
                path = {str(path)!r} + str(int(lms))
                with plugin.profile(path):
                    for _ in range(2):
                        optimizer.zero_grad()
                        model(torch.randn(1024, 512)).square().mean().backward()
                        optimizer.step()
            """)
            for lms in "01":
                report = subprocess.run([os.environ["HEADROOM_COMMAND"], "report", "--json", "--view", "peak", f"{path}{lms}"], capture_output=True, text=True)
                self.assertEqual(report.returncode, 0, report.stderr)
                rows = json.loads(report.stdout)["reports"][0]["by_tag"]["rows"]
                tags = {row["tag"]: row["bytes"] for row in rows}
                self.assertEqual(tags["weights"], 5 << 20)
                self.assertLessEqual({"weights", "inputs", "optimizer", "gradients"}, set(tags))


if __name__ == "__main__":
    unittest.main()
