"""Ops on tensors. Each is one or a few calls of the library (docs/runtime.md), whose intermediate values are freed or reused at once."""
import builtins
import ctypes
import itertools
import random as _random
import threading

from .._library import exception, library, runtime
from . import arrays, context, dtypes
from .tensor import Tensor, c_dims, number, shape_of, whole

# ---- calling the library ----


def place(tensors):
    """The graph that an op on [tensors] becomes part of, or None: that of the thread, else that of the tensors."""
    graph = context.current_graph()
    return graph if graph is not None else next((each.graph for each in tensors if each.graph is not None), None)


def apply(call, *tensors, name=None):
    """call(ids of [tensors]) as one op: a Tensor of what it returns."""
    if name is not None:
        with context.name_scope(name):
            return apply(call, *tensors)
    graph = place(tensors)
    if graph is not None:
        with graph.building():
            value = call(*[graph.take(each) for each in tensors])
        if not value:
            raise exception(library.hr_last_status())
        return Tensor(value, graph)
    session = tensors[0].session if tensors and not context.thread.devices else context.eager_session()
    context.enter(session)
    value = call(*[each._id if each.session == session else _bring(each, session) for each in tensors])
    if not value or not runtime.hr_value_keep(value):
        raise exception(library.hr_last_status())
    return Tensor(value, None, session)


def _bring(tensor, session):
    """A temporary value of [session] with the tensor's contents; 0 on failure."""
    return runtime.hr_value_copy_to_session(tensor._id, session)


def tensor_of(value, dtype=None, argument="value"):
    """A Tensor of a tensor, a variable, numbers or an array."""
    if isinstance(value, Tensor):
        found = value
    elif hasattr(value, "read_value"):
        found = value.read_value()
    else:
        return constant(value, dtype, argument=argument)
    if dtype is not None and found.dtype is not dtype:
        raise TypeError(f"{argument} is of {found.dtype.name}, not {dtype.name}; headroom.cast(value, headroom.{dtype.name}) makes it the same")
    return found


def pair(a, b, what="op"):
    """Two tensors. A number or an array gets the dtype of the other one."""
    if _is_tensor(a):
        a = tensor_of(a)
        return a, tensor_of(b, a.dtype, f"the right side of {what}") if not _is_tensor(b) else tensor_of(b)
    if _is_tensor(b):
        b = tensor_of(b)
        return tensor_of(a, b.dtype, f"the left side of {what}"), b
    a = tensor_of(a)
    return a, tensor_of(b, a.dtype)


def _is_tensor(value):
    return isinstance(value, Tensor) or hasattr(value, "read_value")


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ---- without inputs ----

def constant(value, dtype=None, shape=None, name=None, argument="value"):
    """A tensor of numbers, nested lists or an array. float becomes float32, int int32."""
    dtype = dtypes.as_dtype(dtype) if dtype is not None else None
    if _is_tensor(value):
        found = tensor_of(value)
        return cast(found, dtype) if dtype is not None and found.dtype is not dtype else found
    data = arrays.from_any(value, dtype, argument)
    result = apply(lambda: runtime.hr_constant(data.dtype.number, c_dims(data.dims), len(data.dims), data.address()), name=name)
    if dtype is dtypes.bfloat16:
        result = cast(result, dtype)
    if shape is not None:
        dims = shape_of(shape)
        result = reshape(result, dims) if dims.num_elements() == result.shape.num_elements() else broadcast_to(result, dims)
    return result


convert_to_tensor = constant


def fill(dims, value, dtype=None, name=None):
    """A tensor in which every element is [value]."""
    dims = shape_of(dims, "dims")
    if not isinstance(value, bool):
        number(value, "value", 1.5)
    dtype = dtypes.as_dtype(dtype if dtype is not None else type(value))
    return apply(lambda: runtime.hr_full(dtype.number, c_dims(dims), len(dims), float(value)), name=name)


def zeros(shape, dtype=dtypes.float32, name=None):
    """A tensor of zeros."""
    return fill(shape, 0, dtype, name)


def ones(shape, dtype=dtypes.float32, name=None):
    """A tensor of ones."""
    return fill(shape, 1, dtype, name)


def zeros_like(input, dtype=None, name=None):
    """A tensor of zeros with the shape, and by default the dtype, of another one."""
    found = tensor_of(input)
    return fill(found.shape, 0, dtype or found.dtype, name)


def ones_like(input, dtype=None, name=None):
    """A tensor of ones with the shape, and by default the dtype, of another one."""
    found = tensor_of(input)
    return fill(found.shape, 1, dtype or found.dtype, name)


def eye(num_rows, dtype=dtypes.float32, name=None):
    """The identity matrix."""
    if whole(num_rows, "num_rows", 3) < 1:
        raise ValueError(f"num_rows is {num_rows}; give 1 or more, such as 3")
    return one_hot(list(builtins.range(num_rows)), num_rows, dtype=dtype, name=name)


def range(start, limit=None, delta=1, dtype=None, name=None):
    if limit is None:
        start, limit = 0, start
    for argument, value in (("start", start), ("limit", limit), ("delta", delta)):
        number(value, argument, 10)
    if not delta:
        raise ValueError("delta is 0; give the distance of two numbers, such as 1")
    if all(isinstance(each, int) for each in (start, limit, delta)):
        return constant(list(builtins.range(start, limit, delta)), dtype or dtypes.int32, name=name)
    count = max(0, -int(-(limit - start) // delta))
    return constant([start + at * delta for at in builtins.range(count)], dtype or dtypes.float32, name=name)


_seeds = {"global": None, "next": itertools.count(1)}
_seed_lock = threading.Lock()


def set_seed(seed):
    """Random ops give the same numbers again from here on."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed is {seed!r}; give a whole number, such as 1")
    with _seed_lock:
        _seeds["global"], _seeds["next"] = seed, itertools.count(1)


def next_seed(seed):
    """A 64-bit seed: of [seed] if it is given, else of set_seed and the number of random ops since."""
    if seed is not None:
        seed = whole(seed, "seed", 1)
    with _seed_lock:
        if seed is not None:
            mixed = (seed, 0 if _seeds["global"] is None else _seeds["global"])
        elif _seeds["global"] is None:
            return _random.getrandbits(64)
        else:
            mixed = (_seeds["global"], next(_seeds["next"]))
    return _random.Random(mixed[0] * 0x9E3779B97F4A7C15 + mixed[1]).getrandbits(64)


def random_normal(shape, mean=0.0, stddev=1.0, dtype=dtypes.float32, seed=None, name=None):
    """Normally distributed numbers."""
    dims, dtype, chosen = shape_of(shape), dtypes.as_dtype(dtype), next_seed(seed)
    mean, stddev = number(mean, "mean", 0.0), number(stddev, "stddev", 1.0)

    def call():
        value = runtime.hr_random_normal(dtype.number, c_dims(dims), len(dims), chosen)
        return value if mean == 0 and stddev == 1 else runtime.hr_scale(value, stddev, mean)
    return apply(call, name=name)


def random_uniform(shape, minval=0, maxval=None, dtype=dtypes.float32, seed=None, name=None):
    """Numbers from minval up to, and not including, maxval, all as likely."""
    dims, dtype, chosen = shape_of(shape), dtypes.as_dtype(dtype), next_seed(seed)
    if maxval is None:
        if not dtype.is_floating:
            raise ValueError(f"maxval is missing, and {dtype.name} has no range by itself; give maxval=10")
        maxval = 1
    minval, maxval = number(minval, "minval", 0), number(maxval, "maxval", 10)
    return apply(lambda: runtime.hr_random_uniform(dtype.number, c_dims(dims), len(dims), minval, maxval, chosen), name=name)


# ---- elementwise ----

def _unary(what, function, text):
    def op(x, name=None):
        return apply(function, tensor_of(x, argument="x"), name=name)
    op.__name__ = op.__qualname__ = what
    op.__doc__ = text
    return op


def _binary(what, text=None):
    function = getattr(runtime, f"hr_{what}")

    def op(x, y, name=None):
        return apply(function, *pair(x, y, what), name=name)
    op.__name__ = op.__qualname__ = what
    op.__doc__ = text
    return op


sub, div, maximum = _binary("sub"), _binary("div"), _binary("maximum", "The larger of x and y, element by element.")
_add, _mul = _binary("add"), _binary("mul")
exp = _unary("exp", runtime.hr_exp, "e to the power of each element.")
log = _unary("log", runtime.hr_log, "The natural logarithm of each element.")
sqrt = _unary("sqrt", runtime.hr_sqrt, "The square root of each element.")
tanh = _unary("tanh", runtime.hr_tanh, "The hyperbolic tangent of each element.")
relu = _unary("relu", runtime.hr_relu, "max(x, 0) of each element.")
negative = _unary("negative", runtime.hr_neg, "-x of each element.")
sigmoid = _unary("sigmoid", lambda x: runtime.hr_scale(runtime.hr_tanh(runtime.hr_scale(x, 0.5, 0)), 0.5, 0.5), "1 / (1 + exp(-x)) of each element.")


def gelu(features, approximate=False, name=None):
    """Exact, with the error function."""
    return apply(runtime.hr_gelu, tensor_of(features), name=name)


def scale(x, factor, plus=0.0, name=None):
    """x * factor + plus, with numbers that need no memory on the device."""
    factor, plus = number(factor, "factor", 2.0), number(plus, "plus", 1.0)
    return apply(lambda value: runtime.hr_scale(value, factor, plus), tensor_of(x), name=name)


def _scales(tensor, number):
    """Whether a number can be given to hr_scale: of floats, and of integers where the number is whole and exact."""
    return _is_number(number) and (tensor.dtype in (dtypes.float32, dtypes.float64))


def add(x, y, name=None):
    """x + y, element by element, with broadcasting."""
    if _is_tensor(x) and _scales(tensor_of(x), y):
        return scale(x, 1, y, name)
    if _is_tensor(y) and _scales(tensor_of(y), x):
        return scale(y, 1, x, name)
    return apply(runtime.hr_add, *pair(x, y, "add"), name=name)


def multiply(x, y, name=None):
    """x * y, element by element, with broadcasting."""
    if _is_tensor(x) and _scales(tensor_of(x), y):
        return scale(x, y, 0, name)
    if _is_tensor(y) and _scales(tensor_of(y), x):
        return scale(y, x, 0, name)
    return apply(runtime.hr_mul, *pair(x, y, "mul"), name=name)


def subtract(x, y, name=None):
    """x - y, element by element, with broadcasting."""
    if _is_tensor(x) and _scales(tensor_of(x), y):
        return scale(x, 1, -y, name)
    return sub(x, y, name)


def divide(x, y, name=None):
    """x / y, element by element, with broadcasting."""
    return div(x, y, name)


def minimum(x, y, name=None):
    """The smaller of x and y, element by element."""
    return apply(lambda a, b: runtime.hr_neg(runtime.hr_maximum(runtime.hr_neg(a), runtime.hr_neg(b))), *pair(x, y, "minimum"), name=name)


def square(x, name=None):
    """x * x."""
    return apply(lambda value: runtime.hr_mul(value, value), tensor_of(x), name=name)


def abs(x, name=None):
    """The absolute value of each element."""
    return apply(lambda value: runtime.hr_maximum(value, runtime.hr_neg(value)), tensor_of(x), name=name)


def pow(x, y, name=None):
    """x to the power of a number: 0.5, or a whole one."""
    x = tensor_of(x)
    if y == 0.5:
        return sqrt(x, name)
    if isinstance(y, bool) or not isinstance(y, (int, float)) or y != int(y) or y < 1:
        raise ValueError(f"the power is {y!r}; give 0.5 or a whole number from 1 on, such as 2, or headroom.exp(y * headroom.log(x))")

    def call(value):
        result = value
        for _ in builtins.range(int(y) - 1):
            result = runtime.hr_mul(result, value)
        return result if y > 1 else runtime.hr_scale(value, 1, 0)
    return apply(call, x, name=name)


def cast(x, dtype, name=None):
    """The elements as another dtype."""
    code = dtypes.as_dtype(dtype).number
    return apply(lambda value: runtime.hr_cast(value, code), tensor_of(x, argument="x"), name=name)


# ---- shape ----

def reshape(tensor, shape, name=None):
    """The same elements in another shape; one dimension may be -1."""
    dims = shape_of(shape)
    return apply(lambda value: runtime.hr_reshape(value, c_dims(dims), len(dims)), tensor_of(tensor), name=name)


def transpose(a, perm=None, name=None):
    """The dimensions in another order: that of perm, or reversed."""
    a = tensor_of(a)
    order = list(reversed(builtins.range(a.ndim))) if perm is None else [whole(each, "an element of perm", "[1, 0]") for each in perm]
    return apply(lambda value: runtime.hr_transpose(value, (ctypes.c_int * len(order))(*order) if order else None, len(order)), a, name=name)


MAX_CONCAT = 8    # inputs of one op of the library


def concat(values, axis=0, name=None):
    """Any number of tensors, eight at a time."""
    if not isinstance(values, (list, tuple)) or not values:
        raise TypeError(f"values is {values!r}; give a list of tensors, such as [a, b]")
    found = [tensor_of(each, argument="an element of values") for each in values]
    axis = whole(axis, "axis", 0)
    while len(found) > 1:
        found = [_concat(found[at:at + MAX_CONCAT], axis, name) for at in builtins.range(0, len(found), MAX_CONCAT)]
    return found[0]


def _concat(values, axis, name):
    if len(values) == 1:
        return values[0]
    return apply(lambda *ids: runtime.hr_concat((ctypes.c_uint64 * len(ids))(*ids), len(ids), axis), *values, name=name)


def expand_dims(input, axis, name=None):
    """A dimension of 1 is added at [axis]."""
    found = tensor_of(input)
    axis = whole(axis, "axis", 0)
    at = axis if axis >= 0 else axis + found.ndim + 1
    if not 0 <= at <= found.ndim:
        raise ValueError(f"axis is {axis}, but the tensor has {found.ndim} dimensions; give one from {-found.ndim - 1} to {found.ndim}")
    return reshape(found, found.shape[:at] + (1,) + found.shape[at:], name)


def squeeze(input, axis=None, name=None):
    """Dimensions of 1 are removed: those of [axis], or all."""
    found = tensor_of(input)
    drop = [at for at, size in enumerate(found.shape) if size == 1] if axis is None else _axes(axis, found.ndim)
    wrong = [at for at in drop if found.shape[at] != 1]
    if wrong:
        raise ValueError(f"axis is {axis}, but the tensor's shape is {list(found.shape)}; only dimensions of 1 can be squeezed")
    return reshape(found, [size for at, size in enumerate(found.shape) if at not in drop], name)


def stack(values, axis=0, name=None):
    """Tensors of one shape along a new axis."""
    return concat([expand_dims(each, axis) for each in values], axis, name)


def slice(input_, begin, size, name=None):
    """The part of [input_] that begins at [begin], with [size] elements along each axis; -1 = all that are left."""
    found = tensor_of(input_)
    begin, size = ([whole(each, f"an element of {argument}", "[0, 2]") for each in given] for argument, given in (("begin", begin), ("size", size)))
    for axis, (first, count) in enumerate(zip(begin, size)):
        found = _cut(found, axis, first, found.shape[axis] - first if count == -1 else count)
    return found


def _cut(tensor, axis, begin, count):
    if begin == 0 and count == tensor.shape[axis]:
        return tensor
    return apply(lambda value: runtime.hr_slice(value, axis, begin, count), tensor)


def item(tensor, key):
    """tensor[key]: whole numbers, slices without a step, ... and None."""
    keys = list(key) if isinstance(key, tuple) else [key]
    dots = [at for at, each in enumerate(keys) if each is Ellipsis]
    used = sum(each is not None and each is not Ellipsis for each in keys)
    if len(dots) > 1 or used > tensor.ndim:
        raise IndexError(f"a tensor of the shape {list(tensor.shape)} is indexed with {key!r}; it has {tensor.ndim} dimensions")
    if dots:
        keys[dots[0]:dots[0] + 1] = [builtins.slice(None)] * (tensor.ndim - used)
    dims, axis = [], 0
    for each in keys:
        if each is None:
            dims.append(1)
            continue
        size = tensor.shape[axis]
        if isinstance(each, builtins.slice):
            first, last, step = each.indices(size)
            if step != 1:
                raise ValueError(f"a step of {step} in an index; only 1 is possible: tensor[2:5]")
            count = max(0, last - first)
            dims.append(count)
        else:
            first, count = _index(each, size, axis), 1
        tensor = _cut(tensor, axis, first, count)
        axis += 1
    dims += tensor.shape[axis:]
    return tensor if tuple(dims) == tuple(tensor.shape) else reshape(tensor, dims)


def _index(key, size, axis):
    try:
        at = key.__index__() if not isinstance(key, bool) else None
    except AttributeError:
        at = None
    if at is None:
        raise TypeError(f"an index is {key!r}; give a whole number, a slice, ... or None, such as tensor[0, 1:3]; headroom.gather selects rows")
    if not -size <= at < size:
        raise IndexError(f"index {at} is outside of dimension {axis}, which has {size} elements")
    return at if at >= 0 else at + size


def broadcast_to(input, shape, name=None):
    """The elements repeated to a larger shape."""
    dims = shape_of(shape)
    return apply(lambda value: runtime.hr_broadcast_to(value, c_dims(dims), len(dims)), tensor_of(input), name=name)


def gather(params, indices, axis=0, name=None):
    """Rows of [params], along its first dimension."""
    if axis != 0:
        raise ValueError(f"axis is {axis}; rows are selected along 0: transpose the tensor first")
    return apply(runtime.hr_gather, tensor_of(params), tensor_of(indices), name=name)


embedding_lookup = gather


def one_hot(indices, depth, on_value=None, off_value=None, axis=None, dtype=None, name=None):
    """Rows of [depth] numbers with a 1 at each index."""
    if on_value not in (None, 1) or off_value not in (None, 0) or axis not in (None, -1):
        raise ValueError("on_value, off_value and axis have only their defaults: 1, 0 and -1; scale or transpose the result")
    code, depth = dtypes.as_dtype(dtype or dtypes.float32).number, whole(depth, "depth", 10)
    return apply(lambda value: runtime.hr_one_hot(value, depth, code), tensor_of(indices, argument="indices"), name=name)


# ---- reductions ----

ALL_AXES = -100    # HR_ALL_AXES


def _axes(axis, rank):
    axes = [axis] if isinstance(axis, int) else list(axis)
    for each in axes:
        if isinstance(each, bool) or not isinstance(each, int) or not -rank <= each < rank:
            raise ValueError(f"axis is {each!r}, but the tensor has {rank} dimensions; give one from {-rank} to {rank - 1}")
    return sorted({each % rank for each in axes}, reverse=True)


def _reduction(name, text):
    function = getattr(runtime, f"hr_{name}")

    def op(input_tensor, axis=None, keepdims=False, name=None):
        found = tensor_of(input_tensor, argument="input_tensor")
        axes = [ALL_AXES] if axis is None else _axes(axis, found.ndim)

        def call(value):
            for each in axes:
                value = function(value, each, bool(keepdims))
            return value
        return apply(call, found, name=name) if axes else found
    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"{text} along [axis], a number or several, or of all elements."
    return op


reduce_sum, reduce_mean = _reduction("reduce_sum", "The sum"), _reduction("reduce_mean", "The mean")
reduce_max = _reduction("reduce_max", "The largest element")


def reduce_min(input_tensor, axis=None, keepdims=False, name=None):
    """The least element along [axis], a number or several, or of all elements."""
    return negative(reduce_max(negative(input_tensor), axis, keepdims, name))


def add_n(inputs, name=None):
    """The sum of tensors."""
    found = [tensor_of(each) for each in inputs]

    def call(first, *others):
        for each in others:
            first = runtime.hr_add(first, each)
        return first
    return apply(call, *found, name=name) if len(found) > 1 else found[0]


# ---- linear algebra and layers ----

def matmul(a, b, transpose_a=False, transpose_b=False, name=None):
    """The matrix product of the last two dimensions."""
    a, b = pair(a, b, "matmul")
    if transpose_a or transpose_b:
        return apply(lambda x, y: runtime.hr_matmul_transposed(x, bool(transpose_a), y, bool(transpose_b)), a, b, name=name)
    return apply(runtime.hr_matmul, a, b, name=name)


def softmax(logits, axis=-1, name=None):
    """exp(logits) divided by their sum, along the last dimension."""
    found = tensor_of(logits, argument="logits")
    if axis not in (-1, found.ndim - 1):
        raise ValueError(f"axis is {axis}; softmax runs along the last one, -1: transpose the tensor first")
    return apply(runtime.hr_softmax, found, name=name)


def log_softmax(logits, axis=-1, name=None):
    """logits - max - log(sum(exp(logits - max)))."""
    found = tensor_of(logits, argument="logits")
    shifted = sub(found, reduce_max(found, -1, True))
    return sub(shifted, log(reduce_sum(exp(shifted), -1, True)), name)


def bias_add(value, bias, name=None):
    """value + bias, with broadcasting."""
    return apply(runtime.hr_add, *pair(value, bias, "bias_add"), name=name)


def layer_normalization(x, gain, bias, epsilon=1e-5, name=None):
    """Along the last dimension."""
    return apply(lambda *ids: runtime.hr_layer_norm(*ids, epsilon), tensor_of(x), tensor_of(gain), tensor_of(bias), name=name)


def conv2d_nchw(x, filters, stride=1, padding=0, name=None):
    """x [n, channels, height, width], filters [out channels, channels, size, size], with zeros around x."""
    return apply(lambda *ids: runtime.hr_conv2d(*ids, stride, padding), tensor_of(x), tensor_of(filters), name=name)


def max_pool_nchw(x, size, stride, name=None):
    return apply(lambda value: runtime.hr_max_pool(value, size, stride), tensor_of(x), name=name)


def avg_pool_nchw(x, size, stride, name=None):
    return apply(lambda value: runtime.hr_avg_pool(value, size, stride), tensor_of(x), name=name)


def causal_softmax(logits, name=None):
    """Softmax in which a row does not see later columns."""
    return apply(runtime.hr_causal_softmax, tensor_of(logits), name=name)


def sparse_softmax_cross_entropy_with_logits(labels, logits, name=None):
    """One loss for each row of logits [rows, classes]; labels are numbers of classes."""
    return apply(runtime.hr_cross_entropy, tensor_of(logits, argument="logits"), tensor_of(labels, argument="labels"), name=name)


def softmax_cross_entropy_with_logits(labels, logits, name=None):
    """labels are probabilities of classes, such as of one_hot."""
    labels, logits = pair(labels, logits, "cross entropy")
    return negative(reduce_sum(multiply(labels, log_softmax(logits)), -1), name)


def group(*inputs, name=None):
    """One Operation for many. Outside of graphs the ops have run already."""
    from .graph import Operation
    found = [each for each in _flat(inputs)]
    graph = place([each for each in found if getattr(each, "graph", None) is not None])
    if graph is None:
        return Operation(0, None, name)
    ids = [each._id for each in found if getattr(each, "_id", 0)]
    with graph.building():
        value = runtime.hr_group((ctypes.c_uint64 * len(ids))(*ids), len(ids)) if ids else runtime.hr_full(dtypes.int32.number, None, 0, 0)
    if not value:
        raise exception(library.hr_last_status())
    return Operation(value, graph, name)


def _flat(values):
    for each in values:
        if isinstance(each, (list, tuple)):
            yield from _flat(each)
        elif each is not None:
            yield each


def no_op(name=None):
    """An operation that does nothing."""
    return group(name=name)


def identity(input, name=None):
    """The same contents as a tensor of its own."""
    found = tensor_of(input)
    return reshape(found, found.shape, name)


def stop_gradient(input, name=None):
    """Gradients do not pass: the contents as a constant. Only outside of graphs."""
    found = tensor_of(input)
    return constant(found.numpy(), found.dtype, name=name)


# ---- operators ----

def _operators(kind):
    """Python's operators for a class."""
    def swapped(op):
        return lambda self, other: op(other, self)

    for name, op in (("add", add), ("sub", subtract), ("mul", multiply), ("truediv", divide), ("matmul", matmul)):
        setattr(kind, f"__{name}__", lambda self, other, op=op: op(self, other))
        setattr(kind, f"__r{name}__", swapped(op))
    kind.__neg__ = lambda self: negative(self)
    kind.__pow__ = lambda self, other: pow(self, other)
    kind.__abs__ = lambda self: abs(self)


_operators(Tensor)
