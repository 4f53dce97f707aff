"""Runs programs in children of one process that has imported PyTorch: the import takes longer than most programs of the tests. Headroom is loaded by each child.

    forked.py    reads a request from each line of stdin, and writes a line with the exit status of its program
"""
import json
import os
import sys
import types

import sympy  # noqa: F401 (PyTorch imports it with its first optimizer)
import torch  # noqa: F401


def next_program():
    """Returns in a child, with a program; ends the process when there are no more requests."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            return request
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    raise SystemExit


def become(request):
    os.environ.update(request["changes"])
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, request["stdout"], os.O_WRONLY), (2, request["stderr"], os.O_WRONLY)):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)


if __name__ == "__main__":
    request = next_program()
    become(request)
    sys.argv, sys.path[0] = ["-c"], ""
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(request["program"], "<string>", "exec"), vars(sys.modules["__main__"]))
