"""headroom.compat.v1: the names of TensorFlow 1."""
import importlib as _importlib

__all__ = ["v1", "v2"]


def __getattr__(name):
    if name == "v1":
        return _importlib.import_module(".v1", __name__)
    if name == "v2":
        import headroom
        return headroom
    raise AttributeError(f"headroom.compat has no {name!r}")
