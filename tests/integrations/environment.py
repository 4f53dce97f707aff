"""Where the tests with packages of others find them: in HEADROOM_TOOLS_PYTHON, the interpreter of the environment that tools/test-python-tools.sh installs."""
import os
import subprocess
import sys
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


def run_python(*arguments, cwd, timeout=300, **changes):
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
    import json
    return json.loads(result.stdout.strip().split("\n")[-1])
