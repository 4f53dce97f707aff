#!/usr/bin/env python3
"""Writes tests/runtime/golden/: PyTorch's results of ops, their gradients and optimizers, for tests/runtime/test_golden.c, and a model's
losses in 100 steps, for test_training_golden.c.

    tools/golden.py [--out FOLDER] [--only FILE]

Inputs are float32. Expected results are computed in float64 from the same inputs, so the test measures the error of the runtime alone.
They are also computed in float32: if PyTorch's own error is larger than the test allows, this script fails.

A file is a sequence of words separated by white space:

    # ...                            a comment, to the end of the line
    case OP PARAMETER...
    in DTYPE [DIMS] NUMBER...        an input; exact
    weights [DIMS] NUMBER...         gradients are those of the sum of the output multiplied by these; exact
    out [DIMS] NUMBER...             the output
    grad INPUT [DIMS] NUMBER...      the gradient with respect to that input
    end CASES                        the last line

Expected numbers are written as NUMBER~SCALE, or NUMBER alone if the scale is about the number itself. The error that the test allows is
relative to the scale: the change of the number when all elements of an input change by their own magnitudes, each in the worst direction (the
sum of |element * derivative by it|, for the input with the largest sum). For sums, also of products, that is the sum of the magnitudes, so
cancellation does not make the test require more precision than float32 has. If the scale is 0 the result must be exact.

The files are reproducible to the byte with the same versions of PyTorch and NumPy, which their second lines name.
"""
import argparse
import math
import sys
import zlib
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F

ALLOWED = 1e-5  # as in test_golden.c
# Allowed errors of ops that PyTorch 2.11 computes less precisely in float32: 1.2e-5 was seen. The numbers written are float64's.
ROUGH = {"gelu": 1e-4}
ALL = -100      # HR_ALL_AXES


# ---- ops in PyTorch ----


def reduced(of, of_all):
    def op(x, axis, keep):
        y = of_all(x) if axis == ALL else of(x, axis)
        if axis == ALL:
            return y.reshape([1] * x.dim()) if keep else y
        return y.unsqueeze(axis) if keep else y
    return op


def matmul(a, b, transpose_a=0, transpose_b=0):
    return torch.matmul(a.transpose(-1, -2) if transpose_a else a, b.transpose(-1, -2) if transpose_b else b)


def causal_softmax(x):
    later = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(x.masked_fill(later, -math.inf), -1)


ACTIVATIONS = [lambda x: x, torch.relu, F.gelu, torch.tanh]  # in the order of hr_activation


def attention(x, wq, bq, wk, bk, wv, bv, wo, bo, heads, causal):
    batch, time, width = x.shape
    q, k, v = ((x @ w + b).reshape(batch, time, heads, -1).transpose(1, 2) for w, b in ((wq, bq), (wk, bk), (wv, bv)))
    scores = q @ k.transpose(-1, -2) / math.sqrt(width / heads)
    seen = causal_softmax(scores) if causal else torch.softmax(scores, -1)
    return (seen @ v).transpose(1, 2).reshape(x.shape) @ wo + bo


def philox(seed, block, stream, offset):
    """The four words of a block of Philox 4x32-10."""
    low = 0xFFFFFFFF
    c = [block & low, block >> 32, stream | (offset >> 32 << 2 & low), offset & low]
    key = [seed & low, seed >> 32]
    for _ in range(10):
        x, y = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [y >> 32 ^ c[1] ^ key[0], y & low, x >> 32 ^ c[3] ^ key[1], x & low]
        key = [key[0] + 0x9E3779B9 & low, key[1] + 0xBB67AE85 & low]
    return c


# Known answers of the generator, from its authors' tests.
assert philox(0, 0, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def dropout(x, offset, rate, seed):
    """PyTorch draws other numbers; this is its product with a mask."""
    words = [w for block in range(x.numel() // 4 + 1) for w in philox(int(seed), block, 3, int(offset))]
    kept = torch.tensor([w >= rate * 2**32 for w in words[:x.numel()]]).reshape(x.shape)
    return x * kept.to(x.dtype) * (1 / (1 - rate) if rate < 1 else 0)


def fixed_norm(x, *channels_and_epsilon):
    """F.batch_norm has no gradients by the statistics."""
    *channels, epsilon = channels_and_epsilon
    mean, variance, gain, bias = (c.reshape(-1, *[1] * (x.dim() - 2)) for c in channels)
    y = (x - mean) / torch.sqrt(variance + epsilon) * gain + bias
    torch.testing.assert_close(y, F.batch_norm(x.detach(), *(c.detach() for c in channels), eps=epsilon))
    return y


def attend(q, k, v, heads, scale, causal):
    q, k, v = (x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(-2, -3) for x in (q, k, v))
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the others cannot be differentiated twice, which scales need
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen.tril(k.shape[-2] - q.shape[-2]) if causal else None, scale=scale)
    return y.transpose(-2, -3).flatten(-2)


OPS = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "neg": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": F.gelu,
    "scale": lambda x, factor, plus: x * factor + plus,
    "cast": lambda x: x.double().to(x.dtype),
    "cast_bfloat16": lambda x: x.bfloat16().to(x.dtype),
    "reshape": lambda x, *dims: x.reshape(dims),
    "transpose": lambda x, *order: x.permute(order),
    "concat": lambda *x: torch.cat(x[:-1], x[-1]),
    "slice": lambda x, axis, begin, count: x.narrow(axis, begin, count),
    "broadcast_to": lambda x, *dims: x.expand(dims),
    "gather": lambda table, indices: table[indices.long()],
    "one_hot": lambda indices, depth: F.one_hot(indices.long(), depth).double(),
    "reduce_sum": reduced(torch.sum, torch.sum),
    "reduce_mean": reduced(torch.mean, torch.mean),
    "reduce_max": reduced(torch.amax, torch.amax),
    "matmul": matmul,
    "softmax": lambda x: torch.softmax(x, -1),
    "causal_softmax": causal_softmax,
    "cross_entropy": lambda x, labels: F.cross_entropy(x, labels.long(), reduction="none"),
    "layer_norm": lambda x, gain, bias, epsilon: F.layer_norm(x, x.shape[-1:], gain, bias, epsilon),
    "batch_norm": lambda x, gain, bias, epsilon: F.batch_norm(x, None, None, gain, bias, training=True, eps=epsilon),
    "batch_norm_inference": fixed_norm,
    "dropout": dropout,
    "attend": attend,
    "conv2d": lambda x, filter, stride, padding: F.conv2d(x, filter, stride=stride, padding=padding),
    "max_pool": lambda x, size, stride: F.max_pool2d(x, size, stride),
    "avg_pool": lambda x, size, stride: F.avg_pool2d(x, size, stride),
    # layers: inputs, then variables in order of creation, then the call's parameters without the seed
    "dense": lambda x, w, b, units, activation: ACTIVATIONS[activation](x @ w + b),
    "conv_layer": lambda x, w, b, channels, size, stride, padding, activation: ACTIVATIONS[activation](F.conv2d(x, w, None, stride, padding) + b),
    "embedding": lambda indices, w, count, width: w[indices.long()],
    "layer_norm_layer": lambda x, gain, bias: F.layer_norm(x, x.shape[-1:], gain, bias, 1e-5),
    "batch_norm_layer": lambda x, gain, bias, momentum, training:
        F.batch_norm(x, torch.zeros_like(gain), torch.ones_like(gain), gain, bias, bool(training), momentum),
    "attention": attention,
}

OPTIMIZERS = {
    "sgd": lambda p, rate: torch.optim.SGD(p, lr=rate),
    "momentum": lambda p, rate, momentum: torch.optim.SGD(p, lr=rate, momentum=momentum),
    "adam": lambda p, rate, beta1, beta2, epsilon: torch.optim.Adam(p, lr=rate, betas=(beta1, beta2), eps=epsilon),
}


# ---- writing ----


def short(number):
    """The shortest text that reads as the same number."""
    number = float(number)
    return str(int(number)) if number == int(number) else repr(number)


def expected(number, scale):
    text = f"{number + 0.0:.9g}"
    return text if abs(number) <= scale <= 1.5 * abs(number) else f"{text}~{scale:.2g}"


class File:
    """A file of cases."""

    def __init__(self, path, about):
        self.path = path
        self.cases = 0
        versions = f"PyTorch {torch.__version__}, NumPy {numpy.__version__}"
        self.lines = [f"# {about}", f"# Written by tools/golden.py, which tells the format, with {versions}."]

    def begin(self, op, parameters):
        self.cases += 1
        words = ["case", op, *map(short, parameters)]
        self.title = " ".join(words)
        self.lines.append(self.title)

    def block(self, words, shape, numbers):
        self.lines.append(" ".join([*words, "[" + ",".join(map(str, shape)) + "]"]))
        for i in range(0, len(numbers), 10):
            self.lines.append(" ".join(numbers[i:i + 10]))

    def exact(self, words, x):
        self.block(words, x.shape, [short(v) for v in x.reshape(-1)])

    def expect(self, words, x, scales):
        values = x.detach().numpy().reshape(-1)
        self.block(words, x.shape, [expected(v, s) for v, s in zip(values, scales)])

    def write(self):
        self.lines.append(f"end {self.cases}")
        self.path.write_text("\n".join(self.lines) + "\n")
        print(f"{self.path.name}: {self.cases} cases, {self.path.stat().st_size} bytes")


# ---- inputs ----


class Random:
    """Numbers that depend on the case alone, so that a new case does not change the others. They are exact in float32, and short."""

    def __init__(self, title):
        self.source = numpy.random.Generator(numpy.random.PCG64(zlib.crc32(title.encode())))

    def numbers(self, shape, low=-2, high=2):
        """Multiples of 1/64, plus half a step: never 0 or at a kink of a function."""
        steps = self.source.integers(low * 64, high * 64, size=shape)
        return ((steps + 0.5) / 64).astype(numpy.float32)

    def bits(self, shape):
        """Random bits; NaN and numbers above the largest bfloat16 are replaced."""
        numbers = self.source.integers(0, 1 << 32, size=shape, dtype=numpy.uint32).view(numpy.float32)
        return numpy.where(numpy.abs(numbers) < 3.38e38, numbers, numpy.float32(1 / 3))

    def distinct(self, shape):
        """Distinct numbers, because the gradient of a maximum among equal ones is ambiguous."""
        count = math.prod(shape)
        return ((self.source.permutation(count) - count / 2 + 0.25) / 32).reshape(shape).astype(numpy.float32)

    def indices(self, shape, below, dtype):
        return self.source.integers(0, below, size=shape).astype(dtype)


# ---- expected results ----


def tensors(arrays, dtype):
    """The arrays as tensors; floats are leaves with gradients."""
    return [torch.tensor(a, dtype=dtype, requires_grad=True) if a.dtype == numpy.float32 else torch.tensor(a) for a in arrays]


def results(op, arrays, weights, parameters, dtype):
    """The output and its gradients with respect to the float inputs; and all leaves that they depend on."""
    x = tensors(arrays, dtype)
    leaves = [t for t in x if t.requires_grad]
    y = OPS[op](*x, *parameters)
    if not leaves:
        return [y], []
    w = torch.tensor(weights(y.shape), dtype=dtype, requires_grad=True)
    grads = torch.autograd.grad((y * w).sum(), leaves, create_graph=True, allow_unused=True)
    return [y] + [torch.zeros_like(t) if g is None else g for g, t in zip(grads, leaves)], leaves + [w]


def scales_of(result, leaves):
    """The scale of each element of the result, defined at the top."""
    scales = []
    for element in result.reshape(-1):
        by = torch.autograd.grad(element, leaves, retain_graph=True, allow_unused=True) if element.requires_grad else []
        worst = [float((g * x).detach().abs().sum()) for g, x in zip(by, leaves) if g is not None]
        scales.append(max([abs(float(element.detach())), *worst]))
    return scales


def add_case(file, op, arrays, *parameters, composed=False):
    """[arrays] makes the inputs from a Random. In a layer [composed] of several ops, a gradient can be 0 for all inputs because larger terms
    cancel, such as that of the bias of an attention's keys. So the scales are then at least the largest gradient."""
    file.begin(op, parameters)
    random = Random(f"{file.title} {file.cases}")
    arrays = [numpy.asarray(a) for a in arrays(random)]
    state = random.source.bit_generator.state

    def weights(shape):
        random.source.bit_generator.state = state
        return random.numbers(tuple(shape))

    exact, leaves = results(op, arrays, weights, parameters, torch.float64)
    rough, _ = results(op, arrays, weights, parameters, torch.float32)
    for a in arrays:
        file.exact(["in", a.dtype.name], a)
    if leaves:
        file.exact(["weights"], leaves[-1].detach().numpy())
    inputs = [i for i, a in enumerate(arrays) if a.dtype == numpy.float32]
    least = max(float(r.detach().abs().max()) for r in exact[1:] if r.numel()) if composed else 0
    for k, (result, other) in enumerate(zip(exact, rough)):
        scales = [max(least, s) for s in scales_of(result, leaves)]
        off = (result.double() - other.double()).abs().reshape(-1)
        for i, scale in enumerate(scales):
            if not off[i] <= ROUGH.get(op, ALLOWED) * scale:
                sys.exit(f"{file.path.name}: {file.title}: PyTorch's own float32 is off by {off[i]:g}, of a scale of {scale:g}")
        file.expect(["out"] if k == 0 else ["grad", str(inputs[k - 1])], result, scales)


def add_optimizer(file, kind, shape, *parameters):
    """Inputs: initial value of the variable, and a gradient for each step. Outputs: the variable after each step."""
    steps = 6
    file.begin(kind, parameters)
    random = Random(f"{file.title} {file.cases}")
    arrays = [random.numbers(shape) for _ in range(1 + steps)]
    variable = torch.tensor(arrays[0], dtype=torch.float64, requires_grad=True)
    optimizer = OPTIMIZERS[kind]([variable], *parameters)
    for a in arrays:
        file.exact(["in", a.dtype.name], a)
    way = variable.detach().abs().clone()  # scale: the sum of the magnitudes of all changes
    for gradient in arrays[1:]:
        before = variable.detach().clone()
        variable.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        way += (variable.detach() - before).abs()
        file.expect(["out"], variable, way.reshape(-1).tolist())


# ---- files ----

SHAPES = [(), (1,), (7,), (2, 3), (0,), (2, 0, 3)]
PAIRS = [((), ()), ((2, 3), (2, 3)), ((2, 3), (3,)), ((3,), (2, 3)), ((2, 1), (1, 3)), ((), (2, 3)), ((2, 3), ()), ((4, 1, 3), (2, 1)),
         ((2, 3, 2, 2), (3, 1, 1)), ((1,), (5,)), ((0,), (0,)), ((0, 3), (3,)), ((2, 0), ()), ((2, 1, 3), (0, 1)), ((33,), (33,))]


def elementwise(file):
    for a, b in PAIRS:
        for op in ("add", "sub", "mul"):
            add_case(file, op, lambda r: [r.numbers(a), r.numbers(b)])
        add_case(file, "div", lambda r: [r.numbers(a), r.numbers(b, 1, 3)])
        add_case(file, "maximum", lambda r: [r.numbers(a), r.numbers(b) + numpy.float32(1 / 256)])
    for shape in SHAPES + [(37,)]:
        for op in ("neg", "exp", "tanh", "relu", "cast"):
            add_case(file, op, lambda r: [r.numbers(shape)])
        for op in ("log", "sqrt"):
            add_case(file, op, lambda r: [r.numbers(shape, 0, 4)])
        add_case(file, "gelu", lambda r: [r.numbers(shape, -3, 3)])
        add_case(file, "scale", lambda r: [r.numbers(shape)], -2.5, 0.375)


def bfloat16(file):
    """PyTorch rounds float64 to float32 first, and gradients to bfloat16 in the backward pass. Neither changes the results here, because inputs
    are float32 and weights have 8 bits."""
    for of in SHAPES:
        add_case(file, "cast_bfloat16", lambda r: [r.source.standard_normal(of).astype(numpy.float32)])
    add_case(file, "cast_bfloat16", lambda r: [r.bits((400,))])
    # Ties and their neighbours: 1 + n / 256 is a tie if n is odd. Then the same among denormal numbers.
    ties = numpy.concatenate([1 + numpy.arange(32) / 256 + aside for aside in (-2.0**-23, 0, 2.0**-23)]).astype(numpy.float32)
    add_case(file, "cast_bfloat16", lambda r: [numpy.concatenate([ties, -ties])])
    add_case(file, "cast_bfloat16", lambda r: [(numpy.arange(96) * 2.0**-135).astype(numpy.float32)])


def shape(file):
    for of, to in [((2, 3), (6,)), ((2, 3), (3, -1)), ((), (1, 1)), ((1,), ()), ((0, 3), (2, 0)), ((2, 3, 4), (4, 6))]:
        add_case(file, "reshape", lambda r: [r.numbers(of)], *to)
    for of, order in [((2, 3), (1, 0)), ((2, 3, 4), (2, 0, 1)), ((2, 3, 4), (0, 2, 1)), ((2, 3, 2, 3), (0, 2, 1, 3)), ((5,), (0,)), ((), ()),
                      ((0, 3), (1, 0)), ((17, 19), (1, 0))]:
        add_case(file, "transpose", lambda r: [r.numbers(of)], *order)
    for of, axis in [([(2, 3)], 0), ([(2, 3), (1, 3)], 0), ([(2, 1), (2, 3), (2, 2)], 1), ([(2, 2, 2), (2, 1, 2)], -2), ([(3,), (0,), (2,)], 0),
                     ([(0, 2), (0, 3)], 1)]:
        add_case(file, "concat", lambda r: [r.numbers(o) for o in of], axis)
    for of, axis, begin, count in [((6,), 0, 1, 4), ((4, 3), 0, 1, 2), ((2, 4, 3), 1, 1, 2), ((2, 4, 3), -1, 0, 1), ((4,), 0, 4, 0),
                                   ((4, 3), 1, 0, 3), ((0, 3), 1, 1, 2), ((1, 5), 1, 2, 3)]:
        add_case(file, "slice", lambda r: [r.numbers(of)], axis, begin, count)
    for of, to in [((), (2, 3)), ((3,), (2, 3)), ((2, 1), (4, 2, 3)), ((1, 3, 1), (2, 3, 2)), ((2, 3), (2, 3)), ((1,), (0,)),
                   ((3,), (0, 3)), ((0, 1), (2, 0, 3)), ((), ())]:
        add_case(file, "broadcast_to", lambda r: [r.numbers(of)], *to)
    for of, by, dtype in [((4, 3), (2, 2), "int32"), ((4, 3), (9,), "int64"), ((5,), (3,), "int32"), ((4, 3), (), "int64"), ((4, 3), (0,), "int32"),
                          ((4, 0), (3,), "int32"), ((3, 2, 2), (4,), "int64")]:
        add_case(file, "gather", lambda r: [r.numbers(of), r.indices(by, of[0], dtype)])
    for by, depth, dtype in [((5,), 4, "int32"), ((2, 3), 3, "int64"), ((), 3, "int32"), ((0,), 2, "int32")]:
        add_case(file, "one_hot", lambda r: [r.indices(by, depth, dtype)], depth)


def reduce(file):
    wanted = [((2, 3), 0), ((2, 3), 1), ((2, 3), -1), ((2, 3), ALL), ((2, 3, 4), 1), ((3, 2, 2, 2), -2), ((7,), 0), ((), ALL), ((1,), ALL),
              ((40,), 0), ((0, 3), 1), ((2, 0, 3), 2)]
    for of, axis in wanted:
        for keep in (0, 1):
            for op in ("reduce_sum", "reduce_mean", "reduce_max"):
                add_case(file, op, lambda r: [r.distinct(of)], axis, keep)
    # Empty sums are 0. An empty mean or maximum has no result in PyTorch to compare with.
    for of, axis in [((0, 3), 0), ((0,), ALL), ((2, 0), 1)]:
        for keep in (0, 1):
            add_case(file, "reduce_sum", lambda r: [r.distinct(of)], axis, keep)


def matrix(file):
    flips = [(0, 0), (1, 0), (0, 1), (1, 1)]
    products = [((2, 3), (3, 4)), ((1, 1), (1, 1)), ((2, 2, 3), (2, 3, 2)), ((3, 2, 3), (3, 2)), ((2, 3), (2, 3, 2)), ((2, 1, 2, 3), (3, 3, 2)),
                ((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3), (3, 0)), ((0, 2, 3), (3, 2))]
    for a, b in products:
        for flip_a, flip_b in flips:
            swap = lambda dims, flip: dims[:-2] + (dims[-1], dims[-2]) if flip else dims
            add_case(file, "matmul", lambda r: [r.numbers(swap(a, flip_a)), r.numbers(swap(b, flip_b))], flip_a, flip_b)
    add_case(file, "matmul", lambda r: [r.numbers((9, 23)), r.numbers((23, 10))], 0, 0)


def loss(file):
    for of in [(3, 4), (5,), (1,), (2, 2, 3), (0, 4), (2, 0), (3, 1), (2, 21)]:
        add_case(file, "softmax", lambda r: [r.numbers(of)])
    add_case(file, "softmax", lambda r: [r.numbers((2, 4)) + 96])  # overflows exp
    for rows, classes, dtype in [(3, 4, "int32"), (3, 4, "int64"), (1, 1, "int32"), (0, 4, "int32"), (5, 19, "int64")]:
        add_case(file, "cross_entropy", lambda r: [r.numbers((rows, classes)), r.indices((rows,), classes, dtype)])
    add_case(file, "cross_entropy", lambda r: [r.numbers((3, 4)) + 96, r.indices((3,), 4, "int32")])


def norm(file):
    for of in [(3, 3), (1, 1), (2, 4, 4), (2, 2, 3, 3), (0, 3, 3), (2, 0, 0), (9, 9)]:
        add_case(file, "causal_softmax", lambda r: [r.numbers(of)])
    add_case(file, "causal_softmax", lambda r: [r.numbers((4, 4)) + 96])
    for of in [(3, 8), (5,), (2, 2, 6), (0, 4), (3, 33)]:
        for epsilon in (1e-5, 0.125):
            add_case(file, "layer_norm", lambda r: [r.numbers(of), r.numbers(of[-1:]), r.numbers(of[-1:])], epsilon)
    # A mean far from 0: computing the variance from sums of squares is imprecise here.
    add_case(file, "layer_norm", lambda r: [r.numbers((3, 8)) + 1000, r.numbers((8,)), r.numbers((8,))], 1e-5)
    for of in [(2, 3, 2, 4), (5, 2), (3, 1, 33), (0, 3)]:
        for epsilon in (1e-5, 0.125):
            add_case(file, "batch_norm", lambda r: [r.numbers(of), r.numbers(of[1:2]), r.numbers(of[1:2])], epsilon)
            add_case(file, "batch_norm_inference", lambda r: [r.numbers(of), r.numbers(of[1:2]), r.numbers(of[1:2], 1, 3), r.numbers(of[1:2]), r.numbers(of[1:2])], epsilon)
    add_case(file, "batch_norm", lambda r: [r.numbers((3, 2, 4)) + 1000, r.numbers((2,)), r.numbers((2,))], 1e-5)


def attention_heads(file):
    for rows, keys, heads, width, value_width in [(3, 3, 1, 2, 2), (2, 5, 2, 3, 2), (1, 1, 1, 1, 1), (4, 4, 3, 2, 1), (0, 3, 2, 2, 2), (9, 17, 1, 4, 3)]:
        for causal in (0, 1):
            add_case(file, "attend", lambda r: [r.numbers((2, rows, heads * width)), r.numbers((2, keys, heads * width)),
                                                r.numbers((2, keys, heads * value_width))], heads, width ** -0.5, causal)
    add_case(file, "attend", lambda r: [r.numbers((3, 2)), r.numbers((5, 2)) + 96, r.numbers((5, 2))], 1, 1.0, 0)  # overflows exp


def dropouts(file):
    for of, rate, seed, offset in [((37,), 0.5, 1, 0), ((3, 5), 0.125, 77, 1), ((2, 3), 0, 5, 2), ((2, 3), 1, 5, 2), ((0,), 0.5, 1, 1), ((), 0.5, 1, 1),
                                   ((150,), 0.75, 2**40 + 3, 2**50 + 7)]:
        add_case(file, "dropout", lambda r: [r.numbers(of), numpy.array(offset, dtype=numpy.int64)], rate, seed)


def window(file):
    convolutions = [((1, 1, 4, 4), (1, 1, 3, 3), 1, 0), ((2, 3, 4, 5), (2, 3, 3, 3), 1, 1), ((2, 2, 6, 5), (3, 2, 3, 3), 2, 1),
                    ((1, 2, 5, 7), (2, 2, 2, 3), 1, 0), ((2, 3, 4, 4), (2, 3, 1, 1), 1, 0), ((1, 1, 3, 3), (1, 1, 3, 3), 1, 2),
                    ((1, 2, 7, 7), (2, 2, 3, 3), 3, 0), ((0, 2, 4, 4), (3, 2, 3, 3), 1, 1), ((1, 3, 9, 9), (4, 3, 3, 3), 1, 1)]
    for x, filter, stride, padding in convolutions:
        add_case(file, "conv2d", lambda r: [r.numbers(x), r.numbers(filter)], stride, padding)
    # Windows that overlap, that do not cover the last rows, and with gaps between them.
    for of, size, stride in [((1, 1, 4, 4), 2, 2), ((2, 3, 5, 5), 2, 2), ((1, 2, 5, 6), 3, 1), ((1, 2, 7, 7), 3, 2), ((1, 1, 7, 7), 2, 3),
                             ((1, 1, 3, 3), 3, 3), ((2, 2, 3, 3), 1, 1), ((0, 2, 4, 4), 2, 2)]:
        for op in ("max_pool", "avg_pool"):
            add_case(file, op, lambda r: [r.distinct(of)], size, stride)


def optimizers(file):
    for of in [(), (7,), (2, 3), (0,), (2, 0)]:
        add_optimizer(file, "sgd", of, 0.01)
        add_optimizer(file, "momentum", of, 0.01, 0.9)
        add_optimizer(file, "adam", of, 0.001, 0.9, 0.999, 1e-8)
    add_optimizer(file, "momentum", (9,), 0.125, 0.5)
    add_optimizer(file, "adam", (9,), 0.05, 0.8, 0.95, 1e-3)


def layers(file):
    def add(op, arrays, *parameters):
        add_case(file, op, lambda r: [r.numbers(a) if isinstance(a, tuple) else a(r) for a in arrays], *parameters, composed=True)

    for activation in range(4):
        add("dense", [(2, 3, 4), (4, 5), (5,)], 5, activation)
    add("dense", [(4,), (4, 3), (3,)], 3, 0)
    add("conv_layer", [(2, 2, 4, 4), (3, 2, 3, 3), (3, 1, 1)], 3, 3, 1, 1, 1)
    add("conv_layer", [(1, 1, 5, 5), (2, 1, 2, 2), (2, 1, 1)], 2, 2, 2, 0, 3)
    add("embedding", [lambda r: r.indices((2, 3), 5, "int32"), (5, 3)], 5, 3)
    add("layer_norm_layer", [(2, 3, 6), (6,), (6,)])
    for heads, causal in [(1, 0), (2, 1)]:
        add("attention", [(2, 3, 4), *[(4, 4), (4,)] * 4], heads, causal)
    for training in (0, 1):
        add("batch_norm_layer", [(3, 2, 2, 4), (2,), (2,)], 0.125, training)


# ---- training ----


def hashed(tensor, count, bound):
    """Numbers in -bound ... bound that C computes identically (test_training_golden.c). [bound] is a power of two."""
    h = (numpy.arange(count, dtype=numpy.uint64) * 0x9E3779B1 + tensor * 0x85EBCA6B) & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        h = ((h ^ (h >> numpy.uint64(shift))) * factor) & 0xFFFFFFFF
    return ((h >> numpy.uint64(8)).astype(numpy.float64) / (1 << 23) - 1) * bound


def mlp_losses(dtype, steps=100, batches=4, batch=128):
    """Three layers on four batches in turn. The label of a row is the index of the largest of its first ten numbers.

    The data are small relative to Adam's steps: with numbers up to 1 the model overfits the batches within ten steps, in jumps in which float32's
    errors grow a hundredfold.
    """
    sizes = [1024, 1024, 1024, 10]
    layers = []
    for i, (inputs, units) in enumerate(zip(sizes, sizes[1:])):
        w = torch.tensor(hashed(i, inputs * units, 1 / 16).reshape(inputs, units), dtype=dtype, requires_grad=True)
        layers.append((w, torch.zeros(units, dtype=dtype, requires_grad=True)))
    data = [torch.tensor(hashed(10 + i, batch * 1024, 1 / 32).reshape(batch, 1024), dtype=dtype) for i in range(batches)]
    optimizer = torch.optim.Adam([p for layer in layers for p in layer], lr=0.001)
    losses = []
    for step in range(steps):
        x = data[step % batches]
        h = x
        for i, (w, b) in enumerate(layers):
            h = h @ w + b
            h = torch.relu(h) if i < 2 else h
        value = F.cross_entropy(h, x[:, :10].argmax(1))
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def training(file):
    exact, rough = mlp_losses(torch.float64), mlp_losses(torch.float32)
    apart = max(abs(a - b) / a for a, b in zip(exact, rough))
    print(f"training: loss {exact[0]:.4f} to {exact[-1]:.6f}; PyTorch's float32 is up to {apart:.2g} off its float64")
    file.begin("mlp", [])
    file.expect(["out"], torch.tensor(exact, dtype=torch.float64), exact)


FILES = {
    "elementwise": (elementwise, "Elementwise ops."),
    "bfloat16": (bfloat16, "Casts to bfloat16 and back."),
    "shape": (shape, "Ops that move elements about."),
    "reduce": (reduce, "Reductions."),
    "matrix": (matrix, "Matrix products."),
    "loss": (loss, "Softmax and the loss of classes."),
    "norm": (norm, "Causal softmax, layer norm and batch norm."),
    "attention": (attention_heads, "Fused attention."),
    "dropout": (dropouts, "Dropout, with Philox written in Python."),
    "window": (window, "Convolutions and pooling."),
    "layers": (layers, "Layers: ops with variables, which are inputs here, in the order in which they are made."),
    "optimizers": (optimizers, "Optimizers: a variable, and gradients for it, step by step."),
    "training": (training, "The loss of each of 100 steps: 1024 to 1024, 1024 and 10, relu, Adam."),
}


def main():
    here = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=here / "tests" / "runtime" / "golden", help="the folder to write to")
    parser.add_argument("--only", choices=FILES, help="write this file alone")
    options = parser.parse_args()
    torch.set_num_threads(1)  # fixed order of summation
    for name, (fill, about) in FILES.items():
        if options.only in (None, name):
            file = File(options.out / f"{name}.txt", about)
            fill(file)
            file.write()


if __name__ == "__main__":
    main()
