"""An ordinary training loop of PyTorch, which knows nothing of Headroom. Its steps need 136 MiB.

    headroom run --limit 96MiB --device cpu -- python train_torch.py          out of memory: the error says what holds it
    headroom run --limit 96MiB --device cpu --lms -- python train_torch.py    the same limit, with tensors moved to the host
"""
import torch

model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU()) for _ in range(8)])
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    loss = model(torch.randn(256, 1024)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.4f}")
