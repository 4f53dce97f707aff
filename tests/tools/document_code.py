"""Runs the code blocks of a document as its reader would, one after the other in one folder, and compares what they print with what it shows.

    ```c         with a main(): compiled and run; otherwise compiled as the body of a function
    ```python    run
    ```sh        run by bash, which stops at the first command that fails
    ```console   each line that begins with "$ " is run, and what it prints is compared with the lines behind it
    ```text      what the block before it prints

In output, a line "..." stands for any lines, and "..." in a line for any text. Times ("1.8 s") match any times, numbers with a decimal point those within 5%
or 0.02, because processors sum in different orders, and spaces any number of spaces.

HTML comments in front of a block, which readers do not see, say what differs:

    <!-- not run: needs a card -->    it is counted instead; the reasons are those of REASONS
    <!-- file: leak.c -->             it is saved in that file, which a later block uses
    <!-- exit: 1 -->                  the exit status that is right
    <!-- figures vary -->             all numbers of the output match any numbers
    <!-- no output -->                for ```text: not the output of a block

A block in another language, or in none, is an error unless it is not run.
"""
import re
import subprocess
from pathlib import Path

REASONS = ("needs a card", "needs a network", "builds the source tree", "runs until it is stopped")
COMPILE = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]
SECONDS = 240  # after which a block counts as hung


class Failure(Exception):
    pass


class Block:
    def __init__(self, language, text, line, comments):
        self.language, self.text, self.line, self.comments = language, text, line, comments
        known = {}
        for comment in comments:
            match = re.fullmatch(r"(not run|file|exit|figures vary|no output)(?:: (.*))?", comment)
            if not match:
                raise Failure(f"line {line}: unknown comment <!-- {comment} -->")
            known[match.group(1)] = match.group(2) or ""
        self.not_run, self.file = known.get("not run"), known.get("file")
        self.exit, self.vary, self.no_output = int(known.get("exit", 0)), "figures vary" in known, "no output" in known


def blocks_of(text):
    found, lines, number = [], text.splitlines(), 0
    while number < len(lines):
        fence = re.match(r"^(\s*)(`{3,})(\w*)\s*$", lines[number])
        if not fence:
            if re.match(r"^(\t| {4,})\S", lines[number]) and number and not lines[number - 1].strip() and not re.match(r"^\s*([-*]|\d+\.) ", lines[number]):
                raise Failure(f"line {number + 1}: an indented code block: use ``` with a language")
            number += 1
            continue
        end = next((n for n in range(number + 1, len(lines)) if lines[n].strip() == fence.group(2)), None)
        if end is None:
            raise Failure(f"line {number + 1}: the block does not end")
        comments, above = [], number - 1
        while above >= 0 and (match := re.fullmatch(r"\s*<!-- (.*?) -->", lines[above])):
            comments.insert(0, match.group(1))
            above -= 1
        body = [line[len(fence.group(1)):] for line in lines[number + 1:end]]
        found.append(Block(fence.group(3), "\n".join(body) + "\n", number + 1, comments))
        number = end + 1
    return found


# ---- output ----

NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
TIME = r"\d[\d,.]* ?(?:ns|us|ms|s|min|h)\b"


def same_number(told, got):
    told, got = told.replace(",", ""), got.replace(",", "")
    if "." not in told:
        return told == got
    return abs(float(told) - float(got)) <= max(0.05 * abs(float(told)), 0.02)


def same_line(told, got, vary=False):
    pattern, numbers = "", []
    for part in re.finditer(rf"\.\.\.|{TIME}|{NUMBER}|\s+|.", told.strip()):
        text = part.group(0)
        if text == "...":
            pattern += ".*?"
        elif re.fullmatch(TIME, text):
            pattern += TIME
        elif re.fullmatch(NUMBER, text):
            pattern += f"({NUMBER})"
            numbers.append(text)
        else:
            pattern += r"\s+" if text.isspace() else re.escape(text)
    match = re.fullmatch(pattern, got.strip())
    return bool(match) and (vary or all(same_number(a, b) for a, b in zip(numbers, match.groups())))


def same_output(told, got, vary=False):
    told, got = told.rstrip().splitlines(), got.rstrip().splitlines()

    def same(t, g):
        while t < len(told):
            if told[t].strip() == "...":
                return any(same(t + 1, later) for later in range(g, len(got) + 1))
            if g >= len(got) or not same_line(told[t], got[g], vary):
                return False
            t, g = t + 1, g + 1
        return g == len(got)
    return same(0, 0)


def compare(block, told, got):
    if not same_output(told, got, block.vary):
        raise Failure(f"line {block.line}: it prints\n{got}and is said to print\n{told}")


# ---- running ----

class Reader:
    """Follows one document in [folder], in an environment in which the commands of the document are found."""

    def __init__(self, folder, environment, libraries, missing=lambda block: None, remembered=None):
        self.folder, self.environment, self.libraries, self.missing = Path(folder), environment, libraries, missing
        self.remembered = {} if remembered is None else remembered  # what commands printed that several documents have, and that write no file
        self.counts = {"run": 0, "compared": 0}
        self.output = None    # of the last block, until it is compared
        self.left_out = False # the last block was not run: what it would print cannot be compared
        self.unused = {}

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def execute(self, block, command, status=None):
        right = block.exit if status is None else status
        key = (command[-1], right) if re.match(r"headroom run (?!.*(--trace|>))", str(command[-1])) else None
        if key in self.remembered:
            return self.remembered[key]
        try:
            done = subprocess.run(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  stdin=subprocess.DEVNULL, timeout=SECONDS, errors="replace")
        except subprocess.TimeoutExpired:
            raise Failure(f"line {block.line}: still running after {SECONDS} s") from None
        if done.returncode != right:
            raise Failure(f"line {block.line}: exit status {done.returncode}\n{done.stdout}")
        if key:
            self.remembered[key] = done.stdout
        return done.stdout

    def compile(self, block, source, *arguments):
        done = subprocess.run(["cc", *COMPILE, str(source), *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"line {block.line}: it does not compile\n{done.stderr}")

    def run_c(self, block):
        source = self.folder / f"block{block.line}.c"
        if re.search(r"\bmain\s*\(", block.text):
            source.write_text(block.text)
            self.compile(block, source, *self.libraries, "-o", str(source.with_suffix("")))
            return self.execute(block, [source.with_suffix("")])
        names = ("headroom", "headroom_analysis", "headroom_backend", "headroom_record", "headroom_runtime")
        includes = "".join(f"#include <{name}.h>\n" for name in names) + "#include <stdio.h>\n#include <string.h>\n"
        source.write_text(f"{includes}void example(void);\nvoid example(void)\n{{\n{block.text}}}\n")
        self.compile(block, source, "-Wno-unused", "-fsyntax-only", *self.libraries)
        return ""

    def run_python(self, block):
        source = self.folder / f"block{block.line}.py"
        source.write_text(block.text)
        return self.execute(block, ["python", source])

    def run_sh(self, block):
        return self.execute(block, ["bash", "-e", "-o", "pipefail", "-c", block.text])

    def run_console(self, block):
        commands = re.split(r"^\$ ", block.text, flags=re.M)
        if commands[0].strip() or len(commands) < 2:
            raise Failure(f"line {block.line}: a console begins with \"$ \"")
        for number, command in enumerate(commands[1:], 2):
            lines = command.splitlines()
            count = next(n for n, line in enumerate(lines, 1) if not line.endswith("\\"))
            told = "\n".join(lines[count:])
            got = self.execute(block, ["bash", "-o", "pipefail", "-c", "\n".join(lines[:count])], block.exit if number == len(commands) else 0)
            if told.strip():
                compare(block, told + "\n", got)
                self.count("compared")
        return None

    def save(self, block):
        (self.folder / block.file).write_text(block.text)
        self.unused[block.file] = block.line

    def block(self, block):
        for name in [name for name in self.unused if name in block.text]:
            del self.unused[name]
        if block.not_run is not None:
            if not block.not_run.startswith(REASONS):
                raise Failure(f"line {block.line}: \"{block.not_run}\" is no reason not to run it; reasons are {', '.join(REASONS)}")
            self.count("not run: " + next(reason for reason in REASONS if block.not_run.startswith(reason)))
            self.output, self.left_out = None, True
            return
        reason = self.missing(block)
        if reason:
            self.count("skipped: " + reason)
            self.output, self.left_out = None, True
            return
        if block.file:
            self.save(block)
            return
        if block.language == "text":
            if block.no_output or self.left_out:
                return
            if self.output is None:
                raise Failure(f"line {block.line}: it is behind no block that prints it (or mark it <!-- no output -->)")
            compare(block, block.text, self.output)
            self.count("compared")
            self.output = None
            return
        runner = getattr(self, "run_" + block.language, None) if block.language else None
        if not runner:
            raise Failure(f"line {block.line}: a block in \"{block.language}\" cannot be run; mark it <!-- not run: REASON --> or choose another language")
        self.output, self.left_out = runner(block), False
        self.count("run")

    def read(self, text):
        for block in blocks_of(text):
            self.block(block)
        if self.unused:
            raise Failure(f"files that no later block uses: {', '.join(self.unused)}")
        return self.counts
