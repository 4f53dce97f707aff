"""Graphs of torch.compile. Their kernels are not ops, so the arguments of a graph are pinned while it runs, and so is what it allocates."""
import functools
import sys

import torch

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


class AfterImport:
    """Wraps the module's classes when it is imported: importing it takes seconds, and most programs never do.

    Finds the module as the other finders do. It stays until an import succeeds, because programs also look for a module without importing it."""

    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    self.wrap(spec.loader)
                return spec
        return None

    def wrap(self, loader):
        original = loader.exec_module

        def exec_module(module):
            original(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                wrap_all(module)

        loader.exec_module = exec_module


def install():
    if MODULE in sys.modules:
        wrap_all(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, AfterImport())
