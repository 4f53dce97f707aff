"""The `headroom` command: where it is, and running it."""
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from . import _library


def candidates():
    """Places of the command: beside the libraries, where `make` leaves it; among the scripts of this environment; the path."""
    yield _library.folder() / "headroom"
    yield Path(sysconfig.get_path("scripts")) / "headroom"
    yield _library.FOLDER.parents[1] / "build" / "headroom"
    found = shutil.which("headroom")
    if found:
        yield Path(found)


def find():
    """The path of the command. FileNotFoundError lists the places."""
    tried = []
    for path in candidates():
        if path.is_file() and os.access(path, os.X_OK):
            return path
        tried.append(str(path))
    raise FileNotFoundError(f"the command `headroom` is not in {', '.join(tried)}; install it with `pip install .`, build it with `make`, or set "
                            "HEADROOM_LIBRARY_DIR to the folder that has it")


def main():
    try:
        path = find()
    except FileNotFoundError as error:
        print(f"headroom: {error}", file=sys.stderr)
        return 2
    os.execv(path, ["headroom", *sys.argv[1:]])
