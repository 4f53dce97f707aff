"""Graphs of torch.compile. Their kernels are not ops, so the arguments of a graph are pinned while it runs, and so is what it allocates."""
import functools

import torch

from ._imports import after_import

MODULE = "torch._inductor.output_code"
CALLABLES = ("CompiledFxGraph", "CompiledAOTI")


def tensors_of(values):
    return [value for value in values if isinstance(value, torch.Tensor)]


def wrap(owner):
    original = owner.__call__

    @functools.wraps(original)
    def call(self, inputs):
        constants = getattr(self, "constants", None) or {}
        # The list is not kept: the graph frees its arguments after their last use.
        torch.ops.headroom.section_begin(tensors_of(inputs) + tensors_of(constants.values()))
        outputs = ()
        try:
            outputs = original(self, inputs)
            return outputs
        finally:
            torch.ops.headroom.section_end(tensors_of(outputs) if isinstance(outputs, (list, tuple)) else [])

    owner.__call__ = call


def wrap_all(module):
    for name in CALLABLES:
        if hasattr(module, name):
            wrap(getattr(module, name))


def install():
    after_import(MODULE, wrap_all)
