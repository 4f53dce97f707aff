"""Two processes of torch.distributed, as a program: `distributed.py MODE RANK STORE [LIMIT]` prints JSON with the exact losses of each scenario.

MODE is "plain" (PyTorch alone) or "limit". STORE is the path of a file through which the processes find each other."""
import gc
import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import scenarios


def loss_of(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train(model, rank, steps=3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    for _ in range(steps):
        yield scenarios.train(optimizer, loss_of(model, scenarios.tokens()))


def ddp(rank):
    model = nn.parallel.DistributedDataParallel(scenarios.Gpt(layers=2), bucket_cap_mb=1)
    yield from train(model, rank)


def fsdp1(rank):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    model = FullyShardedDataParallel(scenarios.Gpt(layers=2), auto_wrap_policy=ModuleWrapPolicy({scenarios.Block}), device_id=torch.device("cpu"))
    yield from train(model, rank)


def fsdp2(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model = scenarios.Gpt(layers=2)
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    yield from train(model, rank)


def collectives(rank):
    """Asynchronous calls, with other ops that need the memory before the first one is waited for."""
    size = 1 << 19  # 2 MiB
    for step in range(3):
        tensors = [torch.full((size,), float(rank + step + i)) for i in range(7)]
        gathered = [torch.empty(size) for _ in range(2)]
        both = torch.empty(2 * size)
        part = torch.empty(size // 2)
        received = torch.empty(size)
        works = [dist.all_reduce(tensors[0], async_op=True), dist.all_gather(gathered, tensors[1], async_op=True),
                 dist.all_gather_into_tensor(both, tensors[2], async_op=True), dist.reduce_scatter_tensor(part, tensors[3], async_op=True),
                 dist.broadcast(tensors[4], 0, async_op=True), dist.all_reduce_coalesced(tensors[5:7], async_op=True),
                 dist.isend(tensors[1], 1 - rank), dist.irecv(received, 1 - rank)]
        total = torch.zeros(())
        for i in range(8):  # 8 MiB each
            total += torch.full((4 * size,), float(i)).square().mean()
        for work in works:
            work.wait()
        del works
        for tensor in [*tensors, *gathered, both, part, received]:
            total += tensor.double().sum().float()
        yield total


def messages(rank):
    """Memory is short while a message is pending that the other process sends only after it got one: an op that waited for it would wait forever."""
    size = 1 << 19
    received = torch.empty(size)
    work = dist.irecv(received, 1 - rank)
    kept = [torch.full((2 * size,), float(i)) for i in range(12)]  # 48 MiB, more than the limit
    try:
        torch.ones(1 << 25).sum()
    except torch.OutOfMemoryError:
        pass
    dist.send(torch.full((size,), float(rank)), 1 - rank)
    work.wait()
    yield received.sum() + sum(tensor.sum() for tensor in kept)


SCENARIOS = {function.__name__: function for function in (ddp, fsdp1, fsdp2, collectives, messages)}


def main(mode, rank, store, limit=None):
    torch.set_num_threads(1)
    if mode != "plain":
        import headroom.torch as plugin
        plugin.install(limit=limit, lms=True, device="cpu", movable="64KiB", verify=True)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    results = {}
    evictions = 0
    for name, scenario in SCENARIOS.items():
        torch.manual_seed(7)
        results[name] = {"losses": [loss.item().hex() for loss in scenario(int(rank))]}
        if mode != "plain":
            gc.collect()  # wrapped models are in cycles
            total = plugin.lms_stats()["num_evictions"]
            results[name].update(evictions=total - evictions, pinned=plugin._plugin.headroom_torch_pinned_records())
            evictions = total
    if mode != "plain":
        plugin.check()
    print(json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
