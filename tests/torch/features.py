"""Parts of PyTorch that copy, share, save or recompute tensors, each at a limit, as a program: prints JSON with the traceback of each that failed."""
import copy
import io
import json
import os
import tempfile
import traceback

import torch
import torch.multiprocessing
import torch.utils.checkpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset

import headroom.torch as plugin

LIMIT = 16_000_000
SIZE = 1 << 19  # elements: 2 MiB


def pressure():
    """Evicts everything that can be evicted."""
    in_use = plugin.stats()["bytes_in_use"] - plugin.stats()["bytes_inactive"]
    torch.ones((LIMIT - in_use) * 92 // 100 // 4).sum()


def numbers(first=0):
    """With a value for each place, and evicted."""
    result = torch.arange(first, first + SIZE, dtype=torch.float32)
    pressure()
    return result


def same(tensor, first=0):
    return all(part[0].item() == first + i * 4096 and part[-1].item() == first + i * 4096 + 4095 for i, part in enumerate(tensor.flatten().split(4096)))


def checkpointed_modules_are_recomputed():
    def gradients(recompute):
        torch.manual_seed(7)
        blocks = nn.ModuleList(nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Dropout(0.2), nn.Linear(512, 256)) for _ in range(3))
        x = torch.randn(512, 256)
        for block in blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        pressure()
        x.square().mean().backward()
        return [parameter.grad for parameter in blocks.parameters()]
    for one, other in zip(gradients(False), gradients(True)):
        assert torch.equal(one, other)


def saved_tensors_are_loaded():
    for legacy in (False, True):
        tensors = {"a": numbers(), "b": numbers(5)}
        tensors["view"] = tensors["a"][100:200]
        file = io.BytesIO()
        torch.save(tensors, file, _use_new_zipfile_serialization=not legacy)
        file.seek(0)
        pressure()
        loaded = torch.load(file)
        pressure()
        assert same(loaded["a"]) and same(loaded["b"], 5) and loaded["view"][0].item() == 100
        assert loaded["view"].untyped_storage()._cdata == loaded["a"].untyped_storage()._cdata
        assert same(tensors["a"]) and same(tensors["b"], 5)


def checkpoints_larger_than_the_limit_are_loaded():
    file = io.BytesIO()
    torch.save([numbers(i) for i in range(10)], file)  # 20 MiB
    file.seek(0)
    for i, tensor in enumerate(torch.load(file)):
        assert same(tensor, i)


def files_are_mapped():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tensor.pt")
        torch.save(numbers(3), path)
        assert same(torch.load(path, mmap=True), 3)


def copies_are_deep():
    module = nn.Linear(512, 512)
    tensors = [numbers(), numbers(9)]
    tensors.append(tensors[0].view(-1, 2))
    module_copy, tensors_copy = copy.deepcopy(module), copy.deepcopy(tensors)
    pressure()
    tensors[0].zero_()
    assert same(tensors_copy[0]) and same(tensors_copy[1], 9) and torch.equal(tensors_copy[2].flatten(), tensors_copy[0])
    assert torch.equal(module.weight, module_copy.weight)


def storages_are_resized():
    tensor = numbers()
    storage = tensor.untyped_storage()
    storage.resize_(2 * storage.nbytes())
    pressure()
    assert same(tensor)
    storage.resize_(0)
    storage.resize_(SIZE * 4)
    storage.fill_(0)
    pressure()
    assert tensor.abs().max().item() == 0


def double(tensor):
    tensor.mul_(2)


def shared_tensors_are_seen_by_children():
    tensor = numbers().share_memory_()
    pressure()
    child = torch.multiprocessing.get_context("fork").Process(target=double, args=(tensor,))
    child.start()
    child.join()
    assert child.exitcode == 0 and tensor[7].item() == 14 and tensor[-1].item() == 2 * (SIZE - 1)


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((1 << 16,), float(index)), index


def workers_of_a_data_loader_send_batches():
    model = nn.Linear(1 << 16, 4)
    for batch, index in DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context="fork"):
        pressure()
        assert torch.equal(batch.mean(1), index.float())
        model(batch).sum().backward()
    pressure()
    assert model.weight.grad.sum().item() > 0


def a_child_cannot_use_movable_tensors_of_its_parent():
    tensor = numbers()
    child = os.fork()
    if child == 0:
        try:
            tensor.sum()
        except RuntimeError as error:
            os._exit(0 if "headroom.torch.pin(tensor) before the fork" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert same(tensor)


def in_child(function):
    """Forks; the child waits for the parent to call the function that this returns, which gives the child's result."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.read(read, 1)
            code = 0 if function() else 2
        finally:
            os._exit(code)

    def result():
        os.write(write, b"x")
        return os.waitpid(child, 0)[1] == 0
    return result


def a_child_has_its_own_copy_of_tensors_that_cannot_move():
    movable = numbers()
    sizes = (1, 3, 1000, 5000, 12000, 16000)  # up to 62.5 KiB
    tensors = [torch.full((size,), float(size)) for size in sizes]
    counter = torch.zeros(())

    def used():
        right = all(tensor.sum().item() == size * size for size, tensor in zip(sizes, tensors))
        counter.add_(5)
        for tensor in tensors:
            tensor.neg_()
        return right and counter.item() == 5 and torch.cat(tensors).min().item() == -16000
    result = in_child(used)
    for tensor in tensors[:3]:
        tensor.zero_()
    del tensors[3:]
    others = [torch.full((16000,), -1.0) for _ in range(20)]
    pressure()
    assert result()
    assert counter.item() == 0 and all(tensor.sum().item() == 0 for tensor in tensors)
    assert all(other.sum().item() == -16000 for other in others) and same(movable)


def a_child_shares_pinned_tensors():
    tensor = numbers()
    plugin.pin(tensor)

    def used():
        tensor[7] = -1
        return same(tensor[8192:], 8192)
    result = in_child(used)
    pressure()
    assert result()
    assert tensor[7].item() == -1


def compressed_sparse_tensors_are_announced():
    dense = (torch.arange(1 << 18) % 7 == 0).reshape(512, 512) * torch.arange(1.0, 513)
    vector = torch.arange(512.0)
    expected = dense @ vector
    for make in (dense.to_sparse_csr, dense.to_sparse_csc, lambda: dense.to_sparse_bsr((16, 16)), lambda: dense.to_sparse_bsc((16, 16))):
        compressed = make()
        pressure()
        assert torch.equal(compressed.to_dense(), dense)
        pressure()
        if compressed.layout is torch.sparse_csr:
            assert torch.allclose(compressed @ vector, expected)
        pressure()
        assert compressed.values().sum().item() == dense.sum().item() and (compressed * 2).to_dense().sum().item() == 2 * dense.sum().item()


def functions_of_python_are_applied_to_elements():
    a, b = numbers(), numbers(1)
    a.apply_(lambda x: x + 1)
    pressure()
    a.map_(b, lambda x, y: 2 * x - y)
    pressure()
    assert same(a, 1)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 512)
        self.register_buffer("buffer", torch.randn(512, 512))

    def forward(self, x):
        return self.linear(x) @ self.buffer


def scripted_modules_are_saved():
    x = torch.randn(4, 512)
    module = torch.jit.script(nn.Sequential(Scripted(), Scripted()).eval())
    for scripted in (module, torch.jit.freeze(module)):  # the weights of the second are constants
        file = io.BytesIO()
        pressure()
        torch.jit.save(scripted, file)
        file.seek(0)
        loaded = torch.jit.load(file)
        pressure()
        assert torch.equal(loaded(x), scripted(x))
    constant = torch.jit.trace(lambda x: x + torch.full((512, 512), 2.0), torch.ones(512, 512), check_trace=False)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "function.pt")
        pressure()
        constant.save(path)
        assert torch.jit.load(path)(torch.ones(512, 512)).max().item() == 3


def modules_are_exported():
    module = Scripted().eval()
    pressure()
    with tempfile.TemporaryDirectory() as folder:
        try:
            torch.onnx.export(module, (torch.randn(4, 512),), os.path.join(folder, "module.onnx"), dynamo=False)
        except torch.onnx.OnnxExporterError as error:
            assert "onnx is not installed" in str(error)  # after the graph was written


FEATURES = (checkpointed_modules_are_recomputed, saved_tensors_are_loaded, checkpoints_larger_than_the_limit_are_loaded, files_are_mapped, copies_are_deep, storages_are_resized,
            shared_tensors_are_seen_by_children, workers_of_a_data_loader_send_batches, a_child_cannot_use_movable_tensors_of_its_parent,
            a_child_has_its_own_copy_of_tensors_that_cannot_move, a_child_shares_pinned_tensors, compressed_sparse_tensors_are_announced,
            functions_of_python_are_applied_to_elements, scripted_modules_are_saved, modules_are_exported)


def main():
    torch.set_num_threads(1)  # a fork has no worker threads
    plugin.install(limit=LIMIT, lms=True, device="cpu", movable="64KiB", verify=True)
    results = {}
    for feature in FEATURES:
        before = plugin.lms_stats()["num_evictions"]
        try:
            feature()
            plugin.check()
            assert plugin.lms_stats()["num_evictions"] > before, "nothing was evicted"
            assert plugin._plugin.headroom_torch_pinned_records() == 0, "pinned records are left"
            results[feature.__name__] = ""
        except Exception:
            results[feature.__name__] = traceback.format_exc()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
