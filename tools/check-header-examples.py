#!/usr/bin/env python3
"""Compiles every example in the public headers' comments and in docs/, and runs those that are whole programs.

    tools/check-header-examples.py <build folder>

In a header, an example is a run of comment lines indented by four spaces or more past the text (" *     "), at least one of which ends
in ';' or '{'. In Markdown it is a block fenced as ```c. An example with a main() is a program: it must compile without a warning, run and
return 0. In headers, others are compiled as the body of a function; in Markdown they may be fragments and are ignored.

The output of a program in Markdown is compared if it is documented: in the block fenced as ```text that follows it, or in `backquotes` after
the words "it prints". Numbers with a decimal point may differ by 5% or 0.02, because processors sum in different orders. Programs run on the
emulated device even if there is a GPU. The README and the how-tos have a test of their own, tests/tools/test_document_code.py.
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

root = Path(__file__).resolve().parent.parent
build = Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve()
FLAGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I", str(root / "include")]


def header_examples(path):
    block, start = [], 0
    for number, line in enumerate(path.read_text().splitlines() + [""], 1):
        match = re.match(r"^ \*     (.*)$", line)
        if match:
            if not block:
                start = number
            block.append(match.group(1))
        elif block and re.match(r"^ \*\s*$", line):
            block.append("")
        elif block:
            if any(re.search(r"[;{]\s*(//.*|/\*.*\*/)?$", code) for code in block) and not is_prose(block):
                yield start, "\n".join(block) + "\n"
            block = []


def is_prose(block):
    # A continuation line of an indented list also starts with spaces, but only code has brackets or an assignment.
    return not any(re.search(r"[(){}=#]", line) for line in block)


def printed_by(after):
    """The documented output of a program, from the text after it; None if there is none."""
    upto = after.split("\n```c\n")[0].split("\n## ")[0]
    block = re.search(r"^```text\n(.*?)^```", upto, re.S | re.M)
    inline = re.search(r"it prints `([^`]*)`", upto)
    return block.group(1) if block else inline.group(1) + "\n" if inline else None


def markdown_examples(path):
    text = path.read_text()
    for match in re.finditer(r"^```c\n(.*?)^```", text, re.S | re.M):
        if "main(" in match.group(1):
            yield text.count("\n", 0, match.start()) + 2, match.group(1), printed_by(text[match.end():])


NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def same_number(told, got):
    if "." not in told:
        return told == got
    return abs(float(told) - float(got)) <= max(0.05 * abs(float(told)), 0.02)


def same_output(told, got):
    if NUMBER.sub("#", told) != NUMBER.sub("#", got):
        return False
    return all(same_number(a, b) for a, b in zip(NUMBER.findall(told), NUMBER.findall(got)))


def run(command, **kwargs):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **kwargs)


def try_example(code, folder, told):
    """Returns None, or a description of the failure."""
    source = folder / "example.c"
    if not re.search(r"\bmain\s*\(", code):
        names = sorted(p.name for p in (root / "include").glob("*.h"))
        includes = "".join(f"#include <{n}>\n" for n in names) + "#include <stdio.h>\n#include <string.h>\n"
        source.write_text(f"{includes}void example(void);\nvoid example(void)\n{{\n{code}}}\n")
        done = run(["cc", *FLAGS, "-Wno-unused", "-fsyntax-only", str(source)])
        return None if done.returncode == 0 else done.stderr
    source.write_text(code)
    program = folder / "example"
    done = run(["cc", *FLAGS, str(source), *(str(build / f"libheadroom{part}.a") for part in ("_analysis", "_runtime", "")), "-pthread", "-lm", "-fno-lto", "-o", str(program)])
    if done.returncode != 0:
        return done.stderr
    done = run([str(program)], cwd=folder, env={**os.environ, "HEADROOM_CUDA": "0"})
    if done.returncode != 0:
        return f"returned {done.returncode}\n{done.stdout}{done.stderr}"
    if told is not None and not same_output(told, done.stdout):
        return f"prints\n{done.stdout}and is said to print\n{told}"
    return None


examples = [(p, *e, None) for p in sorted((root / "include").glob("*.h")) for e in header_examples(p)]
for path in sorted((root / "docs").glob("*.md")):
    examples += [(path, *e) for e in markdown_examples(path)]

failed = 0
for path, line, code, told in examples:
    with tempfile.TemporaryDirectory() as folder:
        trouble = try_example(code, Path(folder), told)
    if trouble:
        failed += 1
        print(f"check-header-examples: {path.relative_to(root)}:{line}: {trouble}", file=sys.stderr)
if not any(p.suffix == ".h" for p, *_ in examples):
    failed += 1
    print("check-header-examples: no example found in include/; the check would say nothing", file=sys.stderr)
if not failed:
    print(f"examples: {len(examples)} compile; programs among them run")
sys.exit(1 if failed else 0)
