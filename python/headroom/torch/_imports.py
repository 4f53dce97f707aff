"""Functions that run when a module is imported: importing some of PyTorch's modules takes seconds, and most programs never do."""
import sys


class AfterImport:
    """Calls function(module) when the module [name] has been imported.

    Finds the module as the other finders do. It stays until an import succeeds, because programs also look for a module without importing it."""

    def __init__(self, name, function):
        self.name = name
        self.function = function

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
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
                self.function(module)

        loader.exec_module = exec_module


def after_import(name, function):
    if name in sys.modules:
        function(sys.modules[name])
    else:
        sys.meta_path.insert(0, AfterImport(name, function))
