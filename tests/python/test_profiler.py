#!/usr/bin/env python3
"""headroom.profiler, reports and what notebooks show: recordings, chosen steps, views, options, HTML."""
import contextlib
import json
import os
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

from environment import run_python, use

use()
import headroom as tf
from headroom import _display
from headroom.errors import FileError, InUse, InvalidArgument
from headroom.profiler import Profile, ProfileOptionBuilder, Profiler, ProfilerOptions, Trace, experimental


@contextlib.contextmanager
def work(step=None):
    """An op in the scope encoder/layer: 256 KiB."""
    with tf.name_scope("encoder"), tf.name_scope("layer"):
        with Trace("step", step_num=step) if step else contextlib.nullcontext():
            tensor = tf.ones([256, 256])
    yield tensor


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.logdir = os.path.join(self.folder.name, "logdir")

    def record(self, steps=0, options=None):
        with Profile(self.logdir, options) as profile:
            for step in range(1, steps + 1):
                with work(step):
                    pass
            with work():
                pass
        return profile.file


class Recordings(Folder):
    def test_what_happens_inside_the_with_is_recorded(self):
        path = self.record()
        self.assertEqual(os.path.dirname(path), self.logdir)
        self.assertEqual(len(list(Path(self.logdir).glob("plugins/profile/*/*.xplane.pb"))), 1)
        self.assertEqual(tf.report(path).data["trace"]["allocations"], 1)
        with Profile(self.logdir, ProfilerOptions(tensorboard=False)) as profile:
            with self.assertRaises(InUse):
                tf.profiler.start(self.logdir)
        self.assertNotEqual(profile.file, path)
        self.assertEqual(len(list(Path(self.logdir).glob("plugins/profile/*"))), 1)
        with self.assertRaises(InvalidArgument):
            experimental.stop()

    def test_an_error_inside_ends_the_recording(self):
        with self.assertRaises(ZeroDivisionError):
            with Profile(self.logdir, ProfilerOptions(steps=[1000000])):    # whose end is an error too
                1 / 0
        self.record()

    def test_chosen_steps_have_files(self):
        self.record(steps=3, options=ProfilerOptions(steps="2,900", tensorboard=False))
        names = [path.name for path in Path(self.logdir).glob("*.hrt")]
        self.assertEqual((len(names), "-step2." in names[0]), (1, True), names)
        self.assertEqual(experimental.missed_steps(), "900")

    def test_options_come_from_the_arguments_of_a_program(self):
        argv = ["train.py", "--lr", "1", "--profile_options=profile_steps=1,10,100", "--profile_options=left"]
        options = ProfilerOptions.from_arguments(argv, tensorboard=False)
        self.assertEqual(argv, ["train.py", "--lr", "1", "--profile_options=left"])
        struct = options._struct()
        self.assertEqual([struct.steps[at].first for at in range(struct.step_count)], [1, 10, 100])
        argv = ["train.py", "--profile_options", "compress=1", "--", "--profile_options=profile_steps=7"]
        options = ProfilerOptions.from_arguments(argv)
        self.assertTrue(options._struct().compress and options._struct().tensorboard)
        self.assertEqual((argv, options._struct().step_count), (["train.py", "--", "--profile_options=profile_steps=7"], 0))
        with self.assertRaisesRegex(InvalidArgument, "bananas"):
            ProfilerOptions.from_arguments(["x", "--profile_options=bananas=1"])

    def test_bad_options_name_the_argument(self):
        for options, error, text in (({"steps": "one"}, TypeError, "steps is 'one'.*1, 10, 100"), ({"steps": []}, TypeError, "steps is"), ({"steps": [0]}, InvalidArgument, "0"),
                                     ({"tensorboard": 1}, TypeError, "tensorboard is 1"), ({"max_bytes": "12 bananas"}, ValueError, "max_bytes is '12 bananas'.*512MiB"),
                                     ({"max_bytes": 3}, InvalidArgument, "max_bytes"), ({"stack_depth": "16"}, TypeError, "stack_depth is '16'.*16"), ({"stack_depth": -1}, InvalidArgument, "-1")):
            with self.assertRaisesRegex(error, text):
                ProfilerOptions(**options)
        for make in (lambda: Profile(3), lambda: Profile("x", {"steps": 1}), lambda: tf.profiler.start("x", 3), lambda: Trace(3), lambda: Trace("x", step_num="1")):
            with self.assertRaises(TypeError):
                make()
        with self.assertRaises(FileError):
            Profile("/dev/null/logdir").__enter__()


class Views(Folder):
    def test_a_report_is_text_data_and_a_file(self):
        made = tf.report(self.record(), view="scope", min_bytes=1)
        self.assertIn("encoder", str(made))
        rows = json.dumps(made.data["reports"])
        self.assertIn("encoder/layer", rows)
        path = os.path.join(self.folder.name, "profile.txt")
        self.assertEqual(made.save(path), path)
        self.assertEqual(Path(path).read_text(), made.text)
        with self.assertRaisesRegex(FileError, "profile.txt', which exists"):
            made.save(path)
        self.assertEqual(json.loads(Path(made.save(path + ".json")).read_text()), made.data)
        self.assertIn("view 'scope'", repr(made))

    def test_bad_options_name_the_key(self):
        path = self.record()
        for options, error, text in (({"view": "bananas"}, InvalidArgument, "bananas"), ({"view": 3}, TypeError, "view is 3"), ({"colour": 1}, ValueError, "'colour'.*min_bytes"),
                                     ({"min_bytes": "1MB"}, TypeError, "min_bytes is '1MB'"), ({"min_bytes": -1}, ValueError, "min_bytes is -1"), ({"max_rows": 1 << 40}, ValueError, "max_rows"),
                                     ({"show_memory": 1}, TypeError, "show_memory is 1"), ({"show_name_regexes": "conv"}, TypeError, "list of regular"), ({"step": 1.5}, TypeError, "step"),
                                     ({"device": "GPU:9"}, InvalidArgument, "GPU:9"), ({"hide_name_regexes": ["("]}, InvalidArgument, "")):
            with self.assertRaisesRegex(error, text):
                tf.report(path, **options)
        with self.assertRaisesRegex(FileError, "nowhere"):
            tf.report("/nowhere/run.hrt")
        with self.assertRaisesRegex(TypeError, "path is 3"):
            tf.report(3)

    def test_the_builder(self):
        self.assertEqual(ProfileOptionBuilder.time_and_memory()["view"], "scope")
        self.assertEqual(ProfileOptionBuilder.leaks()["view"], "leaks")
        built = (ProfileOptionBuilder(ProfileOptionBuilder.memory()).with_min_memory(1).with_min_execution_time(0).with_max_depth(3).with_step(-1)
                 .with_node_names(show_name_regexes=["fu.*", "nothing"]).order_by("name").build())
        self.assertEqual((built["view"], built["min_bytes"], built["max_depth"], built["order_by"]), ("op", 1, 3, "name"))
        path = self.record()
        self.assertRegex(str(tf.Report(path, built)), r"\nfull +1")
        hidden = ProfileOptionBuilder(ProfileOptionBuilder.memory()).with_node_names(hide_name_regexes=["fu.*"]).build()
        self.assertRegex(str(tf.Report(path, hidden)), r"\n\(1 more\) +1")
        for wrong in (lambda: ProfileOptionBuilder().with_min_memory("1"), lambda: ProfileOptionBuilder([1]), lambda: ProfileOptionBuilder({"x": 1})):
            with self.assertRaises((TypeError, ValueError)):
                wrong()

    def test_a_profiler_shows_a_recording_while_it_grows(self):
        with Profiler(self.logdir) as profiler:
            with work():
                first = profiler.profile_name_scope()
            with work():
                second = profiler.profile_operations()
                self.assertEqual([each.data["trace"]["allocations"] for each in (first, second)], [1, 2])
                self.assertEqual([each.options["view"] for each in (first, second)], ["scope", "op"])
                self.assertNotIn("name_scope", profiler.profile_model({"name_scope": "encoder"}).options)
            paths = [profiler.profile_and_save(self.logdir, "p", {"view": "op"}) for _ in range(2)]
        self.assertEqual([os.path.basename(path) for path in paths], ["p.txt", "p_2.txt"])
        reader = Profiler(profiler.file)    # a file: nothing is recorded
        self.assertEqual(reader.profile().data["trace"]["allocations"], 2)
        self.record()
        again = Profiler(self.logdir)       # what this process has recorded there
        self.assertEqual((again.file, again._started), (tf.profiler.last_file(), False))
        for wrong, error in ((3, TypeError), ("a\0b", ValueError), (tf.Graph(), TypeError)):
            with self.assertRaisesRegex(error, "graph_path"):
                Profiler(wrong)

    def test_a_profiler_that_is_dropped_ends_its_recording(self):
        profiler = Profiler(self.logdir)
        del profiler
        self.record()


def parsed(markup):
    return xml.fromstring(f"<body>{markup}</body>")


class Notebooks(Folder):
    def test_statistics_are_a_table(self):
        for stats in (tf.device_stats("GPU:0"), tf.memory_info("GPU:0")):
            page = parsed(stats._repr_html_())
            self.assertEqual([row[0].text for row in page.iter("tr")], list(stats))
        cells = {row[0].text: row[1].text for row in parsed(_display.table("x", [("bytes_in_use", 3 << 20), ("num_allocs", 12345), ("fragmentation", 0.5), ("a<b", "c&d")])).iter("tr")}
        self.assertEqual(cells, {"bytes_in_use": "3.0 MiB", "num_allocs": "12,345", "fragmentation": "0.5", "a<b": "c&d"})

    def test_a_report_is_its_text(self):
        made = tf.report(self.record(), view="peak")
        self.assertEqual("".join(parsed(made._repr_html_()).find(".//pre").itertext()), made.text)

    def test_a_timeline_is_a_chart(self):
        made = tf.timeline(self.record())
        paths = list(parsed(made._repr_html_()).iter("path"))
        self.assertEqual(len(paths), 2)    # the area and its edge
        points = [tuple(map(float, each[1:].split(","))) for each in paths[1].get("d").split()]
        self.assertEqual(len(points), 2 * len(made.data["reports"][0]["timeline"]["rows"]))
        self.assertEqual(min(y for _, y in points), _display.TOP)                         # the peak
        self.assertEqual(max(y for _, y in points), _display.HEIGHT - _display.BOTTOM)    # nothing, at the beginning
        self.assertIn("nothing was allocated", _display.chart("x", []))

    def test_an_out_of_memory_report_is_its_text(self):
        options = tf.RunOptions(report_allocations_on_oom=True)
        with tf.Graph().as_default() as graph:
            big = tf.ones([1024, 1024], name="a<b")
        with tf.Session(graph=graph, memory_limit="2MiB") as session:
            with self.assertRaises(tf.OutOfMemory) as caught:
                session.run(big, options=options)
        report = caught.exception.report
        self.assertIn("Out of memory", report)
        self.assertEqual("".join(parsed(report._repr_html_()).find(".//pre").itertext()), report)

    def test_a_name_cannot_add_markup(self):
        with Profile(self.logdir) as profile, tf.name_scope("<script>alert(1)</script>"):
            kept = tf.ones([1024])
        self.assertNotIn("<script", tf.report(profile.file, view="scope")._repr_html_())
        del kept


class Processes(unittest.TestCase):
    def test_a_recording_that_is_never_closed_can_be_read(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run_python("-c", "import headroom as tf\np = tf.profiler.Profiler('logs')\nx = tf.ones([64])\nprint(p.file)", cwd=folder)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertEqual(tf.report(os.path.join(folder, result.stdout.strip())).data["trace"]["allocations"], 1)


if __name__ == "__main__":
    unittest.main()
