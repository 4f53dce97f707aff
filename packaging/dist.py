#!/usr/bin/env python3
"""Writes the source archive of the last commit, which pip accepts too: dist/headroom-VERSION.tar.gz.

    packaging/dist.py [FOLDER]

The same commit gives the same bytes: files are sorted, their times are that of the commit (or SOURCE_DATE_EPOCH), they have no owner, and gzip
has no time and no name. Changes that are not committed are not in it, and a line says so.
"""
import gzip
import io
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def git(*arguments):
    # CI may run as root in a checkout of another user, which git refuses otherwise.
    done = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *arguments], capture_output=True)
    if done.returncode != 0:
        sys.exit(f"dist: it needs a git checkout: {done.stderr.decode().strip()}")
    return done.stdout


def version(header):
    numbers = dict(re.findall(r"^#define HR_VERSION_(MAJOR|MINOR|PATCH) (\d+)$", header, re.M))
    return ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH"))


def metadata(project, number, readme):
    """PKG-INFO, by which pip recognises a source archive."""
    head = {"Metadata-Version": "2.1", "Name": project["name"], "Version": number, "Summary": project["description"], "License": project["license"]["text"],
            "Requires-Python": project["requires-python"], "Description-Content-Type": "text/markdown"}
    return "".join(f"{name}: {text}\n" for name, text in head.items()) + "\n" + readme


def add(archive, name, data, mode, time):
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), mode, time
    archive.addfile(member, io.BytesIO(data))


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist")
    if git("status", "--porcelain", "--untracked-files=no"):
        print("dist: changes that are not committed are left out", file=sys.stderr)
    source = tarfile.open(fileobj=io.BytesIO(git("archive", "--format=tar", "HEAD")))
    files = {member.name: (source.extractfile(member).read(), 0o755 if member.mode & 0o100 else 0o644) for member in source if member.isfile()}
    time = int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))
    number = version(files["include/headroom.h"][0].decode())
    project = tomllib.loads(files["pyproject.toml"][0].decode())["project"]
    files["PKG-INFO"] = (metadata(project, number, files["README.md"][0].decode()).encode(), 0o644)

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"headroom-{number}.tar.gz"
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0, compresslevel=9) as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            add(archive, f"headroom-{number}/{name}", *files[name], time)
    path.write_bytes(packed.getvalue())
    print(path)


if __name__ == "__main__":
    main()
