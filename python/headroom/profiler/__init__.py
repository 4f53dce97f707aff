"""Recordings and their views: the names of tf.profiler.

    with headroom.profiler.Profile("logdir"):     records what happens inside; `tensorboard --logdir logdir` shows it
        train()
    print(headroom.profiler.Profiler("logdir").profile(headroom.profiler.ProfileOptionBuilder.time_and_memory()))
"""
import os

from . import experimental
from .. import _library, _report
from .._library import library
from .experimental import Profile, ProfilerOptions, Trace, last_file, start, stop

__all__ = ["Profile", "ProfileOptionBuilder", "Profiler", "ProfilerOptions", "Trace", "experimental", "last_file", "start", "stop"]


class ProfileOptionBuilder:
    """Options of a view, as a dictionary that can be changed: ProfileOptionBuilder.time_and_memory(), or
    ProfileOptionBuilder(ProfileOptionBuilder.memory()).with_min_memory(1 << 20).build()."""

    def __init__(self, options=None):
        if options is not None:
            _report.options_struct(options)
        self._options = dict(options or {})

    @staticmethod
    def time_and_memory():
        """Time and bytes of the tree of name scopes, sorted by time."""
        return {**_report.preset("time_and_memory"), "show_memory": True, "show_time": True}

    @staticmethod
    def memory():
        """Bytes of each op at the peak."""
        return _report.preset("memory")

    @staticmethod
    def leaks():
        """What is still allocated at the ends of steps."""
        return _report.preset("leaks")

    def _with(self, **options):
        merged = {**self._options, **options}
        _report.options_struct(merged)
        self._options = merged
        return self

    def with_max_depth(self, max_depth):
        """Most levels of the tree of scopes."""
        return self._with(max_depth=max_depth)

    def with_min_memory(self, min_bytes=0):
        """Rows with fewer bytes are hidden."""
        return self._with(min_bytes=min_bytes)

    def with_min_execution_time(self, min_micros=0):
        """Rows with less time are hidden."""
        return self._with(min_micros=min_micros)

    def with_node_names(self, show_name_regexes=None, hide_name_regexes=None):
        """Regular expressions of the names that are shown, and of those that are not."""
        given = {"show_name_regexes": show_name_regexes, "hide_name_regexes": hide_name_regexes}
        return self._with(**{name: value for name, value in given.items() if value is not None})

    def with_step(self, step):
        """Only the step with this number; -1 = the whole recording."""
        return self._with(step=step)

    def order_by(self, attribute):
        """The key of the column to sort by, such as "name"."""
        return self._with(order_by=attribute)

    def build(self):
        """The options, for Profiler.profile."""
        return dict(self._options)


class Profiler:
    """Views of a recording, also while it is being made.

    graph_path    a recording, which is read; or a log directory. If this process has recorded into the directory, its newest recording there is read.
                  Otherwise a recording into the directory begins, and ends with close() or with the object.
    """

    def __init__(self, graph_path):
        if not isinstance(graph_path, (str, os.PathLike)):
            raise TypeError(f"graph_path is {graph_path!r}; give a log directory such as 'logdir', or a recording such as 'run.hrt'")
        self._path = os.fspath(graph_path)
        _library.encoded(self._path, "graph_path", "logdir")
        self._file = self._path if os.path.isfile(self._path) else None
        self._started = False
        newest = last_file()
        mine = newest and os.path.exists(newest) and os.path.realpath(os.path.dirname(newest)) == os.path.realpath(self._path)
        if self._file is None and not mine:
            start(self._path, ProfilerOptions(tensorboard=False))
            self._started = True

    @property
    def file(self):
        """The recording that is read."""
        return self._file or last_file()

    def close(self):
        """Ends the recording that this object began."""
        if self._started:
            self._started = False
            library.hr_profiler_stop()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __del__(self):
        try:
            if not _library.ending():
                self.close()
        except Exception:    # the recording was ended by another call
            pass

    def profile(self, options=None):
        """A headroom.Report of the recording so far; options as ProfileOptionBuilder makes them."""
        found = _report.Report(self.file, options)
        found.data    # now: the recording may go on
        return found

    def profile_name_scope(self, options=None):
        """The tree of name scopes; options["name_scope"] selects one of them."""
        return self.profile({**(options or {}), "view": "scope"})

    profile_graph = profile_name_scope

    def profile_operations(self, options=None):
        """A row for each op."""
        return self.profile({**(options or {}), "view": "op"})

    def profile_model(self, options=None):
        """The tree of name scopes of the whole model."""
        return self.profile_name_scope({name: value for name, value in (options or {}).items() if name != "name_scope"})

    def profile_and_save(self, graph_path, name="profile", options=None):
        """Writes the view to GRAPH_PATH/NAME.txt, and returns the path. If that file exists, a number is added to its name."""
        made = self.profile(options)
        os.makedirs(graph_path, exist_ok=True)
        number = 1
        while True:
            path = os.path.join(graph_path, f"{name}.txt" if number == 1 else f"{name}_{number}.txt")
            if not os.path.exists(path):
                return made.save(path)
            number += 1
