#!/usr/bin/env python3
"""Compares training steps of three models in Headroom's runtime and in PyTorch on the same processors.

    bench/models.py BUILD_FOLDER [--rounds N] [--steps N]

Rounds alternate between the two, so that disturbances affect both; each figure is the least of the rounds' medians. Speed is PyTorch's time divided
by Headroom's: above 1, Headroom is faster. Memory is the peak of a step, including weights, gradients, optimizer state, activations and scratch;
PyTorch's is given for tensors alone and for all memory that the process allocated. bench/torch_models.py explains how it is counted.
"""
import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = ("mlp", "conv", "gpt")


def last_line(command, environment):
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"models: {command[0]} failed: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    arguments = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    environment = dict(os.environ, HEADROOM_THREADS=str(threads), OMP_NUM_THREADS=str(threads))
    rows = []
    for model in MODELS:
        ours, theirs = [], []
        for _ in range(arguments.rounds):
            ours.append(last_line([str(arguments.build / "bench" / "models"), "--model", model, "--steps", str(arguments.steps)], environment))
            theirs.append(last_line([sys.executable, str(HERE / "torch_models.py"), "--model", model, "--threads", str(threads),
                                     "--steps", str(arguments.steps)], environment))
        rows.append((model, min(r["median_s"] for r in ours), min(r["step_seconds"] for r in theirs), ours[0]["peak_bytes"],
                     theirs[0]["peak_tensor_bytes"], theirs[0]["peak_all_bytes"], theirs[0]))
    told = rows[0][-1]
    print(f"PyTorch {told['torch']} ({told['blas']}), {threads} threads, float32, one training step")
    print(f"{'':6}{'ms a step':>12}{'PyTorch':>10}{'speed':>8}{'peak MB':>12}{'PyTorch: tensors':>18}{'all':>8}")
    for model, ours_s, theirs_s, peak, tensors, everything, _ in rows:
        print(f"{model:6}{ours_s * 1e3:12.1f}{theirs_s * 1e3:10.1f}{theirs_s / ours_s:8.2f}{peak / 1e6:12.1f}{tensors / 1e6:18.1f}{everything / 1e6:8.1f}")


if __name__ == "__main__":
    main()
