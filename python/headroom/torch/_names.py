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
import weakref

import torch
from torch.nn.modules import module as nn_module
from torch.nn.parameter import is_lazy
from torch.optim import optimizer as torch_optimizer

from .._library import library


def intern(text):
    return library.hr_name_intern(text.encode())


class Names:
    """Follows all modules and optimizers. A module's name is its path in the outermost module that was called: "transformer.h.3.mlp"."""

    def __init__(self, plugin, device_type):
        self.plugin = plugin
        self.device_type = device_type
        self.paths = {}                           # id of a module: number of its name, and a reference that removes the entry with the module
        self.lazy = weakref.WeakSet()             # modules that make their parameters in their first forward
        self.inputs = intern("inputs")
        self.optimizer = intern("optimizer")
        self.weights = intern("weights")

    def install(self):
        self.wrap_call()
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

    def forget(self, number):
        self.paths.pop(number, None)
        self.plugin.headroom_torch_set_module(number, 0)

    def add(self, module, scope):
        number = id(module)
        self.paths[number] = (scope, weakref.ref(module, lambda _: self.forget(number)))
        self.plugin.headroom_torch_set_module(number, scope)
        self.name_weights(module, scope)

    def first_run(self, module):
        """Names a module and those inside it. One that another module called first keeps its path there, unless it is called by itself first."""
        outermost = id(module) not in self.paths
        root = type(module).__name__
        for path, part in module.named_modules():
            if outermost or id(part) not in self.paths:
                self.add(part, intern(path or root))

    def name_inputs(self, inputs):
        for tensor in inputs:
            # Without gradients, the results of other modules look the same.
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is None and not isinstance(tensor, torch.nn.Parameter):
                self.name(tensor, self.inputs)

    def entered(self, module, state, args, kwargs):
        """The rare cases of a call: state is what headroom_torch_enter returned."""
        if state == 2:
            self.first_run(module)
            state = self.plugin.fast.headroom_torch_enter(id(module))
        if state == 1 and torch.is_grad_enabled():
            self.name_inputs(args)
            self.name_inputs(kwargs.values())

    def name_lazy(self, module):
        if module in self.lazy:
            self.lazy.discard(module)
            self.name_weights(module, self.paths[id(module)][0])

    def wrap_call(self):
        """Names what runs inside of each module, in about 0.4 us. Global hooks of PyTorch would take 2 us, because with any hook a call does much more."""
        original = torch.nn.Module.__call__
        is_compiling, enter, leave = torch.compiler.is_compiling, self.plugin.fast.headroom_torch_enter, self.plugin.fast.headroom_torch_leave
        entered, lazy = self.entered, self.lazy

        @functools.wraps(original)
        def __call__(module, /, *args, **kwargs):
            if is_compiling():  # torch.compile traces calls, and names are not for its graphs
                return original(module, *args, **kwargs)
            number = id(module)
            state = enter(number)
            try:
                if state:
                    entered(module, state, args, kwargs)
                return original(module, *args, **kwargs)
            finally:
                leave(number)
                if lazy:
                    self.name_lazy(module)

        torch.nn.Module.__call__ = __call__

    # ---- steps ----

    def begin_update(self, optimizer, _args, _kwargs):
        self.plugin.headroom_torch_set_tag(self.optimizer)

    def end_update(self, optimizer, _args, _kwargs):
        self.step()

    def step(self):
        self.plugin.headroom_torch_step()
        self.plugin.headroom_torch_set_tag(self.inputs)  # not the tag before: an update that raised has left its own
