"""Where the tests with packages of others find them: in HEADROOM_TOOLS_PYTHON, the interpreter of the environment that tools/test-python-tools.sh installs."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["HEADROOM_COMMAND"]).resolve().parent
PYTHON = os.environ.get("HEADROOM_TOOLS_PYTHON")
SETTINGS = ("HEADROOM_LMS", "HEADROOM_LIMIT", "HEADROOM_TRACE", "HEADROOM_OOM_REPORT")

if not PYTHON or not (BUILD / "libheadroom.so.0").exists():
    print("skipped: tools/test-python-tools.sh runs this test with the packages that it needs")
    sys.exit(0)


def environment(**changes):
    """Of a child: the package of this tree, the emulated device with small pages, and nothing sent anywhere."""
    result = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    result.update(PYTHONPATH=str(ROOT / "python"), HEADROOM_LIBRARY_DIR=str(BUILD), HEADROOM_CUDA="0", HEADROOM_EMULATED="page=64KiB", ONEDNN_MAX_CPU_ISA="AVX512_CORE",
                  PYTHONDONTWRITEBYTECODE="1", WANDB_MODE="offline", WANDB_SILENT="true", HF_HUB_OFFLINE="1")
    result.update(changes)
    return result


def run_python(*arguments, cwd, timeout=550, **changes):
    return subprocess.run([PYTHON, *map(str, arguments)], env=environment(**changes), capture_output=True, text=True, timeout=timeout, cwd=cwd)


def scalars_of(folder):
    """{name: [(step, value), ...]} of all files for TensorBoard below a folder, read by TensorBoard."""
    program = ("import json, sys, pathlib\n"
               "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
               "found = {}\n"
               "for path in pathlib.Path(sys.argv[1]).rglob('events.out.tfevents.*'):\n"
               "    events = EventAccumulator(str(path)); events.Reload()\n"
               "    for tag in events.Tags()['scalars']:\n"
               "        found.setdefault(tag, []).extend((each.step, each.value) for each in events.Scalars(tag))\n"
               "print(json.dumps(found))")
    result = run_python("-c", program, folder, cwd=folder)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.strip().split("\n")[-1])


class Training(unittest.TestCase):
    """Programs in a folder of their own, and what they leave there."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_program(self, program, *arguments):
        path = self.folder / "program.py"
        path.write_text(program)
        return run_python(path, *arguments, cwd=self.folder)

    def recording(self):
        text = subprocess.run([BUILD / "headroom", "report", "run.hrt", "--json"], cwd=self.folder, capture_output=True, text=True, check=True).stdout
        (self.folder / "run.hrt").unlink()
        return json.loads(text)["trace"]

    def check_scalars(self, found, steps):
        for name in ("headroom/bytes_in_use", "headroom/peak_bytes_in_use", "headroom/num_failed_allocs"):
            self.assertEqual([step for step, _ in found[name]], steps, name)
        self.assertGreater(found["headroom/bytes_in_use"][-1][1], 0)

    def check_wandb(self):
        files = list(self.folder.rglob("*.wandb"))
        self.assertEqual(len(files), 1, list(self.folder.iterdir()))
        self.assertIn(b"headroom/bytes_in_use", files[0].read_bytes())

    def check_bad_arguments(self, kind):
        program = (f"from headroom.{kind} import HeadroomCallback\n"
                   "for wrong in ({'limit': '12 bananas'}, {'profile': 3}, {'oom_report': 3}, {'scalars': 1}):\n"
                   "    try: HeadroomCallback(device='cpu', **wrong)\n"
                   "    except Exception as e: print(type(e).__name__, e)")
        printed = run_python("-c", program, cwd=self.folder).stdout
        for text in ("ValueError limit is '12 bananas'; give a number of bytes, or a size such as '26GB'", "TypeError profile is 3", "TypeError oom_report is 3",
                     "TypeError scalars is 1; give True or False"):
            self.assertIn(text, printed)
