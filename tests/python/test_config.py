#!/usr/bin/env python3
"""Devices, limits, statistics and the command under the names of TensorFlow: what they return, and what they say about bad input."""
import subprocess
import unittest

from environment import COMMAND, environment, run_python, use

use()
import headroom
from headroom.config import LogicalDeviceConfiguration
from headroom.errors import InUse, InvalidArgument, NoSuchDevice, Unsupported

GETTERS = """num_allocs bytes_in_use peak_bytes_in_use largest_alloc_size bytes_limit bytes_reserved peak_bytes_reserved bytes_reservable_limit
bytes_inactive bytes_active peak_bytes_active bytes_reclaimed num_single_reclaims num_full_reclaims num_defragmentations bytes_defragged""".split()


def run(program, **changes):
    """What a program of its own prints: devices can be configured once in a process."""
    result = run_python("-c", "import headroom as tf\n" + program, **changes)
    assert result.returncode == 0, result.stderr
    return result.stdout


class Statistics(unittest.TestCase):
    def test_the_getters_agree_with_the_statistics_of_the_device(self):
        stats = headroom.device_stats("GPU:0")
        for name in GETTERS:
            self.assertEqual(getattr(headroom.experimental, f"get_{name}")(0), stats[name], name)
        self.assertGreater(headroom.experimental.get_bytes_limit(0), 0)

    def test_a_gpu_id_is_the_number_of_a_gpu(self):
        for name in GETTERS:
            get = getattr(headroom.experimental, f"get_{name}")
            for wrong in (77, -1, 1 << 40):
                with self.assertRaisesRegex(NoSuchDevice, f"gpu_id is {wrong}"):
                    get(wrong)
            for wrong in ("0", None, 0.5, True):
                with self.assertRaisesRegex(TypeError, "gpu_id is .*such as 0"):
                    get(wrong)

    def test_memory_info(self):
        self.assertEqual(headroom.config.experimental.get_memory_info(), {"current": 0, "peak": 0})
        self.assertEqual(headroom.config.experimental.get_memory_usage("/device:GPU:0"), 0)
        headroom.config.experimental.reset_memory_stats("GPU:0")
        for wrong in (3, 1.5, object()):
            with self.assertRaisesRegex(TypeError, "device is .*'GPU:0'"):
                headroom.config.experimental.get_memory_info(wrong)
        with self.assertRaisesRegex(ValueError, "device contains a 0"):
            headroom.config.experimental.get_memory_info("GPU:0\0")
        with self.assertRaisesRegex(NoSuchDevice, "bananas"):
            headroom.config.experimental.reset_memory_stats("bananas")


class Devices(unittest.TestCase):
    def test_listing_uses_no_device(self):
        printed = run("gpus = tf.config.list_physical_devices('GPU')\n"
                      "tf.config.set_logical_device_configuration(gpus[0], [tf.config.LogicalDeviceConfiguration(memory_limit=512),"
                      " tf.config.LogicalDeviceConfiguration('256MiB')])\n"
                      "print(gpus, tf.config.list_logical_devices('GPU'), tf.config.get_logical_device_configuration(gpus[0]))\n"
                      "print(tf.experimental.get_bytes_limit(0), tf.experimental.get_bytes_limit(1))")
        self.assertIn("'/physical_device:GPU:0'", printed)
        self.assertIn("/device:GPU:1", printed)
        self.assertIn("memory_limit=512", printed)
        self.assertIn(f"{512 << 20} {256 << 20}", printed)

    def test_the_cpu_comes_first(self):
        self.assertEqual([each.device_type for each in headroom.config.list_physical_devices()], ["CPU", "GPU"])
        self.assertEqual(headroom.config.list_physical_devices("TPU"), [])
        with self.assertRaisesRegex(TypeError, "device_type is 3"):
            headroom.config.list_physical_devices(3)

    def test_a_limit_is_a_number_of_mib_or_a_size(self):
        self.assertEqual(LogicalDeviceConfiguration("1GiB").memory_limit, 1024)
        self.assertEqual(LogicalDeviceConfiguration(1.5).memory_limit, 1.5)
        for wrong in ("12 bananas", "1024", "", 0, -5, float("nan"), float("inf")):
            with self.assertRaisesRegex(ValueError, "memory_limit is .*1024"):
                LogicalDeviceConfiguration(wrong)
        for wrong in (True, b"1GiB", [1024]):
            with self.assertRaisesRegex(TypeError, "memory_limit is .*1024"):
                LogicalDeviceConfiguration(wrong)

    def test_bad_configurations_name_the_argument(self):
        configure = headroom.config.set_logical_device_configuration
        good = [LogicalDeviceConfiguration(64)]
        for device in (7, "bananas", None):
            with self.assertRaisesRegex(TypeError, "device is .*'GPU:0'"):
                configure(device, good)
        with self.assertRaisesRegex(NoSuchDevice, "GPU:9.*it has CPU:0, GPU:0"):
            configure("GPU:9", good)
        for wrong, error in ((good[0], TypeError), ([64], TypeError), ([], ValueError), ([LogicalDeviceConfiguration()] * 2, ValueError)):
            with self.assertRaisesRegex(error, "logical_devices.*memory_limit=1024"):
                configure("GPU:0", wrong)
        with self.assertRaises(Unsupported):
            configure("CPU:0", good)

    def test_limits_that_do_not_fit_or_come_late_are_refused(self):
        print_error = "except Exception as e: print(type(e).__name__, e)\n"
        printed = run("c = tf.config.LogicalDeviceConfiguration\nset = tf.config.set_logical_device_configuration\n"
                      "try: set('GPU:0', [c(1 << 20)])\n" + print_error + "set('GPU:0', [c(64)])\ntf.memory_info('GPU:0')\ntry: set('GPU:0', [c(32)])\n" + print_error)
        self.assertIn("InvalidArgument GPU:0: memory limit 0 is 1.0 TiB, above its 1.0 GiB", printed)
        self.assertIn("InUse GPU:0 is in use", printed)

    def test_details_and_growth(self):
        self.assertTrue(headroom.config.experimental.get_device_details("GPU:0")["emulated"])
        headroom.config.experimental.set_memory_growth("GPU:0", True)
        with self.assertRaisesRegex(Unsupported, "enable is False"):
            headroom.config.experimental.set_memory_growth("GPU:0", False)


class LargeModelSupport(unittest.TestCase):
    def test_it_can_be_turned_on(self):
        for name in ("lms", "lms_defrag"):
            get, put = (getattr(headroom.config.experimental, f"{verb}_{name}_enabled") for verb in ("get", "set"))
            self.assertFalse(get())
            put(True)
            self.assertTrue(get())
            put(False)
            for wrong in (1, None, "yes"):
                with self.assertRaisesRegex(TypeError, "enabled is .*True or False"):
                    put(wrong)


class Package(unittest.TestCase):
    def test_importing_loads_nothing_that_is_not_needed(self):
        modules = run("import sys; print(*sys.modules)").split()
        for name in ("numpy", "torch", "subprocess", "headroom.config", "headroom._runtime"):
            self.assertNotIn(name, modules)

    def test_every_lazy_name_is_there(self):
        for name in headroom.__all__:
            self.assertIsNotNone(getattr(headroom, name), name)
        self.assertIn("config", dir(headroom))
        with self.assertRaisesRegex(AttributeError, "bananas"):
            headroom.bananas

    def test_errors_have_tensorflows_names(self):
        self.assertIs(headroom.errors.ResourceExhaustedError, headroom.OutOfMemory)
        self.assertTrue(issubclass(headroom.errors.InvalidArgumentError, headroom.errors.OpError))
        self.assertTrue(issubclass(InvalidArgument, ValueError) and issubclass(InUse, RuntimeError))


class Command(unittest.TestCase):
    def test_python_m_headroom_is_the_command(self):
        ours = run_python("-m", "headroom", "devices")
        theirs = subprocess.run([COMMAND, "devices"], env=environment(), capture_output=True, text=True)
        self.assertEqual(ours.returncode, 0)
        self.assertEqual(ours.stdout.split("\n")[0], theirs.stdout.split("\n")[0])
        self.assertEqual(run_python("-m", "headroom", "bananas").returncode, 2)

    def test_a_missing_command_is_explained(self):
        result = run_python("-c", "import sys, headroom._command as c\nc.candidates = lambda: iter([c.Path('/nowhere/headroom')])\nsys.exit(c.main())")
        self.assertEqual(result.returncode, 2)
        self.assertIn("/nowhere/headroom", result.stderr)
        self.assertIn("pip install", result.stderr)


if __name__ == "__main__":
    unittest.main()
