#!/usr/bin/env python3
"""docs/coming-from-tensorflow.md: each Headroom name in it is in the headers, and each TensorFlow call that programs use is in it."""
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "coming-from-tensorflow.md").read_text()
HEADERS = "\n".join(path.read_text() for path in sorted((ROOT / "include").glob("*.h")))
GETTERS = """num_allocs bytes_in_use peak_bytes_in_use largest_alloc_size bytes_limit bytes_reserved peak_bytes_reserved bytes_reservable_limit
bytes_inactive bytes_active peak_bytes_active bytes_reclaimed num_single_reclaims num_full_reclaims num_defragmentations bytes_defragged""".split()
CALLS = """list_physical_devices set_logical_device_configuration LogicalDeviceConfiguration(memory_limit get_memory_info Allocator _set_allocator
get_default_graph get_stats tf.constant tf.random.normal tf.random.uniform tf.one_hot tf.matmul tf.Variable get_variable variable_scope
global_variables_initializer compat.v1.Graph as_default placeholder compat.v1.Session sess.run feed_dict sess.close tf.function run_functions_eagerly
GradientTape tape.gradient layers.Dense optimizers.Adam apply_gradients CategoricalCrossentropy trainable_variables RunOptions report_allocations_on_oom
allocation_log_buffer_size allocation_log_sampling_rate RunMetadata ResourceExhaustedError extract_allocation_log json.loads profiler.experimental.Profile
profile_options=profile_steps tensorboard profiler.Profiler profiler.profile( ProfileOptionBuilder.time_and_memory show_memory show_input_output min_bytes
profile_name_scope profile_model profile_and_save""".split()


class Page(unittest.TestCase):
    def test_names_of_headroom_exist(self):
        names = set(re.findall(r"\bhr_[a-z0-9_]+\b(?!\*)", PAGE)) | set(re.findall(r"\bHR_[A-Z0-9_]+\b", PAGE))
        self.assertGreater(len(names), 80)
        declared = set(re.findall(r"\b(?:hr|HR)_\w+", HEADERS))
        # Statuses and dtypes are declared by tables.
        declared |= {"HR_" + name for name in re.findall(r"X\((\w+), \d+", HEADERS)} | {"HR_DTYPE_" + name for name in re.findall(r"X\((\w+), \d+, \d+", HEADERS)}
        self.assertEqual({name for name in names if name not in declared and name != "hr_get_"}, set())

    def test_fields_exist(self):
        for field in re.findall(r"`(?:options|metadata|info)\.(\w+)", PAGE):
            self.assertRegex(HEADERS, rf"\b{field}\b")

    def test_every_getter_has_a_row(self):
        for name in GETTERS:
            self.assertRegex(PAGE, rf"\| `get_{name}(\(gpu_id\))?` \| `hr_get_{name}` \|")

    def test_every_call_is_there(self):
        self.assertEqual([call for call in CALLS if call not in PAGE], [])


if __name__ == "__main__":
    unittest.main()
