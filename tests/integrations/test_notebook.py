#!/usr/bin/env python3
"""What a real notebook shows: statistics as tables, reports as text, memory over time as a chart."""
import json
import tempfile
import unittest
from pathlib import Path

from environment import run_python

CELLS = ["import headroom as tf\nkept = tf.ones([256, 256])\ntf.memory_info()", "tf.device_stats('GPU:0')",
         "with tf.profiler.Profile('logdir') as profile:\n    x = kept @ kept\ntf.report(profile.file, view='op')", "tf.timeline(profile.file)",
         "with tf.Graph().as_default() as graph:\n    big = tf.ones([1024, 1024])\n"
         "try:\n    with tf.Session(graph=graph, memory_limit='2MiB') as session:\n        session.run(big, options=tf.RunOptions(report_allocations_on_oom=True))\n"
         "except tf.OutOfMemory as error:\n    report = error.report\nreport"]

PROGRAM = """
import json, sys
import nbclient, nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in json.load(open("cells.json"))])

class Specs(KernelSpecManager):    # the kernel of this environment, installed or not
    def get_kernel_spec(self, name):
        return KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], display_name=name, language="python")
from jupyter_client import AsyncKernelManager
class Manager(AsyncKernelManager):
    def __init__(self, **options):
        super().__init__(**options)
        self.kernel_spec_manager = Specs()
nbclient.NotebookClient(book, timeout=120, kernel_manager_class=Manager).execute()
json.dump([[output.get("data", {}) for output in cell.outputs] for cell in book.cells], open("outputs.json", "w"))
"""


class Notebook(unittest.TestCase):
    def test_the_last_line_of_a_cell_is_shown_as_html(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "cells.json").write_text(json.dumps(CELLS))
            result = run_python("-c", PROGRAM, cwd=folder, IPYTHONDIR=str(folder / "ipython"), JUPYTER_RUNTIME_DIR=str(folder / "runtime"), HEADROOM_EMULATED="page=2MiB")
            self.assertEqual(result.returncode, 0, result.stderr[-4000:])
            outputs = json.loads((folder / "outputs.json").read_text())
        shown = [cell[-1]["text/html"] for cell in outputs]
        for html, text in zip(shown, ("<td style=\"text-align:right\">256.0 KiB</td>", "bytes_reserved", "matmul", "<svg ", "The request alone is 2.0 MiB above the limit")):
            self.assertIn(text, "".join(html))


if __name__ == "__main__":
    unittest.main()
