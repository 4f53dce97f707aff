#!/usr/bin/env python3
"""The PyTorch plug-in: installation, statistics, out of memory, names, addresses. Each test is a program of its own, because a process has one allocator."""
import json
import os
import signal
import subprocess
import tempfile
import textwrap
import unittest
from pathlib import Path

import environment

environment.skip_without_pytorch()

BEGIN = """
import torch
import headroom
import headroom.torch as plugin
def install(limit="64MB", lms=True, **options):
    plugin.install(limit=limit, lms=lms, device="cpu", movable="64KiB", **options)
def pressure():
    "Evicts everything that can be evicted."
    size = plugin.stats()["bytes_limit"] * 92 // 100 // 4
    torch.ones(size).sum()
"""


class Plugin(unittest.TestCase):
    def run_program(self, program, returncode=0, begin=BEGIN, **changes):
        result = environment.run_program(begin + textwrap.dedent(program), **changes)
        self.assertEqual(result.returncode, returncode, result.stdout[-3000:] + result.stderr[-6000:])
        return result

    def test_statistics_follow_tensors(self):
        self.run_program("""
            install(limit=None, lms=False)
            before = plugin.stats()["bytes_in_use"]
            tensor = torch.empty(1 << 20)
            assert plugin.stats()["bytes_in_use"] == before + (4 << 20)
            del tensor
            assert plugin.stats()["bytes_in_use"] == before
            assert plugin.stats()["peak_bytes_in_use"] >= before + (4 << 20)
            empty = torch.empty(0)
            assert empty.data_ptr() == 0 and plugin.stats()["bytes_in_use"] == before
            assert plugin.lms_stats()["num_tensors"] == 0
        """)

    def test_out_of_memory_is_pytorchs_error_with_a_report(self):
        for lms in (False, True):
            self.run_program(f"""
                install(lms={lms}, ops=True)
                kept = torch.nn.Linear(512, 512)
                try:
                    torch.ones(1 << 25)
                    raise SystemExit("no error")
                except torch.OutOfMemoryError as error:
                    text = str(error)
                    assert "aten::" in text and "verdict:" in text, text
                    assert "128.0 MiB" in plugin.oom_report(error), plugin.oom_report(error)
                    assert plugin.oom_report(error, as_json=True)["request"]["bytes"] >= 1 << 27
                assert torch.equal(torch.ones(1 << 18), torch.full((1 << 18,), 1.0))
                try:
                    plugin.oom_report(ValueError("other"))
                except ValueError as error:
                    assert "no report" in str(error)
            """)

    def test_ops_are_named_only_where_asked_for(self):
        """Announcing ops takes time for each of them; an allocator without Large Model Support must not."""
        self.run_program("""
            import os, tempfile
            install(limit=None, lms=False)
            net = torch.nn.Linear(512, 512)
            kept = net(torch.ones(64, 512))
            assert not plugin.holders("op").get("aten::addmm") and "weights" in plugin.holders("tag"), plugin.holders("op")
            with tempfile.TemporaryDirectory() as folder:
                with plugin.profile(os.path.join(folder, "run.hrt")):
                    also = net(torch.ones(64, 512))
            assert plugin.holders("op")["aten::addmm"] == also.untyped_storage().nbytes(), plugin.holders("op")
            del also
            after = net(torch.ones(64, 512))
            assert not plugin.holders("op").get("aten::addmm")
        """)

    def test_an_op_that_allocates_nothing_fails_and_leaves_its_tensors_intact(self):
        self.run_program("""
            install(limit="16MB")
            a, b, c = (torch.full((1 << 20,), float(i)) for i in range(3))   # 4 MiB each
            small = torch.full((1 << 10,), 5.0)
            kept = torch.full((1 << 20,), 9.0)
            plugin.pin(kept)
            d = torch.full((1 << 20,), 7.0)
            try:
                torch._foreach_add_([a, b, c], [d, d, d])
                raise SystemExit("no error")
            except RuntimeError as error:
                assert "Headroom: out of memory" in str(error), error
            for tensor, value in ((a, 0.0), (b, 1.0), (c, 2.0), (d, 7.0), (kept, 9.0)):
                assert tensor.min().item() == tensor.max().item() == value, value
            assert a.add_(d).max().item() == 7.0
            del a, b, c, d, kept, tensor
            assert plugin._plugin.headroom_torch_pinned_records() == 0
        """)

    def test_an_op_that_allocates_nothing_runs_on_host_copies_where_the_front_says_so(self):
        self.run_program("""
            install(limit="16MB", _rests_on_copy=True)
            a, b, c = (torch.full((1 << 20,), float(i)) for i in range(3))   # 4 MiB each
            kept = torch.full((1 << 20,), 9.0)
            plugin.pin(kept)
            d = torch.full((1 << 20,), 7.0)
            for i in range(3):
                torch._foreach_add_([a, b, c], [d, d, d])
            assert plugin.lms_stats()["num_ops_on_host"] == 3, plugin.lms_stats()
            for tensor, value in ((a, 21.0), (b, 22.0), (c, 23.0), (d, 7.0), (kept, 9.0)):
                assert tensor.min().item() == tensor.max().item() == value, value
            try:
                torch._foreach_add([a, b, c], [d, d, d])    # needs new memory
                raise SystemExit("no error")
            except torch.OutOfMemoryError as error:
                assert "Headroom: out of memory" in str(error), error
            assert plugin.lms_stats()["num_ops_on_host"] == 3
            for tensor, value in ((a, 21.0), (b, 22.0), (c, 23.0), (d, 7.0), (kept, 9.0)):
                assert tensor.min().item() == tensor.max().item() == value, value
            del a, b, c, d, kept, tensor
            assert plugin._plugin.headroom_torch_pinned_records() == 0
        """)

    def test_mistakes_of_installation_have_clear_errors(self):
        self.run_program("""
            def raises(kind, text, function, *args, **options):
                try:
                    function(*args, **options)
                except kind as error:
                    assert text in str(error), error
                else:
                    raise SystemExit(f"no {kind}")
            raises(plugin.NotInstalled, "install()", plugin.stats)
            raises(ValueError, "'mps'", plugin.install, device="mps")
            raises(ValueError, "limit is 'much'; give", plugin.install, device="cpu", limit="much")
            raises(headroom.InvalidArgument, "policy", plugin.install, device="cpu", limit="64MB", lms=True, policy="none")
            assert torch.ones(1 << 20).sum().item() == 1 << 20    # PyTorch's own allocator
            raises(RuntimeError, "no CUDA device", plugin.install, device="cuda")
        """)
        self.run_program("""
            install()
            try:
                install()
            except plugin.AlreadyInstalled:
                raise SystemExit(0)
            raise SystemExit("installed twice")
        """)

    def test_without_a_compiler_the_message_says_what_to_install(self):
        with tempfile.TemporaryDirectory() as folder:
            result = self.run_program("install()", returncode=1, XDG_CACHE_HOME=folder, PATH=folder, CXX="")
            self.assertIn("apt-get install g++", result.stderr)

    def test_an_access_that_no_op_announced_faults(self):
        self.run_program("""
            import ctypes
            install(limit=None)
            tensor = torch.ones(1 << 20)
            tensor.add_(1)
            ctypes.string_at(torch._C.TensorBase.data_ptr(tensor), 1)    # not the wrapped data_ptr
        """, returncode=-signal.SIGSEGV)

    def test_an_evicted_storage_points_at_its_host_copy_where_the_front_says_so(self):
        """As on a GPU: a read that no op announced is right, whether the tensor is resident, evicted, prefetched or its copy was dropped."""
        self.run_program("""
            import ctypes
            install(_rests_on_copy=True)
            tensors = [torch.full((1 << 18,), float(i)) for i in range(24)]
            def read(tensor):    # without an op
                address = torch._C.TensorBase.data_ptr(tensor)
                return ctypes.c_float.from_address(address).value, ctypes.c_float.from_address(address + 4 * (tensor.numel() - 1)).value
            for round in range(4):
                for i, tensor in enumerate(tensors):
                    tensor.add_(100)
                pressure()
                for i, tensor in enumerate(tensors):
                    assert read(tensor) == (i + 100.0 * (round + 1),) * 2, (round, i, read(tensor))
            assert plugin.lms_stats()["num_evictions"] >= 24
            for i, tensor in enumerate(tensors):
                assert tensor.sum().item() == (i + 400) * (1 << 18)
            plugin.check()
        """)

    def test_tensors_whose_address_was_taken_stay(self):
        self.run_program("""
            import ctypes
            install()
            tensor = torch.arange(1 << 20, dtype=torch.float32)
            other = torch.arange(1 << 20, dtype=torch.float32)
            array = tensor.numpy()
            address = tensor.data_ptr()
            pressure()
            assert plugin.lms_stats()["num_evictions"] > 0
            assert tensor.data_ptr() == address and array[12345] == 12345
            array[7] = -1
            pressure()
            assert tensor[7].item() == -1
            assert other.tolist()[99999] == 99999
            assert other.untyped_storage().nbytes() == 4 << 20
            del tensor, array
            assert plugin._plugin.headroom_torch_pinned_records() == 0
        """)

    def test_tensors_exported_by_dlpack_stay(self):
        self.run_program("""
            import torch.utils.dlpack
            install()
            functions = [torch.to_dlpack, torch.utils.dlpack.to_dlpack, torch._C._to_dlpack, lambda tensor: torch._C._to_dlpack(data=tensor),
                         torch.Tensor.__dlpack__]
            if hasattr(torch._C, "_to_dlpack_versioned"):
                functions += [torch._C._to_dlpack_versioned, lambda tensor: tensor.__dlpack__(max_version=(1, 0))]
            copying = [lambda tensor: tensor.__dlpack__(copy=True), lambda tensor: tensor.__dlpack__(dl_device=(1, 0), copy=True)]
            for function in functions + copying:
                tensor = torch.arange(1 << 20, dtype=torch.float32)
                tensor.add_(1)
                pressure()
                other = torch.from_dlpack(function(tensor))
                pressure()
                assert other[77777].item() == 77778, function
                other[5] = 123    # Headroom does not know of this storage
                pressure()
                assert tensor[77777].item() == 77778 and other[5].item() == 123, function
                assert tensor[5].item() == (6 if function in copying else 123), function
            del tensor, other
            assert plugin._plugin.headroom_torch_pinned_records() == 0
            try:
                torch.to_dlpack(1)
            except TypeError:
                raise SystemExit(0)
            raise SystemExit("no error")
        """)

    def test_graphs_are_wrapped_after_a_lookup_and_a_failed_import(self):
        self.run_program("""
            import importlib.util, os, sys, tempfile
            from headroom.torch import _compiled, _imports
            with tempfile.TemporaryDirectory() as folder:
                sys.path.insert(0, folder)
                with open(os.path.join(folder, "stand_in.py"), "w") as file:
                    file.write("import os\\nif 'FAILS' in os.environ: raise OSError\\nclass CompiledFxGraph:\\n    def __call__(self, inputs): return [inputs[0] + 1]\\n")
                _compiled.MODULE = "stand_in"
                install()
                assert importlib.util.find_spec("stand_in").name == "stand_in"
                os.environ["FAILS"] = "1"
                try:
                    import stand_in
                    raise SystemExit("no error")
                except OSError:
                    pass
                del os.environ["FAILS"]
                import stand_in
            assert hasattr(stand_in.CompiledFxGraph.__call__, "__wrapped__")
            assert not hasattr(stand_in.CompiledFxGraph.__call__.__wrapped__, "__wrapped__")
            assert not any(isinstance(finder, _imports.AfterImport) and finder.name == "stand_in" for finder in sys.meta_path)
            assert stand_in.CompiledFxGraph()([torch.ones(1 << 20)])[0].sum().item() == 2 << 20
        """)

    def test_memory_that_is_filled_without_an_op_stays_until_it_is_used(self):
        self.run_program("""
            install()
            numbers = list(range(300000))
            tensor = torch.tensor(numbers)
            pressure()
            assert tensor.sum().item() == sum(numbers)
            pressure()
            assert tensor[299999].item() == 299999
            tensor.resize_(600000)
            assert tensor[:300000].sum().item() == sum(numbers)
            shared = torch.ones(1 << 18).share_memory_()
            assert shared.sum().item() == 1 << 18
        """)

    def test_sparse_tensors_and_lists_are_announced(self):
        self.run_program("""
            install()
            embedding = torch.nn.Embedding(4096, 256, sparse=True)
            optimizer = torch.optim.SparseAdam(embedding.parameters())
            for _ in range(3):
                embedding(torch.randint(0, 4096, (64, 32))).square().mean().backward()
                pressure()
                optimizer.step()
                optimizer.zero_grad()
            parts = torch.ones(1 << 20).split(1 << 18)
            assert torch.cat(parts).sum().item() == 1 << 20
            assert sum(part.sum().item() for part in torch.unbind(torch.stack(parts))) == 1 << 20
        """)

    def test_writes_that_schemas_do_not_declare_are_known(self):
        self.run_program("""
            install(verify=True)
            norm = torch.nn.BatchNorm1d(1 << 16)    # running statistics of 256 KiB
            for _ in range(3):
                norm(torch.randn(8, 1 << 16)).sum().backward()
                pressure()
            assert norm.running_mean.abs().max().item() > 0 and norm.num_batches_tracked.item() == 3
            plugin.check()
        """)

    def test_verify_finds_a_write_that_was_announced_as_a_read(self):
        self.run_program("""
            import ctypes
            install(verify=True)
            library = torch.library.Library("test", "DEF")
            library.define("scribble(Tensor x) -> int")
            def scribble(x):
                ctypes.memset(torch._C.TensorBase.data_ptr(x), 1, 4)
                return 0
            library.impl("scribble", scribble, "CPU")
            tensor = torch.zeros(1 << 20)
            pressure()
            torch.ops.test.scribble(tensor)
            try:
                plugin.check()
            except headroom.Error as error:
                assert "wrote what it said it reads" in str(error), error
                raise SystemExit(0)
            raise SystemExit("not found")
        """)

    def test_headers_of_pytorchs_version_of_cuda_are_preferred(self):
        self.run_program("""
            import os, tempfile
            from pathlib import Path
            from headroom.torch import _build
            with tempfile.TemporaryDirectory() as folder:
                def headers(name, version):
                    path = Path(folder) / name / "include"
                    path.mkdir(parents=True)
                    (path / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\\n")
                    return path
                os.environ["CUDA_HOME"] = f"{folder}/toolkit"
                torch.__file__ = f"{folder}/site/torch/__init__.py"
                torch.version.cuda = "12.8"
                toolkit = headers("toolkit", 13000)
                assert _build.cuda_include_folders() == [toolkit]     # there are no others
                older = headers("site/nvidia/a", 12060)
                assert _build.cuda_include_folders() == [older]       # of the same major version
                same = headers("site/nvidia/b", 12080)
                assert _build.cuda_include_folders() == [same]
                torch.version.cuda = "13.0"
                assert _build.cuda_include_folders() == [toolkit]
                os.environ["CUDA_HOME"] = f"{folder}/none"
                torch.__file__ = f"{folder}/elsewhere/torch/__init__.py"
                try:
                    _build.cuda_include_folders()
                except plugin.BuildError as error:
                    assert "cuda_runtime_api.h" in str(error)
                    raise SystemExit(0)
            raise SystemExit("no error")
        """)

    def test_the_cuda_front_compiles(self):
        result = self.run_program("""
            import subprocess
            from headroom import _library
            from headroom.torch import _build
            try:
                command = _build.compile_command(cuda=True)
            except _build.BuildError as error:
                print("skipped:", error)
                raise SystemExit(0)
            # PyTorch's wheels lack some of the headers that cuda_runtime.h includes; a CUDA toolkit has them.
            probe = subprocess.run(command + ["-fsyntax-only", "-xc++", "-"], input="#include <cuda_runtime.h>", text=True, capture_output=True)
            if probe.returncode and "No such file" in probe.stderr:
                print("skipped: no CUDA toolkit:", probe.stderr.splitlines()[-3:])
                raise SystemExit(0)
            # All at once, because PyTorch's headers take most of the time. tests/torch/test_cuda_front.py compiles each by itself.
            sources = "".join(f'#include "{_library.plugin_folder("torch") / name}.cpp"\\n' for name in _build.CUDA_SOURCES)
            subprocess.run(command + ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-fsyntax-only", "-xc++", "-"], input=sources, text=True, check=True)
        """)
        print(result.stdout, end="")

    def test_a_forked_child_has_pytorchs_own_allocator(self):
        self.run_program("""
            import os
            torch.set_num_threads(1)    # a fork has no worker threads
            install()
            kept = torch.ones(1 << 20)
            child = os.fork()
            if child == 0:
                os._exit(0 if torch.ones(1 << 20).sum().item() == 1 << 20 else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert kept.sum().item() == 1 << 20
        """)

    def test_a_profile_has_ops_modules_and_steps(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.hrt"
            self.run_program(f"""
                install()
                class Net(torch.nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.encoder = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU())
                        self.head = torch.nn.Linear(256, 256)
                    def forward(self, x):
                        return self.head(self.encoder(x))
                model = Net()
                optimizer = torch.optim.Adam(model.parameters())
                with plugin.profile({str(path)!r}):
                    for _ in range(3):
                        optimizer.zero_grad()
                        model(torch.randn(256, 256)).mean().backward()
                        optimizer.step()
            """)
            for view, expected in {"op": ["aten::addmm", "aten::randn"], "scope": ["encoder.0", "encoder.1", "head"],
                                   "peak": ["activations", "gradients", "optimizer"]}.items():
                report = subprocess.run([os.environ["HEADROOM_COMMAND"], "report", "--json", "--view", view, str(path)], capture_output=True, text=True)
                self.assertEqual(report.returncode, 0, report.stderr)
                for name in expected:
                    self.assertIn(f'"{name}"', report.stdout)
            report = subprocess.run([os.environ["HEADROOM_COMMAND"], "report", str(path)], capture_output=True, text=True)
            self.assertRegex(report.stdout, r"steps +3\n")

    def test_recorded_stacks_have_the_calls_of_python_and_of_pytorch(self):
        """PyTorch releases the interpreter's lock in its ops; backward's are called by the program's backward()."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.hrt"
            self.run_program(f"""
                install(limit="256MB", lms=False)
                class Net(torch.nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.head = torch.nn.Linear(512, 512)
                    def forward(self, x):
                        return self.head(x)
                def step(model):
                    model(torch.ones(640, 512)).square().mean().backward()
                model = Net()
                with plugin.profile({str(path)!r}):
                    step(model)
            """, HEADROOM_STACKS="64")
            report = subprocess.run([os.environ["HEADROOM_COMMAND"], "report", "--json", "--view", "tensors", str(path)], capture_output=True, text=True, check=True)
            stacks = {}
            for row in json.loads(report.stdout)["reports"][0]["tensors"]["rows"]:
                stacks.setdefault(row["op"], [frame.get("function", "").split(".")[-1] if frame.get("file") else "" for frame in row.get("stack", [])])
            for op, expected in {"aten::addmm": ["forward", "forward", "step"], "aten::mm": ["backward", "step"], "aten::ones": ["step"]}.items():
                self.assertIn(op, stacks)
                functions = [name for name in stacks[op][:stacks[op].index("step") + 1] if name and name not in ("_call_impl", "_wrapped_call_impl")]
                self.assertEqual(functions[-len(expected):], expected, (op, stacks[op]))
                self.assertEqual(stacks[op][0], "", "the innermost calls are those of libraries")


if __name__ == "__main__":
    unittest.main()
