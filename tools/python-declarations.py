#!/usr/bin/env python3
"""The C declarations of the Python package (python/headroom/_c) are copies of those in the headers.

    tools/python-declarations.py            checks them; exit status 1 if they differ
    tools/python-declarations.py --write    copies them again, for the functions and structs that the files name
    tools/python-declarations.py --add hr_neg hr_exp ...    adds functions or structs
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "python" / "headroom" / "_c"
LIBRARIES = {"headroom": ("headroom", "headroom_oom", "headroom_lms", "headroom_record"), "headroom_runtime": ("headroom_runtime",),
             "headroom_analysis": ("headroom_analysis",)}
WIDTH = 158


def plain(header):
    """A header without comments, in single spaces."""
    text = re.sub(r"/\*.*?\*/", " ", (ROOT / "include" / f"{header}.h").read_text(), flags=re.S)
    return " ".join(re.sub(r"^\s*#.*?(?<!\\)$", " ", text, flags=re.M).split())


def functions(header):
    text = plain(header).replace("HR_CHECK_RESULT ", "")
    return {re.search(r"(hr_\w+)\(", each).group(1): each for each in re.findall(r"HR_API ([^;{]*?\));", text)}


def structs(header):
    found = {}
    for match in re.finditer(r"typedef struct (\w+) \{([^}]*)\} \1;", plain(header)):
        found[match.group(1)] = "; ".join(each.strip() for each in match.group(2).split(";") if each.strip())
    return found


def listed(name):
    """The declarations that a file of the package has now."""
    values = {}
    exec(compile((FOLDER / name).read_text(), name, "exec"), values)
    return values


def wrap(text, indent):
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(indent) + len(line) + 1 + len(word) > WIDTH - 6:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    lines.append(line)
    return f"\n{indent}".join('"' + each + (' "' if each is not lines[-1] else '"') for each in lines)


def functions_text(names):
    text = '"""The functions that the package calls, by library. Made by tools/python-declarations.py from the headers."""\n'
    for library, headers in LIBRARIES.items():
        declared = {}
        for header in headers:
            declared.update(functions(header))
        mine = [name for name in declared if name in names]
        names = [name for name in names if name not in mine]
        text += f"\n{library.upper()} = " + '"""\n' + "".join(declared[name] + ";\n" for name in mine) + '"""\n'
    if names:
        sys.exit("not in the headers: " + " ".join(names))
    return text


def structs_text(names):
    declared = {}
    for headers in LIBRARIES.values():
        for header in headers:
            declared.update(structs(header))
    missing = [name for name in names if name not in declared]
    if missing:
        sys.exit("not in the headers: " + " ".join(missing))
    rows = "".join(f'    "{name}": (\n        {wrap(declared[name], " " * 8)}\n    ),\n' for name in declared if name in names)
    return '"""The structs that the package uses. Made by tools/python-declarations.py from the headers."""\n\nSTRUCTS = {\n' + rows + "}\n"


def present():
    there = listed("functions.py")
    names = re.findall(r"\b(hr_\w+)\(", "".join(there[library.upper()] for library in LIBRARIES))
    return names, list(listed("structs.py")["STRUCTS"])


def main(arguments):
    function_names, struct_names = present()
    if arguments[:1] == ["--add"]:
        known = {name for headers in LIBRARIES.values() for header in headers for name in structs(header)}
        struct_names += [name for name in arguments[1:] if name in known]
        function_names += [name for name in arguments[1:] if name not in known]
    texts = {"functions.py": functions_text(function_names), "structs.py": structs_text(struct_names)}
    stale = [name for name, text in texts.items() if (FOLDER / name).read_text() != text]
    if not arguments:
        if stale:
            sys.exit(f"python/headroom/_c/{' and '.join(stale)} differ from the headers; run tools/python-declarations.py --write")
        return
    for name in stale:
        (FOLDER / name).write_text(texts[name])


main(sys.argv[1:])
