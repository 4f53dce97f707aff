"""Losses: objects that take true and predicted values and return the mean loss."""
from .._runtime import ops

__all__ = ["CategoricalCrossentropy", "Loss", "MeanAbsoluteError", "MeanSquaredError", "SparseCategoricalCrossentropy"]

EPSILON = 1e-7


class Loss:
    """Base class: call(y_true, y_pred) returns one loss for each row."""

    def __init__(self, reduction="sum_over_batch_size", name=None):
        if reduction not in ("sum_over_batch_size", "auto", "sum", "none", None):
            raise ValueError(f"reduction is {reduction!r}; give 'sum_over_batch_size', 'sum' or 'none'")
        self.reduction = reduction
        self.name = name

    def call(self, y_true, y_pred):
        """One loss for each row; a subclass has its own."""
        raise NotImplementedError(f"{type(self).__name__} needs a method call(self, y_true, y_pred)")

    def __call__(self, y_true, y_pred):
        losses = self.call(y_true, ops.tensor_of(y_pred, argument="y_pred"))
        if self.reduction in ("none", None):
            return losses
        return (ops.reduce_sum if self.reduction == "sum" else ops.reduce_mean)(losses)


class CategoricalCrossentropy(Loss):
    """From probabilities of classes (y_pred), or from logits; y_true are probabilities too, such as of one_hot.

    y_true may have one more dimension before the classes: several labels for each row, [rows, labels, classes], each compared with the row's prediction."""

    def __init__(self, from_logits=False, **options):
        super().__init__(**options)
        self.from_logits = from_logits

    def call(self, y_true, y_pred):
        y_true = ops.tensor_of(y_true, argument="y_true") if hasattr(y_true, "dtype") else ops.constant(y_true, y_pred.dtype, argument="y_true")
        if y_true.ndim == y_pred.ndim + 1 and (*y_true.shape[:-2], y_true.shape[-1]) == tuple(y_pred.shape):
            y_pred = ops.expand_dims(y_pred, -2)
        elif tuple(y_true.shape) != tuple(y_pred.shape):
            raise ValueError(f"y_true has the shape {list(y_true.shape)}, and y_pred {list(y_pred.shape)}; give the same, such as one_hot labels. "
                             "SparseCategoricalCrossentropy takes numbers of classes")
        if y_true.dtype is not y_pred.dtype:
            y_true = ops.cast(y_true, y_pred.dtype)
        if self.from_logits:
            logs = ops.log_softmax(y_pred)
        else:
            total = ops.reduce_sum(y_pred, -1, True)
            logs = ops.log(ops.maximum(ops.divide(y_pred, total), ops.constant(EPSILON, y_pred.dtype)))
        return ops.negative(ops.reduce_sum(ops.multiply(y_true, logs), -1))


class SparseCategoricalCrossentropy(Loss):
    """y_true are numbers of classes, one for each row of y_pred."""

    def __init__(self, from_logits=False, **options):
        super().__init__(**options)
        self.from_logits = from_logits

    def call(self, y_true, y_pred):
        labels = ops.tensor_of(y_true, argument="y_true")
        if labels.dtype.kind != "int":
            raise TypeError(f"y_true is of {labels.dtype.name}; give numbers of classes, such as [3, 1], of int32 or int64")
        if not self.from_logits:
            y_pred = ops.log(ops.maximum(y_pred, ops.constant(EPSILON, y_pred.dtype)))
        classes = y_pred.shape[-1]
        return ops.sparse_softmax_cross_entropy_with_logits(ops.reshape(labels, [-1]), ops.reshape(y_pred, [-1, classes]))


class _Elementwise(Loss):
    def call(self, y_true, y_pred):
        y_true, y_pred = ops.pair(y_true, y_pred, "the loss")
        each = self._difference(ops.sub(y_pred, y_true))
        return ops.reduce_mean(each, -1) if each.ndim else each


class MeanSquaredError(_Elementwise):
    """The mean of the squared differences."""

    _difference = staticmethod(ops.square)


class MeanAbsoluteError(_Elementwise):
    """The mean of the absolute differences."""

    _difference = staticmethod(ops.abs)
