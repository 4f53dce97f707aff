#!/usr/bin/env python3
"""Makes the PyTorch snapshots of this folder: one snapshot as JSON and as a pickle of every protocol that Headroom reads.

    make_torch_snapshot.py [SNAPSHOT.pickle]

Without an argument it records two training steps on a GPU, as a user would with torch.cuda.memory._dump_snapshot, which pickles the same
dictionary. The committed files come from PyTorch 2.11 and Python 3.12 on an H200. Folders of the machine are removed from the file names, and
the middle of the history is left out to keep the files small.
"""
import json
import pickle
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def record():
    import torch
    torch.cuda.memory._record_memory_history("all", context="all", stacks="python", max_entries=400)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 8)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.cuda.Stream()
    for _ in range(2):
        loss = model(torch.randn(64, 256, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.stream(side):
            torch.ones(300000, device="cuda")
    try:
        torch.empty(1 << 44, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    return torch.cuda.memory._snapshot()


def shorten(snapshot):
    names = {}
    holders = [entry for trace in snapshot["device_traces"] for entry in trace] + snapshot["segments"]
    holders += [block for segment in snapshot["segments"] for block in segment["blocks"]]
    for holder in holders:
        for frame in holder.get("frames", ()):
            name = frame["filename"]  # may be short already: entries share frames
            short = name.rsplit("site-packages/", 1)[-1]
            short = short.rsplit("/", 1)[-1] if short.startswith("/") else short
            frame["filename"] = names.setdefault(short, short)
    for trace in snapshot["device_traces"]:
        del trace[64:-8]
    del snapshot["segments"][2:]


def main():
    snapshot = pickle.loads(Path(sys.argv[1]).read_bytes()) if len(sys.argv) > 1 else record()
    shorten(snapshot)
    (FOLDER / "torch_snapshot.json").write_text(json.dumps(snapshot) + "\n")
    for protocol in range(2, 6):
        (FOLDER / f"torch_snapshot_{protocol}.pickle").write_bytes(pickle.dumps(snapshot, protocol))


if __name__ == "__main__":
    main()
