#!/usr/bin/env python3
"""Tests that other projects bring with their packages: prints a line with the outcome of each. For test_cuda_programs.py, which runs it alone and under `headroom run`
and compares what it prints; an outcome may be a failure.

    installed_tests.py cupy|jax|numpy [COUNT]      examples in the documentation of the package's functions, by doctest
    installed_tests.py torch [COUNT]               PyTorch's table of ops with their samples: results on the card against those on the CPU
    installed_tests.py numba [COUNT]               the tests of numba.cuda

COUNT of them are chosen, the same ones each time. Where a package is not installed or has no tests, a line on the standard error says why, and the status is 77.
"""
import doctest
import importlib
import inspect
import os
import pkgutil
import random
import sys
import types
import unittest
import warnings

NONE = 77
PLACES = {  # the packages that are searched, and the names in the examples
    "cupy": (["cupy"], {"cupy": "cupy", "cp": "cupy", "np": "numpy", "numpy": "numpy"}),
    "jax": (["jax._src.numpy", "jax._src.scipy", "jax._src.nn", "jax._src.lax"],
            {"jax": "jax", "jnp": "jax.numpy", "np": "numpy", "lax": "jax.lax", "nn": "jax.nn"}),
    "numpy": (["numpy.lib", "numpy._core"], {"np": "numpy", "numpy": "numpy"}),
}
LEFT_OUT = ("test", "_environment", "setup", "distributed", "__main__", "prof", "nccl", "cutensor")
OF_CHANCE = ("rand", "empty", "bernoulli", "multinomial", "normal", "dropout", "uniform", "exponential", "geometric", "cauchy", "resize", "rrelu", "poisson")


def none(why):
    print(f"no tests: {why}", file=sys.stderr)
    sys.exit(NONE)


def chosen(items, count):
    items = sorted(items)
    return sorted(random.Random(1).sample(items, min(count, len(items))))


# ---- examples of documentation ----

def modules(root):
    """The package and its modules, as far as they can be imported."""
    try:
        package = importlib.import_module(root)
    except ImportError:
        return
    yield package
    for found in pkgutil.walk_packages(getattr(package, "__path__", []), root + ".", onerror=lambda name: None):
        if any(word in found.name.split(".", 1)[1] for word in LEFT_OUT):
            continue
        try:
            yield importlib.import_module(found.name)
        except BaseException:  # of a dependency that is not installed
            continue


def documented(module):
    """(name, object) of the module's functions and classes, also of compiled ones."""
    for name, value in vars(module).items():
        if (inspect.isroutine(value) or inspect.isclass(value) or callable(value)) and getattr(value, "__module__", None) == module.__name__:
            yield f"{module.__name__}.{name}", value


def examples(roots):
    """Name to the text of a documentation that has examples."""
    texts = {}
    for root in roots:
        for module in modules(root):
            for name, value in documented(module):
                text = inspect.getdoc(value)
                if text and ">>>" in text:
                    texts.setdefault(name, text)
    return texts


def run_examples(package, count):
    roots, imports = PLACES[package]
    try:
        names = {short: importlib.import_module(whole) for short, whole in imports.items()}
    except ImportError as error:
        none(str(error))
    texts, parser = examples(roots), doctest.DocTestParser()
    if not texts:
        none(f"{package} has no examples")
    for name in chosen(texts, count):
        try:
            test = parser.get_doctest(texts[name], dict(names), name, None, 0)
        except ValueError as error:
            print(f"{name}: {error}")
            continue
        runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        result = runner.run(test, out=lambda text: None)
        print(f"{name}: {result.attempted - result.failed} of {result.attempted} passed", flush=True)


# ---- PyTorch's table of ops ----

def import_op_table():
    if "expecttest" not in sys.modules:
        try:
            import expecttest  # noqa: F401
        except ImportError:  # the table is imported through a module that needs it for other tests
            sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)
    from torch.testing._internal.common_methods_invocations import op_db
    return op_db


def moved(value, device):
    import torch
    if isinstance(value, torch.Tensor):
        return value.detach().to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(*(moved(item, device) for item in value)) if hasattr(value, "_fields") else type(value)(moved(item, device) for item in value)
    if isinstance(value, dict):
        return {name: moved(item, device) for name, item in value.items()}
    return value


def outcome_of(op, device):
    import torch
    outcome = []
    try:
        torch.manual_seed(0)
        for _, sample in zip(range(3), op.sample_inputs(device, torch.float32)):
            result = op(moved(sample.input, device), *moved(sample.args, device), **moved(sample.kwargs, device))
            expected = op(moved(sample.input, "cpu"), *moved(sample.args, "cpu"), **moved(sample.kwargs, "cpu"))
            try:
                torch.testing.assert_close(moved(result, "cpu"), moved(expected, "cpu"), rtol=1e-2, atol=1e-3, equal_nan=True, check_stride=False)
                outcome.append("same")
            except AssertionError:
                outcome.append("other")
    except Exception as error:
        outcome.append(type(error).__name__)
    return " ".join(outcome)


def run_ops(count):
    try:
        import torch
        table = import_op_table()
    except Exception as error:
        none(f"torch: {type(error).__name__}: {error}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ops = {f"{op.name}.{op.variant_test_name}": op for op in table
           if torch.float32 in op.dtypes and not any(word in op.name for word in OF_CHANCE)}
    for name in chosen(ops, count):
        print(f"{name}: {outcome_of(ops[name], device)}", flush=True)


# ---- numba ----

class Outcomes(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.of = {}

    def addSuccess(self, test):
        self.of[test.id()] = "passed"

    def addSkip(self, test, reason):
        self.of[test.id()] = "skipped"

    def addError(self, test, error):
        self.of[getattr(test, "id", lambda: str(test))()] = error[0].__name__

    addFailure = addError

    def addExpectedFailure(self, test, error):
        self.of[test.id()] = "failed as expected"

    def addUnexpectedSuccess(self, test):
        self.of[test.id()] = "passed unexpectedly"


def cases(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases(item)
        else:
            yield item


def run_numba(count):
    try:
        places = [importlib.import_module(f"numba.cuda.tests.{part}") for part in ("cudadrv", "cudapy")]
    except ImportError as error:
        none(str(error))
    loader, found = unittest.TestLoader(), {}
    for place in places:
        for module in pkgutil.iter_modules(place.__path__, place.__name__ + "."):
            if module.name.rsplit(".", 1)[1].startswith("test_"):
                found.update((case.id(), case) for case in cases(loader.loadTestsFromName(module.name)))
    if not found:
        none("numba.cuda.tests is empty")
    outcomes = Outcomes()
    for name in chosen(found, count):
        found[name].run(outcomes)
        print(f"{name}: {outcomes.of.get(name, 'nothing')}", flush=True)


def main():
    package, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100
    warnings.simplefilter("ignore")
    if package == "torch":
        run_ops(count)
    elif package == "numba":
        run_numba(count)
    else:
        run_examples(package, count)
    sys.stdout.flush()
    os._exit(0)  # not what the modules that were imported do at the end


if __name__ == "__main__":
    main()
