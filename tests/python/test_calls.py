#!/usr/bin/env python3
"""docs/python-calls.md: every name in it is there, and everything that the documents call is in it. Every public name has a docstring."""
import ast
import importlib
import inspect
import re
import unittest

from environment import ROOT, need_numpy, run_python, use

need_numpy()
use()
import headroom
from headroom._report import OPTIONS

PAGE = (ROOT / "docs" / "python-calls.md").read_text()
CALLS = """list_physical_devices set_logical_device_configuration LogicalDeviceConfiguration(memory_limit get_memory_info("GPU:0") get_memory_info() Allocator
_set_allocator get_default_graph get_stats .data.ptr tf.constant tf.random.normal tf.random.uniform tf.one_hot tf.matmul tf.Variable get_variable variable_scope
global_variables_initializer compat.v1.Graph as_default placeholder compat.v1.Session sess.run feed_dict sess.close tf.function run_functions_eagerly GradientTape tape.gradient
Sequential layers.Dense optimizers.Adam apply_gradients CategoricalCrossentropy trainable_variables RunOptions report_allocations_on_oom allocation_log_buffer_size
allocation_log_sampling_rate RunMetadata ResourceExhaustedError extract_allocation_log json.loads profiler.experimental.Profile --profile_options=profile_steps tensorboard
profiler.Profiler profiler.profile( ProfileOptionBuilder.time_and_memory show_memory show_input_output min_bytes profile_name_scope profile_model profile_and_save
set_lms_enabled set_lms_defrag_enabled reset_memory_stats get_num_allocs get_bytes_in_use get_peak_bytes_in_use get_largest_alloc_size get_bytes_limit get_bytes_reserved
get_peak_bytes_reserved get_bytes_reservable_limit get_bytes_inactive get_bytes_active get_peak_bytes_active get_bytes_reclaimed get_num_single_reclaims get_num_full_reclaims
get_num_defragmentations get_bytes_defragged""".split()


def public(module):
    """(path, object) of the public names of a module."""
    for name in getattr(module, "__all__", None) or [each for each in vars(module) if not each.startswith("_")]:
        yield f"{module.__name__}.{name}", getattr(module, name)


def modules():
    folder = ROOT / "python" / "headroom"
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts and not any(part.startswith("_") for part in parts) and parts[0] not in ("cupy", "torch", "pytest", "lightning", "transformers"):
            yield importlib.import_module(".".join(("headroom", *parts)))


class Calls(unittest.TestCase):
    def test_every_call_of_the_documents_is_there(self):
        self.assertEqual([call for call in CALLS if call not in PAGE], [])

    def test_every_name_exists(self):
        names = set(re.findall(r"\b(?:tf|headroom)((?:\.[A-Za-z_]\w*)+)", PAGE)) - {".keras.layers.Dense"}
        self.assertGreater(len(names), 40)
        for path in names:
            found = headroom
            for part in path[1:].split("."):
                found = getattr(found, part)

    def test_every_getter_and_option_exists(self):
        for name in re.findall(r"`(get_(?:num|bytes|peak|largest)_\w+)`", PAGE):
            self.assertTrue(callable(getattr(headroom.experimental, name)))
        for name in re.findall(r"`options\['(\w+)'\]", PAGE):
            self.assertIn(name, OPTIONS)

    def test_every_state_is_one_of_four(self):
        rows = re.findall(r"^\| .*? \| ([a-z ]+) \|.*\|$", PAGE.split("## Devices", 1)[1], re.M)
        self.assertGreater(len(rows), 40)
        self.assertEqual(set(rows) - {"state"}, {"works", "differs", "died", "never existed"})

    def test_every_program_is_there(self):
        linked = set(re.findall(r"\((?:\.\./)?examples/python/(\w+)\.py\)", PAGE))
        self.assertEqual(linked, {path.stem for path in (ROOT / "examples" / "python").glob("*.py")})


class Docstrings(unittest.TestCase):
    def test_the_reference_is_made_of_them(self):
        result = run_python(ROOT / "tools" / "python-reference.py")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        page = (ROOT / "docs" / "python-reference.md").read_text()
        self.assertIn("\n### `headroom.config.set_logical_device_configuration(device, logical_devices)`\n", page)
        self.assertGreater(page.count("\n### "), 150)

    maxDiff = None

    def test_every_public_name_has_one(self):
        missing = set()
        for module in [headroom, *modules()]:
            if not module.__doc__:
                missing.add(module.__name__)
            for path, value in public(module):
                if not (inspect.isclass(value) or inspect.isroutine(value)) or not getattr(value, "__module__", "").startswith("headroom"):
                    continue
                if not value.__doc__ or value.__doc__.startswith(value.__name__ + "("):
                    missing.add(path)
                if inspect.isclass(value):
                    for name, member in vars(value).items():
                        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod))):
                            if not inspect.getdoc(getattr(value, name)) and not any(getattr(getattr(base, name, None), "__doc__", None) for base in value.__mro__[1:]):
                                missing.add(f"{path}.{name}")
        self.assertEqual(sorted(missing), [])

    def test_modules_that_need_packages_of_others_have_them_too(self):
        for name in ("torch/__init__", "cupy", "pytest", "lightning", "transformers"):
            tree = ast.parse((ROOT / "python" / "headroom" / f"{name}.py").read_text())
            self.assertTrue(ast.get_docstring(tree), name)
            exported = next((ast.literal_eval(each.value) for each in tree.body if isinstance(each, ast.Assign) and each.targets[0].id == "__all__"), None)
            for each in tree.body:
                if isinstance(each, (ast.FunctionDef, ast.ClassDef)) and not each.name.startswith("_") and (exported is None or each.name in exported):
                    self.assertTrue(ast.get_docstring(each), f"{name}.{each.name}")
                    for member in each.body if isinstance(each, ast.ClassDef) and exported else []:
                        if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                            self.assertTrue(ast.get_docstring(member), f"{name}.{each.name}.{member.name}")


if __name__ == "__main__":
    unittest.main()
