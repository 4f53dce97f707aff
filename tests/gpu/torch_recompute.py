#!/usr/bin/env python3
"""Results of PyTorch ops on a card, dropped and computed again: they have the same bits. `verify` compares checksums too.

    HEADROOM_LIBRARY_DIR=build torch_recompute.py [GROUP...]
"""
import ctypes
import sys

import groups
from groups import MIB, check, equal, group

DEVICE = "cuda"


def install(**options):
    torch = groups.install(lms=True, recompute=True, movable="64KiB", **options)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return torch


def stats(name):
    import headroom.torch
    return headroom.torch.lms_stats()[name]


def evict_all():
    """Everything that has a recipe is dropped, the rest moves to the host."""
    import headroom.torch
    from headroom._library import library
    library.load().hr_lms_reclaim_inactive(ctypes.c_uint64(headroom.torch._plugin.headroom_torch_allocator()), 0, None)


def attention(torch, backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    q, k, v = (torch.randn(4, 8, 256, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    with sdpa_kernel(getattr(SDPBackend, backend)):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True), (q, k, v)


def forward_ops(torch):
    """Pairs of a name and a function that returns results and what they need."""
    F = torch.nn.functional

    def matrix(dtype=torch.float32, rows=512, columns=512):
        return torch.randn(rows, columns, device=DEVICE, dtype=dtype)

    def image():
        return torch.randn(4, 32, 64, 64, device=DEVICE)

    def autocast():
        x, weight, bias = matrix(), matrix(), torch.randn(512, device=DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            return F.linear(x, weight, bias), F.layer_norm(x, (512,)), (x, weight, bias)

    def one(function, *makers):
        def call():
            arguments = [make() for make in makers]
            return function(*arguments), arguments    # without its arguments a result has no recipe
        return call

    return {
        "gelu": one(lambda x: F.gelu(x, approximate="tanh"), matrix), "softmax": one(lambda x: F.softmax(x, -1), matrix), "log_softmax": one(lambda x: F.log_softmax(x, -1), matrix),
        "layer norm": one(lambda x: F.layer_norm(x, (512,)), matrix), "dropout": one(lambda x: F.dropout(x, 0.3), matrix), "cast": one(lambda x: x.bfloat16(), matrix),
        "product": one(torch.mm, matrix, matrix), "product with bias, bf16": one(lambda a, b, c: torch.addmm(a, b, c), *[lambda: matrix(torch.bfloat16)] * 3),
        "embedding": one(lambda x: F.embedding(torch.arange(512, device=DEVICE) % 7, x), matrix), "cat": one(lambda a, b: torch.cat((a, b)), matrix, matrix),
        "convolution": one(lambda x: F.conv2d(x, torch.ones(32, 32, 3, 3, device=DEVICE) / 288, padding=1), image),
        "batch norm": one(lambda x: F.batch_norm(x, torch.zeros(32, device=DEVICE), torch.ones(32, device=DEVICE), training=True), image),
        "batch norm and ReLU in place": one(lambda x: F.relu_(F.batch_norm(x, torch.zeros(32, device=DEVICE), torch.ones(32, device=DEVICE), training=True)), image),
        "ops in place": one(lambda x, y: (x * 2).add_(y).relu_().mul_(0.5).clamp_(max=1), image, image),
        "a sum in place with what is freed": one(lambda x: x.mul(2).add_(x.sin()), image), "a part in place": one(part_in_place, image),
        "dropout in place": one(lambda x: F.dropout(x.mul(2), 0.3, inplace=True), matrix), "a copy into new memory": one(lambda x: torch.empty_like(x).copy_(x.t()), matrix),
        "max pooling": one(lambda x: F.max_pool2d(x, 2), image), "upsampling": one(lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), image),
        "autocast": autocast,
        **{f"attention, {backend.lower()}": (lambda backend=backend: attention(torch, backend)) for backend in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")},
    }


def part_in_place(x):
    y = x.exp()
    y[:, 3:9].relu_()
    y[0] += x[1]
    return y


def contents(torch, results):
    return [result.detach().to("cpu", copy=True) for result in results if isinstance(result, torch.Tensor)]


@group("ops")
def ops():
    torch = install(limit="2GiB", verify=True, _always_recompute=True, policy="lru")
    for name, function in forward_ops(torch).items():
        try:
            torch.manual_seed(3)
            expected, later = contents(torch, function()), torch.rand(4, device=DEVICE).cpu()
        except RuntimeError as error:
            groups.skip(name, str(error).splitlines()[0][:100])
            continue
        with check(f"{name} is computed again to the bit, and draws no numbers of later ops"):
            torch.manual_seed(3)
            results = function()
            before = stats("num_recomputes"), stats("num_failed_recomputes")
            evict_all()
            equal([torch.equal(a, b) for a, b in zip(contents(torch, results), expected)], [True] * len(expected), "equality")
            equal(torch.equal(torch.rand(4, device=DEVICE).cpu(), later), True, "equality of later numbers")
            # Math attention is many ops, and not all of them have recipes.
            assert stats("num_recomputes") > before[0] or name == "attention, math", "nothing was recomputed"
            equal(stats("num_failed_recomputes"), before[1], "recomputations that failed")
            del results
    import headroom.torch
    with check("all structures are sound"):
        headroom.torch.check()


@group("streams")
def streams():
    torch = install(limit="2GiB", verify=False, _always_recompute=True, policy="lru")
    side, third = torch.cuda.Stream(), torch.cuda.Stream()
    with check("a result is computed again on the stream that needs it, also by streams without a number"):
        for stream in (torch.cuda.current_stream(), side, third, torch.cuda.ExternalStream(side.cuda_stream)):
            x = torch.arange(8 * MIB, device=DEVICE, dtype=torch.float32)
            for _ in range(4):
                torch.mm(torch.ones(2048, 2048, device=DEVICE), torch.ones(2048, 2048, device=DEVICE))    # work that is queued meanwhile
            y = (x * 2).add(1).mul(0.5)
            expected = float(8 * MIB) ** 2 / 2
            evict_all()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                total = y.double().sum()
            torch.cuda.current_stream().wait_stream(stream)
            assert abs(float(total) / expected - 1) < 1e-6, float(total)
            del x, y, total


class Training:
    """The losses of a few steps, and the sums of the weights after them."""

    def train(self, steps):
        torch, losses = self.torch, []
        for step in range(steps):
            torch.manual_seed(step)
            loss = self.loss()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
        return losses, [parameter.detach().double().sum().item() for parameter in self.model.parameters()]


class Block(Training):
    """Dropout, attention, norms and autocast. Large enough that copies do not hide behind ops."""

    def __init__(self, torch):
        self.torch = torch
        nn = torch.nn
        torch.manual_seed(5)
        layer = lambda: nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, activation="gelu", batch_first=True)    # noqa: E731
        self.model = nn.ModuleList(layer() for _ in range(6)).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def loss(self):
        torch = self.torch
        x = torch.randn(64, 256, 512, device=DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            y = x
            for layer in self.model:
                y = layer(y)
            return (y.float() - x).square().mean()


class Convolutions(Training):
    """Batch norm, and ops in place: ReLU, the sum with a shortcut."""

    def __init__(self, torch):
        self.torch = torch
        nn = torch.nn
        torch.manual_seed(5)
        half = lambda channels: [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]    # noqa: E731
        self.stem = nn.Conv2d(3, 64, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Sequential(*half(64), *half(64)[:2]) for _ in range(8))
        self.model = nn.ModuleList([self.stem, self.blocks]).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    def loss(self):
        torch = self.torch
        F = torch.nn.functional
        x = self.stem(torch.randn(32, 3, 128, 128, device=DEVICE))
        for block in self.blocks:
            y = block(x)
            y += x
            x = F.dropout(F.relu(y, inplace=True), 0.1)
        return x.square().mean()


@group("training")
def training():
    torch = install()
    import headroom.torch
    from headroom._library import library
    torch.use_deterministic_algorithms(True, warn_only=True)
    handle = ctypes.c_uint64(headroom.torch._plugin.headroom_torch_allocator())
    for network in (Block, Convolutions):
        library.load().hr_lms_set_limit(handle, ctypes.c_uint64(0))
        torch.cuda.reset_peak_memory_stats()
        expected = network(torch).train(12)
        peak = headroom.torch.stats()["peak_bytes_in_use"]
        for part in (0.8, 0.6, 0.45):
            with check(f"{network.__name__}: losses and weights are the same to the bit at {part:.0%} of the peak"):
                library.load().hr_lms_set_limit(handle, ctypes.c_uint64(int(peak * part)))
                before = stats("num_recomputes"), stats("num_planned_recomputes")
                equal(network(torch).train(12), expected, "losses and weights")
                planned = stats("num_planned_recomputes") - before[1]
                print(f"       info: {stats('num_recomputes') - before[0]} recomputations, {planned} of them as planned", flush=True)
                equal(stats("num_failed_recomputes"), 0, "recomputations that failed")
                assert planned > 0 or part > 0.5, "the plans of the last steps compute nothing again"
                headroom.torch.check()


if __name__ == "__main__":
    sys.exit(groups.main())
