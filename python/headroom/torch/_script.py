"""TorchScript saves modules and exports them to ONNX without ops: their tensors are pinned meanwhile, and so is what is allocated."""
import contextlib
import functools

import torch

from ._imports import after_import

SAVING = {torch._C.ScriptModule: ["save", "save_to_buffer", "_save_for_mobile", "_save_to_buffer_for_mobile"],
          torch._C.ScriptFunction: ["save", "save_to_buffer"]}
EXPORTER = "torch.onnx._internal.torchscript_exporter.utils"  # of torch.onnx.export(dynamo=False)


def graphs_of(value):
    if not isinstance(value, torch._C.ScriptModule):
        yield value.graph
        return
    for name in value._method_names():
        yield value._get_method(name).graph
    for _, child in torch._C.ModuleDict(value).items():
        yield from graphs_of(child)


def tensors_of(value):
    """Of a module or a function, its constants included."""
    nodes = [node for graph in graphs_of(value) for node in graph.findAllNodes("prim::Constant")]
    constants = [node.t("value") for node in nodes if node.hasAttribute("value") and node.kindOf("value") == "t"]
    return constants + (torch.ops.headroom.tensors_of(value) if isinstance(value, torch._C.ScriptModule) else [])


@contextlib.contextmanager
def section(tensors):
    torch.ops.headroom.section_begin(tensors)
    try:
        yield
    finally:
        torch.ops.headroom.section_end([])


def wrap_saving(owner, name):
    original = getattr(owner, name, None)
    if original is None:  # not in this version of PyTorch
        return

    @functools.wraps(original)
    def save(value, *args, **kwargs):
        with section(tensors_of(value)):
            return original(value, *args, **kwargs)

    setattr(owner, name, save)


def wrap_exporter(module):
    original = module._export

    @functools.wraps(original)
    def export(model, *args, **kwargs):
        tensors = [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []
        with section(tensors):
            return original(model, *args, **kwargs)

    module._export = export


def install():
    for owner, names in SAVING.items():
        for name in names:
            wrap_saving(owner, name)
    after_import(EXPORTER, wrap_exporter)
