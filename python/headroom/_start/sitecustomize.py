"""Start-up hook of `headroom run`: makes Headroom the allocator of PyTorch when a program imports torch.

Python imports the first `sitecustomize` in its path when it starts; `headroom run` puts this folder in front of PYTHONPATH. Until torch is imported
the hook costs one short file and one entry in sys.meta_path. It never stops a program: a failure is a line on standard error.

Environment: HEADROOM_LIMIT, HEADROOM_LMS, HEADROOM_TORCH_DEVICE, HEADROOM_RUN_CHILDREN, HEADROOM_RUN_LIBRARY_DIR, HEADROOM_RUN_MARK (docs/environment.md).
"""
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))


class TorchFinder:
    """Finds torch as the other finders do, and runs the hook when it has been imported. Programs also look for torch without importing it."""

    def __init__(self):
        self.done = False

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.done:
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
            if not self.done:
                self.done = True
                torch_imported()

        loader.exec_module = exec_module


def tell(text):
    try:
        sys.stderr.write("headroom: " + " ".join(text.split()) + "\n")
        sys.stderr.flush()
    except Exception:  # no standard error, or a closed one
        pass


def torch_imported():
    try:
        if not install():
            mark()
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        tell("PyTorch runs with its own allocator, because Headroom could not be installed: %s" % (first or type(error).__name__))
        mark()


def mark():
    """What there is to say about --lms has been said: no second line at the end."""
    path = os.environ.get("HEADROOM_RUN_MARK")
    if path:
        try:
            open(path, "a").close()
        except OSError:
            pass


def add_package():
    """The package of the running Python, if it has one; otherwise the one that this file belongs to."""
    from importlib.util import find_spec
    found = find_spec("headroom")
    if found is not None and found.origin:  # a folder named headroom is found too, without an origin
        return
    sys.path.append(os.path.dirname(os.path.dirname(FOLDER)))
    library = os.environ.get("HEADROOM_RUN_LIBRARY_DIR")
    if library and "HEADROOM_LIBRARY_DIR" not in os.environ and not os.path.isdir(os.path.join(os.path.dirname(FOLDER), "lib")):
        os.environ["HEADROOM_LIBRARY_DIR"] = library


def install():
    """False if PyTorch keeps its own allocator."""
    import torch
    if "headroom.torch" in sys.modules:  # the program uses Headroom itself, and is importing torch for it
        return True
    device = os.environ.get("HEADROOM_TORCH_DEVICE") or ("cuda" if torch.cuda.is_available() else "")
    if not device:
        if any(os.environ.get(name, "0") not in ("", "0") for name in ("HEADROOM_LIMIT", "HEADROOM_LMS", "HEADROOM_TRACE")):
            tell("PyTorch runs with its own allocator: it finds no CUDA device. `headroom run --device cpu` is for CPU tensors")
        return False
    add_package()
    import headroom.torch
    headroom.torch._install_by_run(device)
    try:
        headroom._library.library.hr_environment_check()
    except headroom.Error as error:  # the library has ignored a setting
        tell(str(error))
    return True


def leave_children_alone():
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [path for path in paths if os.path.abspath(path or ".") != FOLDER]
    if any(rest):
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)


def chain():
    """Imports the sitecustomize that Python would have found without this one."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != FOLDER]
    sys.path_importer_cache.pop(FOLDER, None)
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if this is not None:
            sys.modules.setdefault("sitecustomize", this)


if os.environ.get("HEADROOM_TORCH_DEVICE") != "none":
    sys.meta_path.insert(0, TorchFinder())
if os.environ.get("HEADROOM_RUN_CHILDREN") == "0":
    leave_children_alone()
chain()
