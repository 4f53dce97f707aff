"""Recording into a log directory: the names of tf.profiler.experimental."""
import ctypes
import sys

from .. import _library, _stats, sizes
from .._library import encoded, library
from ..errors import InvalidArgument

__all__ = ["Profile", "ProfilerOptions", "Trace", "last_file", "missed_steps", "start", "stop"]


class ProfilerOptions:
    """What is recorded.

    steps          the steps to record, a file for each: "1,10,100-103", or a list of numbers; None = everything
    tensorboard    whether each finished recording is also written for TensorBoard
    compress       whether finished files are compressed with zstd
    max_bytes      the most bytes of a file, such as "512MiB"; None = no limit
    stack_depth    frames of the call stack of each allocation; 0 = none

    TensorFlow's host_tracer_level, python_tracer_level, device_tracer_level and delay_ms are accepted, and have no effect.
    """

    def __init__(self, host_tracer_level=2, python_tracer_level=0, device_tracer_level=1, delay_ms=None, *, steps=None, tensorboard=True, compress=False,
                 max_bytes=None, stack_depth=0):
        settings = []
        if steps is not None:
            settings.append(f"profile_steps={_steps(steps)}")
        for name, value in (("tensorboard", tensorboard), ("compress", compress)):
            if not isinstance(value, bool):
                raise TypeError(f"{name} is {value!r}; give True or False")
            settings.append(f"{name}={int(value)}")
        if max_bytes is not None:
            settings.append(f"max_bytes={sizes.argument_size(max_bytes, 'max_bytes', '512MiB')}")
        if isinstance(stack_depth, bool) or not isinstance(stack_depth, int):
            raise TypeError(f"stack_depth is {stack_depth!r}; give a number of frames, such as 16")
        if stack_depth:
            settings.append(f"stacks={stack_depth}")
        self._settings = ";".join(settings)
        self._struct()    # errors now

    @classmethod
    def from_arguments(cls, argv=None, **options):
        """The options of --profile_options=profile_steps=1,10,100 among a program's arguments, which it is removed from; without it, those that are given.
        [argv] None = sys.argv."""
        argv = sys.argv if argv is None else argv
        made = cls(**options)
        for at, each in enumerate(argv[1:], start=1):
            if each == "--":
                break
            if each == "--profile_options" and at + 1 < len(argv):
                made._add(argv[at + 1])
                del argv[at:at + 2]
                break
            if each.startswith("--profile_options="):
                made._add(each.partition("=")[2])
                del argv[at]
                break
        return made

    def _add(self, settings):
        before, self._settings = self._settings, f"{self._settings};{settings}"
        try:
            self._struct()
        except InvalidArgument:
            self._settings = before
            raise

    def _struct(self):
        """hr_profiler_options. The library parses the settings, as it does those of a command line."""
        result = _library.struct("hr_profiler_options")
        if self._settings:
            count = ctypes.c_int(2)
            argv = (ctypes.c_char_p * 3)(b"python", b"--profile_options=" + self._settings.encode(), None)
            library.hr_profiler_parse_arguments(ctypes.byref(count), argv, ctypes.byref(result))
        return result

    def __repr__(self):
        return f"<headroom.profiler.ProfilerOptions {self._settings}>"


def _steps(steps):
    if isinstance(steps, int) and not isinstance(steps, bool):
        steps = [steps]
    if isinstance(steps, (list, tuple)) and steps and all(isinstance(each, int) and not isinstance(each, bool) for each in steps):
        return ",".join(map(str, steps))
    if isinstance(steps, str) and steps and not set(steps) - set("0123456789,- "):
        return steps
    raise TypeError(f"steps is {steps!r}; give numbers of steps, such as [1, 10, 100], or '1,10,100-103'")


def start(logdir, options=None):
    """Begins recording into new files in a log directory, which is made if it is not there. InUse if something is being recorded."""
    if options is not None and not isinstance(options, ProfilerOptions):
        raise TypeError(f"options is {options!r}; give headroom.profiler.ProfilerOptions(steps=[1, 10, 100])")
    struct = (options or ProfilerOptions())._struct()
    library.hr_profiler_start(encoded(logdir, "logdir", "logdir"), ctypes.byref(struct))


def stop(save=True):
    """Ends the recording that start() began."""
    library.hr_profiler_stop()


def last_file():
    """The newest recording that the profiler began in this process; "" if there is none."""
    return _library.text_of(library.hr_profiler_get_last_file)


def missed_steps():
    """The chosen steps that had not occurred when the profiler was last stopped, such as "100,200-300"; "" if there are none."""
    return _library.text_of(library.hr_profiler_get_missed_steps)


class Profile:
    """Records what happens inside the `with` into a log directory: `tensorboard --logdir logdir` shows it, and `headroom report` reads `file`."""

    def __init__(self, logdir, options=None):
        encoded(logdir, "logdir", "logdir")
        if options is not None and not isinstance(options, ProfilerOptions):
            raise TypeError(f"options is {options!r}; give headroom.profiler.ProfilerOptions(steps=[1, 10, 100])")
        self._logdir, self._options = logdir, options
        self.file = ""

    def __enter__(self):
        start(self._logdir, self._options)
        return self

    def __exit__(self, kind, *error):
        self.file = last_file()
        try:
            stop()
        except _library.Error:
            if kind is None:
                raise


class Trace:
    """Names the memory and the time of what happens inside the `with`; with step_num, it is a step: Trace("train", step_num=step)."""

    def __init__(self, name, step_num=None, **arguments):
        self._name = encoded(name, "name", "train")
        if step_num is not None and (isinstance(step_num, bool) or not isinstance(step_num, int)):
            raise TypeError(f"step_num is {step_num!r}; give the number of the step, such as 1")
        self._step = step_num is not None
        self._allocator = None

    def __enter__(self):
        if self._step:
            self._allocator = _library.HANDLE()
            library.hr_allocator_get_default(_stats.device_name(None), ctypes.byref(self._allocator))
            library.hr_step_begin(self._allocator)
        library.hr_name_scope_push(self._name)
        return self

    def __exit__(self, *error):
        library.hr_name_scope_pop()
        if self._step:
            library.hr_step_end(self._allocator)
