#!/usr/bin/env python3
"""Every code block of the README, the tour and the how-tos does what the text around it says: C, Python and shell (document_code.py).

    tests/tools/test_document_code.py [page]...    HEADROOM_COMMAND is build/headroom
"""
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "torch")]
from document_code import Failure, Reader  # noqa: E402

BUILD = Path(os.environ["HEADROOM_COMMAND"]).resolve().parent
PAGES = ["README.md", "docs/tour.md", "docs/faq.md", "docs/glossary.md", "docs/alternatives.md", "docs/coming-from-pytorch.md", "docs/coming-from-rmm.md",
         *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "how-to").glob("*.md"))]
LIBRARIES = "headroom_runtime headroom_analysis"


def python():
    """An interpreter with PyTorch, unless there is none."""
    from environment import PYTHON
    return (PYTHON, True) if Path(PYTHON).exists() and os.environ.get("TORCH") != "0" else (sys.executable, False)


def install(work):
    """What `make install` makes, and the environment of a user who has it."""
    prefix, tools = work / "prefix", work / "tools"
    subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix], check=True, capture_output=True)
    tools.mkdir()
    for name in ("python", "python3"):
        (tools / name).write_text(f'#!/bin/sh\nexec "{python()[0]}" "$@"\n')
        (tools / name).chmod(0o755)
    library = next(path.parent for path in prefix.rglob("libheadroom.so.0"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADROOM_")}
    environment.update(PATH=f"{prefix}/bin:{tools}:{os.environ['PATH']}", PKG_CONFIG_PATH=f"{library}/pkgconfig", LD_LIBRARY_PATH=str(library),
                       PYTHONPATH=str(ROOT / "python"), HEADROOM_LIBRARY_DIR=str(library), HEADROOM_PYTHON_DIR=str(ROOT / "python"), HEADROOM_CUDA="0",
                       HEADROOM_CUDA_LIBRARIES="0", XDG_RUNTIME_DIR=str(work), ONEDNN_MAX_CPU_ISA="AVX512_CORE", OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", COLUMNS="100", LC_ALL="C.UTF-8")
    if python()[1]:  # compiles the plug-in, if no run has done so yet: it would say so in the output of the first block
        subprocess.run([python()[0], "-c", "import headroom.torch; headroom.torch.install(device='cpu')"], env=environment, check=True)
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", *LIBRARIES.split()], env=environment, capture_output=True, text=True, check=True).stdout.split()
    return environment, [*flags, "-pthread", "-lm"]


def follow(page, work, environment, libraries, remembered):
    """Returns (page, counts, failure)."""
    folder = work / page.replace("/", "_")
    folder.mkdir()
    for name in ("examples", "traces", "include", "src", "tests"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "build").symlink_to(BUILD)
    torch = python()[1]
    reader = Reader(folder, environment, libraries, lambda block: None if torch or "torch" not in block.text and "torch" not in (block.file or "") else "there is no PyTorch",
                    remembered)
    try:
        reader.read((ROOT / page).read_text())
    except Failure as failure:
        return page, reader.counts, str(failure)
    return page, reader.counts, None


def main():
    if not (BUILD / "libheadroom.so.0").exists():
        print("skipped: this build has no shared library")
        return 0
    pages, totals, remembered, failed = sys.argv[1:] or PAGES, {}, {}, 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work, ThreadPoolExecutor(2) as threads:
        work = Path(work)
        environment, libraries = install(work)
        for page, counts, failure in threads.map(lambda page: follow(page, work, environment, libraries, remembered), pages):
            for what, number in counts.items():
                totals[what] = totals.get(what, 0) + number
            if failure:
                failed += 1
                print(f"{page}: {failure}", file=sys.stderr)
    print(f"{len(pages)} pages; blocks: " + ", ".join(f"{number} {what}" for what, number in totals.items()))
    return 1 if failed or not totals.get("run") else 0


if __name__ == "__main__":
    sys.exit(main())
