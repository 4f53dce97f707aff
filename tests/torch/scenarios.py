"""Small training runs, as a program: `scenarios.py NAME STEPS MODE [LIMIT]` prints JSON with the exact losses and a digest of all weights.

MODE is "plain" (PyTorch alone), "peak" (Headroom without a limit), "limit", or "recompute" (a limit, and every result of an op that has a recipe is dropped
instead of copied, whatever that costs). NAME may be several names, separated by commas, or "all".
Tensors are a few MiB, so that most can move, and steps take a fraction of a second.
"""
import hashlib
import io
import json
import sys

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = (q @ k.transpose(-2, -1)) / (width // self.heads) ** 0.5
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = F.dropout(scores.masked_fill(mask, float("-inf")).softmax(-1), 0.1, self.training)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, words=512, width=256, heads=4, layers=3):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, tokens):
        logits = self(tokens[:, :-1])
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def tokens(batch=6, length=129):
    return torch.randint(0, 512, (batch, length))


def train(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def gpt(steps):
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        yield model, train(optimizer, model.loss(tokens()))


def conv(steps):
    def stage(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    model = nn.Sequential(*stage(3, 16), *stage(16, 16), *stage(16, 16), *stage(16, 16), nn.MaxPool2d(2), *stage(16, 32), *stage(32, 32), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        yield model, train(optimizer, F.cross_entropy(model(torch.randn(12, 3, 48, 48)), torch.randint(0, 10, (12,))))


def mixed(steps):
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 512))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        inputs = torch.randn(768, 512)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(inputs) - inputs).square().mean()
        yield model, train(optimizer, loss)


def accumulate(steps):
    model = Gpt(layers=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        total = torch.zeros(())
        for _ in range(2):
            loss = model.loss(tokens(4)) / 2
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield model, total


class Interrupted(Exception):
    pass


def exceptions(steps):
    """Every third step is cut short: in the forward pass, in the backward pass, or by an allocation that cannot succeed."""
    def interrupt(*_):
        raise Interrupted
    model = Gpt(layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        places = [lambda: model.blocks[1].mlp.register_forward_hook(interrupt), lambda: model.blocks[0].register_full_backward_hook(interrupt)]
        if step % 3 < 2:
            hook = places[step % 3]()
            try:
                train(optimizer, model.loss(tokens()))
            except Interrupted:
                pass
            hook.remove()
        else:
            try:
                model.loss(tokens()) + torch.empty(1 << 44)
            except RuntimeError:
                pass
        yield model, train(optimizer, model.loss(tokens()))


def saved(steps):
    """The model and the optimizer are saved and loaded into new ones."""
    model = Gpt(layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        if step % 5 == 2:
            file = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.seek(0)
            state = torch.load(file)
            del model, optimizer
            model = Gpt(layers=2)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            del state, file
        yield model, train(optimizer, model.loss(tokens()))


def shapes(steps):
    """Every step has another batch size and length."""
    model = Gpt(layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        yield model, train(optimizer, model.loss(tokens(4 + step % 5, 97 + 16 * (step % 3))))


def lstm(steps):
    model = nn.ModuleDict({"lstm": nn.LSTM(256, 256, num_layers=2), "head": nn.Linear(256, 256)})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        inputs = torch.randn(32, 48, 256)
        outputs, _ = model["lstm"](inputs)
        yield model, train(optimizer, (model["head"](outputs) - inputs).square().mean())


SCENARIOS = {function.__name__: function for function in (gpt, conv, mixed, accumulate, exceptions, saved, shapes, lstm)}


def digest(model):
    """In parts that are too small to move, so that reading them needs no room."""
    result = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        result.update(name.encode())
        for part in tensor.detach().flatten().split(1 << 16):
            result.update(part.clone().numpy().tobytes())
    return result.hexdigest()


def run(name, steps):
    torch.manual_seed(7)
    losses = []
    model = None
    for model, loss in SCENARIOS[name](steps):
        losses.append(loss.item().hex())
    return {"losses": losses, "digest": digest(model)}


def main(names, steps, mode, limit=None):
    torch.set_num_threads(1)
    results = {}
    if mode != "plain":
        import headroom
        import headroom.torch as plugin
        plugin.install(limit=limit and int(limit), lms=mode != "peak", device="cpu", movable="64KiB", verify=True, _always_recompute=mode == "recompute")
    for name in list(SCENARIOS) if names == "all" else names.split(","):
        if mode != "plain":
            headroom.reset_stats()
        results[name] = run(name, int(steps))
        if mode != "plain":
            results[name]["stats"] = plugin.stats()
            results[name]["lms"] = plugin.lms_stats()
            results[name]["pinned"] = plugin._plugin.headroom_torch_pinned_records()
    if mode != "plain" and mode != "peak":
        plugin.check()
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
