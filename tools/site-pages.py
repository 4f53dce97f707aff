#!/usr/bin/env python3
"""Gathers the pages of the documentation's site in a folder, for MkDocs (mkdocs.yml): README.md and the other documents, with their links to
files of the source tree led to pages of the site, and what is generated: the reference of the headers, from their comments, and of the
command, from its help.

    tools/site-pages.py <command headroom> <folder>
"""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Documents outside of docs/, by their place in the site. Other files that documents link to become pages under source/.
PLACES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md",
          "examples/README.md": "examples.md", "examples": "examples.md", "traces/README.md": "traces.md", "traces": "traces.md"}
CODE = {".c": "c", ".h": "c", ".cpp": "cpp", ".py": "python", ".sh": "sh", ".json": "json"}


# ---- links ----

def place(path):
    """The page of a file of the repository, relative to the folder of the site; None: it gets none."""
    if path in PLACES:
        return PLACES[path]
    if path.startswith("docs/"):
        return path[len("docs/"):]
    if re.fullmatch(r"include/\w+\.h", path):
        return f"reference/{Path(path).name}.md"
    return f"source/{path}.md" if (ROOT / path).is_file() else None


def rewrite(text, source, sources):
    """Leads the links of a document, which are relative to [source], to pages of the site. Adds the files that need a page to [sources]."""
    page = Path(place(source))

    def lead(match):
        target, _, anchor = match.group(2).partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match.group(0)
        file = os.path.normpath(Path(source).parent / target)
        found = place(file)
        if found is None:
            return match.group(0)  # MkDocs says that it is broken
        if found.startswith("source/"):
            sources.add(file)
        return f"{match.group(1)}({os.path.relpath(found, page.parent)}{'#' + anchor if anchor else ''})"

    text = re.sub(r"^<!--.*?-->$", "", text, flags=re.M)  # for tests and tools; Markdown would not see a table behind one
    parts = re.split(r"(^```.*?^```\n)", text, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else re.sub(r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)", lead, part) for part in parts)


# ---- the reference of the headers ----

def comment_text(comment):
    """The lines of a C comment, without its stars."""
    lines = comment.strip().removeprefix("/*").removesuffix("*/").splitlines()
    return [re.sub(r"^\s*\*? ?", "", line).rstrip() if number and line.lstrip().startswith("*") else line.strip() for number, line in enumerate(lines)]


def escape(text):
    text = re.sub(r"([\\*_\[\]`])", r"\\\1", text).replace("<", "&lt;")
    return re.sub(r"\b(hr|HR|HEADROOM)(\\_[\w\\]*\w)(\(\))?", lambda match: "`" + match.group(0).replace("\\", "") + "`", text)


def kinds_of_lines(lines):
    """Yields runs of lines: "code" (indented), "columns", "title" and "text"; blank lines end all but code."""
    run, kind, blanks = [], None, 0
    for line in [*lines, None]:
        if line == "":
            blanks += 1
            continue
        if line is None:
            found = None
        elif run and kind == "columns" and not blanks:
            found = "columns"
        elif re.match(r" {4}", line) and (not run or blanks or kind != "text" or line.strip().endswith((";", "{"))):
            found = "code"
        elif re.search(r"\S {2,}\S", line) or line.startswith("  "):
            found = "columns"
        else:
            found = "title" if re.fullmatch(r"[A-Z][A-Z ,-]{3,}", line) else "text"
        if run and (found != kind or blanks and kind != "code"):
            yield kind, run
            run = []
        if run and blanks:
            run.extend([""] * blanks)
        kind, blanks = found, 0
        if line is not None:
            run.append(line)


def prose(lines):
    """Markdown of a comment: its paragraphs; indented lines and lines in columns as they are."""
    out = []
    for kind, run in kinds_of_lines(lines):
        if kind == "title":
            out.append("## " + run[0].capitalize())
        elif kind == "text":
            out.extend(escape(line) for line in run)
        else:
            code = kind == "code" and any(re.search(r"[;{]\s*(/[/*].*)?$", line) for line in run)
            out.extend(["```c" if code else "```text", *[line[4:] if kind == "code" else line for line in run], "```"])
        out.append("")
    return out


def pieces(text):
    """The parts of a header between blank lines that are in no comment and in no braces."""
    piece, depth, commented = [], 0, False
    for line in text.splitlines():
        if not line.strip() and not depth and not commented:
            if piece:
                yield "\n".join(piece)
            piece = []
            continue
        piece.append(line)
        code = line
        if commented:
            commented = "*/" not in line
            code = line.split("*/", 1)[1] if not commented else ""
        code = re.sub(r"/\*.*?\*/", "", code)
        if "/*" in code:
            commented, code = True, code.split("/*", 1)[0]
        depth += code.count("{") - code.count("}")
    if piece:
        yield "\n".join(piece)


def names(code):
    """What a piece declares."""
    code = re.sub(r"/\*.*?\*/", "", code, flags=re.S)
    found = re.findall(r"^(?:HR_API|static inline)\b[^(;{]*?\b(hr_\w+)\(", code, re.M)
    found += re.findall(r"^\} (hr_\w+);|^typedef\b[^({;]*\b(hr_\w+);|^typedef[^;{]*\(\*(hr_\w+)\)", code, re.M)
    found += re.findall(r"^typedef (?:enum|struct) (hr_\w+) \{.*\}", code, re.M)
    found += re.findall(r"^#define (HR_\w+)", code, re.M)
    flat = [next(part for part in name if part) if isinstance(name, tuple) else name for name in found]
    return list(dict.fromkeys(flat))


def header_page(path):
    text = path.read_text()
    top, rest = re.match(r"(/\*.*?\*/)(.*)", text, re.S).groups()
    rest = re.sub(r"#ifdef __cplusplus\n(extern \"C\" \{|\})\n#endif\n", "", rest)
    out = [f"# {path.name}", "", *prose(comment_text(top))]
    for piece in pieces(rest):
        if re.match(r"#(endif|include|undef)", piece):
            continue
        comment, code = re.match(r"(/\*.*?\*/\n?)?(.*)", piece, re.S).groups()
        title = re.fullmatch(r"/\*[\s*]*-{3,}\s*(?:\*\s*)?(.*?)\s*-{3,}\s*(.*?)\*/\s*", comment or "", re.S)
        if title and not code.strip():
            heading, more = title.groups()
            lines = [re.sub(r"^\s*\* ?", "", line) for line in (heading + "\n" + more).splitlines()]
            body = [line for line in lines[1:]]
            heading = escape(lines[0].strip())
            out += [f"## {heading[:1].upper()}{heading[1:]}", "", *prose(body)]
            continue
        declared = names(code)
        if re.match(r"#ifndef HEADROOM_\w+_H", code.strip()) or re.fullmatch(r"(\s*#.*)*", code) and code.strip() and not declared:
            continue
        if declared:
            more = f" and {len(declared) - 3} more" if len(declared) > 3 else ""
            out += ["### " + ", ".join(f"`{name}`" for name in declared[:3]) + more, ""]
        if code.strip():
            out += ["```c", code.strip("\n"), "```", ""]
        if comment:
            out += prose(comment_text(comment))
    return "\n".join(out) + "\n"


# ---- the reference of the command ----

def command_page(command):
    def help_of(*name):
        environment = dict(os.environ, COLUMNS="100", NO_COLOR="1")
        return subprocess.run([command, "help", *name], capture_output=True, text=True, check=True, env=environment).stdout.rstrip()

    overview = help_of()
    out = ["# The command `headroom`", "", "What `headroom help` and `headroom help COMMAND` print. The manual pages (`man headroom-run`) say the same.", "",
           "```text", overview, "```", ""]
    found = re.findall(r"^  ([a-z][a-z-]*) ", overview, re.M)
    for name in found:
        if name != "help":
            out += [f"## headroom {name}", "", "```text", help_of(name), "```", ""]
    if len(found) < 8:
        raise SystemExit(f"site-pages: {command} help lists {len(found)} commands")
    return "\n".join(out)


# ---- the pages ----

def source_page(file):
    path = ROOT / file
    text = path.read_text()
    fence = "````" if "```" in text else "```"
    return f"# {file}\n\n{fence}{CODE.get(path.suffix, 'text')}\n{text.rstrip()}\n{fence}\n"


def main():
    command, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)

    def put(page, text):
        target = folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    sources = set()
    documents = [file for file in PLACES if file.endswith(".md")] + sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    for file in documents:
        put(place(file), rewrite((ROOT / file).read_text(), file, sources))
    for path in (ROOT / "docs").rglob("*"):
        if path.is_file() and path.suffix != ".md":
            target = folder / path.relative_to(ROOT / "docs")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    for file in sorted(sources):
        put(place(file), source_page(file))
    for path in sorted((ROOT / "include").glob("*.h")):
        put(f"reference/{path.name}.md", header_page(path))
    put("reference/command.md", command_page(command))
    put("site.css", "/* Headers have 132 columns. */\n.md-grid { max-width: 86rem; }\n.md-typeset pre > code { font-size: 0.72em; }\n")


if __name__ == "__main__":
    main()
