"""The networks of torch_workloads.py and torch_lms.py, with random weights: GPT-2, ResNet-50, a U-Net, and a decoder of Llama's shape.

Only ops that have a deterministic backward pass on CUDA are used, so that runs can be compared to the bit: a mean instead of adaptive pooling, transposed
convolutions instead of interpolation.
"""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


# ---- GPT-2 ----


class GptBlock(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width), nn.Dropout(dropout))

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        return F.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)), self.dropout, self.training)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class OwnGpt2(nn.Module):
    """The shape of GPT-2, for machines without transformers."""

    def __init__(self, layers, width, heads, length, words, checkpointing, dropout=0.1):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(GptBlock(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.checkpointing = checkpointing

    def forward(self, tokens):
        x = self.dropout(self.words(tokens) + self.places.weight[:tokens.shape[1]])
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        logits = F.linear(self.norm(x), self.words.weight).float()
        return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


class HuggingGpt2(nn.Module):
    """That of transformers, which is what people train. Raises ImportError without it."""

    def __init__(self, layers, width, heads, length, words, checkpointing):
        from transformers import GPT2Config, GPT2LMHeadModel  # takes seconds, so only where it is needed
        super().__init__()
        self.model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=length, vocab_size=words,
                                                bos_token_id=0, eos_token_id=0))
        if checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def forward(self, tokens):
        return self.model(input_ids=tokens, labels=tokens).loss


def gpt2(small, checkpointing=False):
    """A module that returns its loss. GPT-2 medium has 24 layers and is 1024 wide."""
    shape = dict(layers=3, width=128, heads=4, length=64, words=512) if small else dict(layers=24, width=1024, heads=16, length=1024, words=50257)
    try:
        return HuggingGpt2(**shape, checkpointing=checkpointing)
    except ImportError:
        return OwnGpt2(**shape, checkpointing=checkpointing)


# ---- ResNet-50 ----


def convolution(before, after, size, stride=1):
    return [nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after)]


class Bottleneck(nn.Module):
    def __init__(self, before, inner, stride):
        super().__init__()
        after = 4 * inner
        self.main = nn.Sequential(*convolution(before, inner, 1), nn.ReLU(inplace=True), *convolution(inner, inner, 3, stride), nn.ReLU(inplace=True),
                                  *convolution(inner, after, 1))
        self.side = nn.Sequential(*convolution(before, after, 1, stride)) if stride > 1 or before != after else nn.Identity()

    def forward(self, x):
        return F.relu(self.main(x) + self.side(x), inplace=True)


class ResNet50(nn.Module):
    def __init__(self, small):
        super().__init__()
        base = 16 if small else 64
        self.stem = nn.Sequential(*convolution(3, base, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        blocks, before = [], base
        for stage, count in enumerate((1, 1, 1, 1) if small else (3, 4, 6, 3)):
            for number in range(count):
                blocks.append(Bottleneck(before, base << stage, 2 if stage and not number else 1))
                before = 4 * (base << stage)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, 1000)

    def forward(self, images, labels):
        return F.cross_entropy(self.head(self.blocks(self.stem(images)).mean((2, 3))), labels)


# ---- U-Net ----


def double_convolution(before, after):
    return nn.Sequential(*convolution(before, after, 3), nn.ReLU(inplace=True), *convolution(after, after, 3), nn.ReLU(inplace=True))


class UNet(nn.Module):
    """Five levels, 64 to 1024 channels; returns the loss of a mask."""

    def __init__(self, small):
        super().__init__()
        widths = [8 << level for level in range(3)] if small else [64 << level for level in range(5)]
        self.down = nn.ModuleList(double_convolution(before, after) for before, after in zip([3] + widths, widths))
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(before, after, 2, 2) for before, after in pairs)
        self.join = nn.ModuleList(double_convolution(before, after) for before, after in pairs)
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, images, masks):
        x, levels = images, []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            levels.append(x)
        for up, join, level in zip(self.up, self.join, levels[-2::-1]):
            x = join(torch.cat([level, up(x)], 1))
        return F.binary_cross_entropy_with_logits(self.head(x), masks)


# ---- a decoder of Llama's shape ----


class Llama(nn.Module):
    """16 layers, 32 heads, 8 of keys and values. Each request has its own cache, which grows by torch.cat, as that of transformers does."""

    class Layer(nn.Module):
        def __init__(self, width, heads, groups, inner):
            super().__init__()
            self.heads, self.groups, self.size = heads, groups, width // heads
            self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * groups * self.size, bias=False)
            self.out = nn.Linear(width, width, bias=False)
            self.gate, self.rise, self.fall = (nn.Linear(*shape, bias=False) for shape in ((width, inner), (width, inner), (inner, width)))

        def forward(self, x, angles, cache):
            batch, length, width = x.shape
            normal = self.norm1(x)
            q = turn(self.q(normal).view(batch, length, self.heads, self.size).transpose(1, 2), angles)
            k, v = (part.transpose(1, 2) for part in self.kv(normal).view(batch, length, 2 * self.groups, self.size).chunk(2, dim=2))
            k = turn(k, angles)
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            normal = self.norm2(x)
            return x + self.fall(F.silu(self.gate(normal)) * self.rise(normal)), (k, v)

    def __init__(self, small):
        super().__init__()
        layers, width, heads, groups, inner, words = (2, 64, 4, 2, 128, 256) if small else (16, 2048, 32, 8, 8192, 128256)
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(self.Layer(width, heads, groups, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        size = width // heads
        self.register_buffer("frequencies", 500000.0 ** (-torch.arange(0, size, 2, dtype=torch.float32) / size), persistent=False)

    def forward(self, tokens, caches):
        """The next token of each row. caches has one entry per layer, None at first, and is changed."""
        past = caches[0][0].shape[2] if caches[0] else 0
        places = torch.arange(past, past + tokens.shape[1], device=tokens.device, dtype=torch.float32)
        angles = torch.outer(places, self.frequencies.float())
        x = self.words(tokens)
        angles = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for number, layer in enumerate(self.layers):
            x, caches[number] = layer(x, angles, caches[number])
        return F.linear(self.norm(x[:, -1:]), self.words.weight).argmax(-1)


def turn(x, angles):
    """Rotary position embedding."""
    cosine, sine = angles
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], -1)
