"""Views of recordings (docs/profile.md), as text, data and HTML."""
import ctypes
import json
import os

from . import _display, _library
from ._c import parse
from ._library import analysis, encoded

# Options of a view: fields of hr_profile_options that a program may set. The defaults are the library's.
TEXTS = ("view", "device", "name_scope", "order_by")
FLAGS = ("show_memory", "show_time", "show_input_output", "show_stacks")
NUMBERS = ("step", "min_bytes", "min_micros", "max_depth", "max_rows", "width")
PATTERNS = ("show_name_regexes", "hide_name_regexes")
OPTIONS = (*TEXTS, *NUMBERS, *FLAGS, *PATTERNS)
EXAMPLES = {"view": "scope", "device": "GPU:0", "name_scope": "encoder/layer_1", "order_by": "name"}
TEXT, JSON = 0, 1    # hr_profile_format


def preset(name):
    """The options of a preset of the library that differ from the defaults, as a dictionary."""
    default = _library.struct("hr_profile_options")
    chosen = _library.struct_type("hr_profile_options")()
    analysis.hr_profile_options_init_preset_sized(ctypes.byref(chosen), ctypes.sizeof(chosen), name.encode())
    found = {each: getattr(chosen, each) for each in (*TEXTS, *NUMBERS, *FLAGS) if getattr(chosen, each) != getattr(default, each)}
    return {each: value.decode() if isinstance(value, bytes) else value for each, value in found.items()}


def _patterns(value, name):
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} is {value!r}; give a list of regular expressions, such as ['conv.*']")
    rows = [encoded(each, f"an element of {name}", "conv.*") for each in value]
    return (ctypes.c_char_p * (len(rows) + 1))(*rows, None)


def _value(name, value):
    if name in TEXTS:
        return None if value is None else encoded(value, name, EXAMPLES[name])
    if name in FLAGS:
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}; give True or False")
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; give a whole number, such as {1 << 20 if name == 'min_bytes' else 10}")
    field = getattr(_library.struct_type("hr_profile_options"), name)
    if not (-1 if name == "step" else 0) <= value < 1 << (8 * field.size - 1):
        raise ValueError(f"{name} is {value}; give a number such as {1 << 20 if name == 'min_bytes' else 10}")
    return value


def options_struct(options):
    """hr_profile_options of a dictionary."""
    if not isinstance(options, dict):
        raise TypeError(f"options is {options!r}; give a dictionary, such as headroom.profiler.ProfileOptionBuilder.time_and_memory()")
    result = _library.struct("hr_profile_options")
    for name, value in options.items():
        if name not in OPTIONS:
            raise ValueError(f"options has the key {name!r}; give some of {', '.join(OPTIONS)}, such as min_bytes=1048576")
        if name in PATTERNS:
            array = _patterns(value, name)
            setattr(result, name, ctypes.cast(array, ctypes.c_void_p).value)
            setattr(result, f"_{name}", array)    # the struct keeps what it points to
        else:
            setattr(result, name, _value(name, value))
    return result


def _view(path, options, form):
    pieces = []

    def write(context, address, length):
        pieces.append(ctypes.string_at(address, length))
        return True
    writer = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(write)
    analysis.hr_profile_report(encoded(path, "path", "run.hrt"), ctypes.byref(options_struct(options)), form, ctypes.cast(writer, ctypes.c_void_p), None)
    return b"".join(pieces).decode(errors="replace")


class Report:
    """A view of a recording: print it, read `data`, or leave it as the last line of a notebook's cell.

    path       the recording
    options    the options of the view, a dictionary
    text       the view as a table in text
    data       the view as Python dictionaries and lists
    """

    def __init__(self, path, options=None):
        self.path = os.fspath(path) if isinstance(path, os.PathLike) else path
        self.options = dict(options or {})
        self.text = _view(self.path, self.options, TEXT)
        self._data = None

    @property
    def data(self):
        """The view as dictionaries and lists: the JSON of `headroom report --json`. The recording is read when this is first used."""
        if self._data is None:
            self._data = json.loads(_view(self.path, self.options, JSON))
        return self._data

    def save(self, path):
        """Writes the text to a new file, or JSON if the name ends with ".json". FileError if the file exists."""
        text = json.dumps(self.data, indent=1) + "\n" if str(path).endswith(".json") else self.text
        try:
            with open(path, "x") as file:
                file.write(text)
        except FileExistsError:
            raise _library.FileError(f"path is {str(path)!r}, which exists; give the name of a new file, such as 'profile.txt'") from None
        return os.fspath(path)

    def __str__(self):
        return self.text

    def __repr__(self):
        return f"<headroom.Report of {str(self.path)!r}, view {self.options.get('view', 'summary')!r}>"

    def _repr_html_(self):
        if self.options.get("view") == "timeline":
            return _display.timeline(self)
        return _display.text(f"{os.path.basename(str(self.path))}: {self.options.get('view', 'summary')}", self.text)


def report(path, view="summary", **options):
    """A view of a recording, such as headroom.report("run.hrt", view="scope", min_bytes=1 << 20). The views and their options are those of `headroom report`
    (docs/profile.md)."""
    return Report(path, {"view": view, **options})


def timeline(path, **options):
    """Memory over time: the same as report(path, view="timeline"). A notebook shows it as a chart."""
    return report(path, view="timeline", **options)
