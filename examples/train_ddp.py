"""Data-parallel training with PyTorch, as torchrun starts it: ordinary code, which knows nothing of Headroom.

    headroom run --trace run.hrt --device cpu -- torchrun --standalone --nproc-per-node 2 train_ddp.py
    headroom report run-rank*.hrt

With an argument, the last rank has a batch that many times as long in the last step. It runs out of memory, and its report says what the other rank holds:

    HEADROOM_OOM_REPORT=stderr headroom run --limit 64MiB --device cpu -- torchrun --standalone --nproc-per-node 2 train_ddp.py 16
"""
import sys

import torch
import torch.distributed as dist

STEPS = 12
longer = int(sys.argv[1]) if len(sys.argv) > 1 else 1
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)  # the same weights on all ranks
layers = [torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(8)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.Adam(model.parameters())
torch.manual_seed(rank)  # other data on each
for step in range(STEPS):
    rows = 256 * (longer if step == STEPS - 1 and rank == ranks - 1 else 1)
    loss = model(torch.randn(rows, 512)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"rank {rank} of {ranks}, step {step}: loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
