#!/usr/bin/env python3
"""Writes docs/python-reference.md: every public name of the Python package, with its arguments and its docstring.

    tools/python-reference.py            checks it; exit status 1 if it differs
    tools/python-reference.py --write    writes it

HEADROOM_LIBRARY_DIR is the folder of the libraries (build after `make`, the default).
"""
import importlib
import inspect
import os
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "python-reference.md"
MODULES = """config config.experimental experimental experimental.dlpack profiler profiler.experimental errors compat.v1 math nn random keras keras.layers keras.models keras.losses
keras.optimizers keras.activations keras.initializers sizes""".split()
os.environ.setdefault("HEADROOM_LIBRARY_DIR", str(ROOT / "build"))
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "python"))

HEAD = """# Python reference

Made by `tools/python-reference.py` from the docstrings. [`python.md`](python.md) is the guide, [`pytorch.md`](pytorch.md) has `headroom.torch` and `headroom.cupy`. A name is described where it comes first;
`headroom.compat.v1` has all names of `headroom` too.
"""


def public(module):
    names = getattr(module, "__all__", None)
    if names is None:    # errors, sizes
        names = [name for name, value in vars(module).items() if not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value))]
    extra = ["abs", "bool", "pow", "range", "slice"] if module.__name__ == "headroom" else []    # not in *
    return [*names, *extra]


def signature(value):
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""
    return text.replace("(self, ", "(").replace("(self)", "()")


def doc(value):
    text = inspect.getdoc(value) or ""
    if "\n    " not in text and "\n\n" not in text and "  " not in text:
        return " ".join(text.split())
    first, _, rest = text.partition("\n\n")
    if "  " in first:
        return f"```text\n{text}\n```"
    paragraphs = []
    for each in rest.split("\n\n"):
        paragraphs.append(f"```text\n{textwrap.dedent(each)}\n```" if "  " in each else " ".join(each.split()))
    return "\n\n".join([" ".join(first.split()), *[each for each in paragraphs if each]])


def members(kind):
    for name, value in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property):
            yield f"- `{name}`: {doc(value)}"
        elif isinstance(value, (staticmethod, classmethod)) or inspect.isfunction(value):
            function = getattr(kind, name)
            if doc(function):
                yield f"- `{name}{signature(function)}`: {doc(function)}".replace("\n", "\n  ")


def entry(path, value):
    if inspect.isclass(value):
        call = "" if issubclass(value, (Exception, dict, str)) or value.__init__ is object.__init__ else signature(value)
        listed = list(members(value))
        return f"### `{path}{call}`\n\n{doc(value)}\n" + ("\n" + "\n".join(listed) + "\n" if listed else "")
    return f"### `{path}{signature(value)}`\n\n{doc(value)}\n"


def page():
    headroom = importlib.import_module("headroom")
    parts, seen = [HEAD], {}
    for name in ["", *MODULES]:
        module = importlib.import_module(f"headroom.{name}") if name else headroom
        entries, others = [], []
        for each in public(module):
            value = getattr(module, each)
            path = f"{module.__name__}.{each}"
            if inspect.ismodule(value):
                continue
            if not (inspect.isclass(value) or inspect.isroutine(value)) or id(value) in seen:
                others.append(f"`{each}`" + (f" is `{seen[id(value)]}`" if id(value) in seen else ""))
            else:
                seen[id(value)] = path
                entries.append(entry(path, value))
        text = inspect.getdoc(module) if name else "The names of the package itself."
        parts.append(f"## {module.__name__}\n\n{text if '    ' not in text else text.partition(chr(10))[0]}\n")
        if others:
            parts.append("Also here: " + ", ".join(others) + ".\n")
        parts += entries
    return "\n".join(parts)


def main():
    text = page()
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.exit("docs/python-reference.md differs from the docstrings; run tools/python-reference.py --write")


main()
