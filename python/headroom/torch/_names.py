"""Names for allocations: the path of the module whose forward runs, the phase of a step, and the steps themselves."""
import threading
import weakref

import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as torch_optimizer

from .._library import library


def intern(text):
    return library.hr_name_intern(text.encode())


class Names:
    """Hooks for all modules and optimizers. A module's name is its path in the outermost module that was called: "transformer.h.3.mlp"."""

    def __init__(self, plugin):
        self.plugin = plugin
        self.allocator = plugin.headroom_torch_allocator()
        self.paths = weakref.WeakKeyDictionary()  # module: number of its name
        self.local = threading.local()            # .stack: what to restore when each running module ends
        self.activations = intern("activations")
        self.optimizer = intern("optimizer")
        self.in_step = False

    def install(self):
        nn_module.register_module_forward_pre_hook(self.enter)
        nn_module.register_module_forward_hook(self.leave, always_call=True)
        torch_optimizer.register_optimizer_step_pre_hook(self.begin_update)
        torch_optimizer.register_optimizer_step_post_hook(self.end_update)
        self.step()

    def stack(self):
        if not hasattr(self.local, "stack"):
            self.local.stack = []
        return self.local.stack

    def name_of(self, module, outermost):
        if outermost or module not in self.paths:
            root = type(module).__name__
            for path, part in module.named_modules():
                if outermost or part not in self.paths:
                    self.paths[part] = intern(path or root)
        return self.paths[module]

    def enter(self, module, _inputs):
        stack = self.stack()
        outermost = not stack and module not in self.paths
        scope = self.plugin.headroom_torch_set_scope(self.name_of(module, outermost))
        tag = self.plugin.headroom_torch_set_tag(self.activations)
        stack.append((module, scope, tag))

    def leave(self, module, _inputs, _output):
        stack = self.stack()
        while stack:  # past modules whose forward raised before their hook was registered
            entered, scope, tag = stack.pop()
            self.plugin.headroom_torch_set_scope(scope)
            self.plugin.headroom_torch_set_tag(tag)
            if entered is module:
                return

    def begin_update(self, optimizer, _args, _kwargs):
        self.plugin.headroom_torch_set_tag(self.optimizer)

    def end_update(self, optimizer, _args, _kwargs):
        self.plugin.headroom_torch_set_tag(0)  # not the tag before: an update that raised has left its own
        self.step()

    def step(self):
        if self.in_step:
            library.hr_step_end(self.allocator)
        library.hr_step_begin(self.allocator)
        self.in_step = True
