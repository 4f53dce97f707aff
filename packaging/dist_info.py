#!/usr/bin/env python3
"""Writes headroom-VERSION.dist-info into a folder of Python packages, as pip does: tools list the package, and pytest finds its plug-in.

    packaging/dist_info.py FOLDER
"""
import sys
import tomllib
from pathlib import Path

from dist import ROOT, metadata, version


def main():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    number = version((ROOT / "include/headroom.h").read_text())
    folder = Path(sys.argv[1]) / f"headroom-{number}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(metadata(project, number, (ROOT / "README.md").read_text()))
    points = "".join(f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in names.items()) for group, names in project["entry-points"].items())
    (folder / "entry_points.txt").write_text(points)


main()
