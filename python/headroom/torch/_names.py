"""Names for allocations: the path of the module whose forward runs, what the memory is for, and the steps themselves.

An allocation gets the tag of the phase that its thread is in:

    inputs         from the end of an update to the next forward
    activations    in a forward, and after it until the update
    gradients      in the backward pass (ops.cpp)
    optimizer      in an optimizer's step

What a tensor is for may be known only later, so some are named again: parameters and buffers when a module registers them, and once more with their
module's path when it first runs; arguments of the outermost module.
"""
import functools
import threading
import warnings
import weakref

import torch
from torch.nn.modules import module as nn_module
from torch.nn.parameter import is_lazy
from torch.optim import optimizer as torch_optimizer

from .._library import library


def intern(text):
    return library.hr_name_intern(text.encode())


class Names:
    """Hooks for all modules and optimizers. A module's name is its path in the outermost module that was called: "transformer.h.3.mlp"."""

    def __init__(self, plugin, device_type):
        self.plugin = plugin
        self.device_type = device_type
        self.allocator = plugin.headroom_torch_allocator()
        self.paths = weakref.WeakKeyDictionary()  # module: number of its name
        self.lazy = weakref.WeakSet()             # modules that make their parameters in their first forward
        self.local = threading.local()            # .stack: what to restore when each running module ends
        self.activations = intern("activations")
        self.inputs = intern("inputs")
        self.optimizer = intern("optimizer")
        self.weights = intern("weights")
        self.in_step = False

    def install(self):
        # The program has not installed these hooks, and that they run once more for a compiled module only names it.
        warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
        nn_module.register_module_forward_pre_hook(self.enter)
        nn_module.register_module_forward_hook(self.leave, always_call=True)
        nn_module.register_module_parameter_registration_hook(self.registered)
        nn_module.register_module_buffer_registration_hook(self.registered)
        torch_optimizer.register_optimizer_step_pre_hook(self.begin_update)
        torch_optimizer.register_optimizer_step_post_hook(self.end_update)
        self.wrap_apply()
        self.step()

    # ---- tensors that are named after their allocation ----

    def name(self, tensor, tag, scope=0):
        if isinstance(tensor, torch.Tensor) and tensor.device.type == self.device_type and tensor.layout is torch.strided and not is_lazy(tensor):
            try:
                storage = tensor.untyped_storage()
            except (RuntimeError, NotImplementedError):  # a tensor of another library, without a storage
                return
            self.plugin.headroom_torch_name(storage._cdata, scope, tag)

    def registered(self, _module, _name, tensor):
        self.name(tensor, self.weights)

    def name_weights(self, module, scope):
        for tensors in (module._parameters, module._buffers):
            for tensor in tensors.values():
                self.name(tensor, self.weights, scope)
                if is_lazy(tensor):
                    self.lazy.add(module)

    def wrap_apply(self):
        """Module.to(), cuda(), half() and others make new memory for parameters and buffers."""
        original = torch.nn.Module._apply

        @functools.wraps(original)
        def _apply(module, *args, **kwargs):
            before = self.plugin.headroom_torch_set_tag(self.weights)
            try:
                return original(module, *args, **kwargs)
            finally:
                self.plugin.headroom_torch_set_tag(before)

        torch.nn.Module._apply = _apply

    # ---- modules ----

    def stack(self):
        if not hasattr(self.local, "stack"):
            self.local.stack = []
        return self.local.stack

    def name_of(self, module, outermost):
        if outermost or module not in self.paths:
            root = type(module).__name__
            for path, part in module.named_modules():
                if outermost or part not in self.paths:
                    scope = self.paths[part] = intern(path or root)
                    self.name_weights(part, scope)
        return self.paths[module]

    def enter(self, module, inputs):
        if torch.compiler.is_compiling():  # torch.compile traces hooks, and these are not for its graphs
            return
        stack = self.stack()
        outermost = not stack and module not in self.paths
        if not stack and torch.is_grad_enabled():
            for tensor in inputs:
                # Without gradients, the results of other modules look the same.
                if isinstance(tensor, torch.Tensor) and tensor.grad_fn is None and not isinstance(tensor, torch.nn.Parameter):
                    self.name(tensor, self.inputs)
        scope = self.plugin.headroom_torch_set_scope(self.name_of(module, outermost))
        tag = self.plugin.headroom_torch_set_tag(self.activations)
        stack.append((module, scope, tag))

    def leave(self, module, _inputs, _output):
        if torch.compiler.is_compiling():
            return
        stack = self.stack()
        while stack:  # past modules whose forward raised before their hook was registered
            entered, scope, tag = stack.pop()
            self.plugin.headroom_torch_set_scope(scope)
            # What follows a forward, such as the loss, is part of it.
            self.plugin.headroom_torch_set_tag(self.activations if tag == self.inputs else tag)
            if entered is module:
                break
        if module in self.lazy:
            self.lazy.discard(module)
            self.name_weights(module, self.paths[module])

    # ---- steps ----

    def begin_update(self, optimizer, _args, _kwargs):
        self.plugin.headroom_torch_set_tag(self.optimizer)

    def end_update(self, optimizer, _args, _kwargs):
        self.step()

    def step(self):
        if self.in_step:
            library.hr_step_end(self.allocator)
        library.hr_step_begin(self.allocator)
        self.in_step = True
        self.plugin.headroom_torch_set_tag(self.inputs)  # not the tag before: an update that raised has left its own
