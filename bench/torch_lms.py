#!/usr/bin/env python3
"""Large Model Support under PyTorch: a training step with less memory than it needs, and whether its losses are the same to the bit.

    bench/torch_lms.py [--model gpt2|resnet|unet] [--limits 40GB,26GB | --fraction 0.6] [--rows NAMES] [--steps N] [--deterministic]
                       [--install KEY=VALUE]... [--profile FILE] [--build FOLDER] [--device cpu --small]

    gpt2       GPT-2 medium, batch 16 x 1024, bf16 autocast, AdamW, dropout on; limits of 40 and 26 GB unless told otherwise
    resnet     ResNet-50, batch 64; a limit of 60% of its peak
    unet       a U-Net, batch 24 of 256 x 256; a limit of 60% of its peak

Each row is a process of its own:

    native, headroom   PyTorch's allocator; Headroom as the allocator, no limit
    lms                Large Model Support without a limit: what the announcement of ops costs
    limits             Large Model Support at each limit. A fraction is of the peak of live bytes in the row headroom
    recomputing        the same with recompute=True
    save_on_cpu, checkpoint    PyTorch's own means: saved tensors in pinned host memory; gradient checkpointing

A line for each step has its time, its exact loss, and what the step added to the counters of headroom.torch.lms_stats(). The table has the median of the
last half of the steps, and compares all losses and the sums of all weights with the first row. They can only be expected to be equal with --deterministic.
--profile adds three steps to all rows, which no figure includes, and records those of the rows with a limit; the row's name is added to the file's.
"""
import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from pathlib import Path

from torch_workloads import ROOT, WORKLOADS, environment, gpt2, install, memory, run_child, synchronize

LIMITED = {"limits": "limit", "recomputing": "recomputing"}  # and what the titles of the row begin with
WITH_LMS = ("lms", *LIMITED)
ROWS = ("native", "headroom", *WITH_LMS, "save_on_cpu", "checkpoint")
PROFILED_STEPS = 3
GB = 1e9


# ---- one row, in a process of its own ----


def settings(texts):
    """The arguments of install() from KEY=VALUE."""
    words = {"true": True, "false": False, "none": None}
    pairs = (text.split("=", 1) for text in texts)
    return {key: words.get(value.lower(), value) for key, value in pairs}


def make_deterministic():
    import torch
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it would add an op to every allocation


def make_step(options):
    """The workload's step, and a context for its forward and backward pass."""
    import torch
    if options.model == "gpt2":
        step, _ = gpt2(options.device, options.small, batch=16, checkpointing=options.row == "checkpoint")
    else:
        step, _ = WORKLOADS[options.model](options.device, options.small)
    if options.row != "save_on_cpu":
        return step, contextlib.nullcontext
    return step, lambda: torch.autograd.graph.save_on_cpu(pin_memory=options.device == "cuda")


def counters(options):
    if options.allocator != "headroom":
        return {}
    import headroom.torch
    stats = headroom.torch.stats()
    result = {name: stats[name] for name in ("num_stitches", "bytes_stitched")}
    result.update(headroom.torch.lms_stats())
    return result


def describe(now, before):
    """What a step added to the counters, in one line."""
    if not now.get("num_tensors"):
        return ""
    added = {name: now[name] - before.get(name, 0) for name in now}
    return (f"  out {added['bytes_copied_out'] / GB:.3f} in {added['bytes_copied_in'] / GB:.3f} GB  evictions {added['num_evictions']} "
            f"restores {added['num_restores']} prefetched {added['num_prefetch_hits']} misses {added['num_prefetch_misses']} "
            f"refused {added['num_prefetches_refused']}  mismatches {added['num_mismatches']}  planned {added['num_steps_planned']} "
            f"plan {now['plan_step_ns'] / 1e6:.1f} ms  stall {added['stall_ns'] / 1e6:.1f} ms  "
            f"stitches {added['num_stitches']} of {added['bytes_stitched'] / GB:.3f} GB  defragmented {added['bytes_defragged'] / GB:.3f} GB")


def run_steps(options, step, context, first, count):
    """Times, exact losses, and the counters after the last step."""
    seconds, losses, before = [], [], counters(options)
    for number in range(first, first + count):
        begin = time.perf_counter()
        with context():
            loss = step(number)
        synchronize(options.device)
        seconds.append(time.perf_counter() - begin)
        losses.append(float(loss).hex())
        now = counters(options)
        print(f"step {number:>2} {1e3 * seconds[-1]:9.1f} ms  loss {losses[-1]}{describe(now, before)}", flush=True)
        before = now
    return seconds, losses, before


def recording(options):
    if options.row not in LIMITED:
        return contextlib.nullcontext()
    import headroom.torch
    return headroom.torch.profile(options.profile)


def of_last_half(now, middle, steps):
    """The counters of Large Model Support for one step: the mean of the last half of the steps, which the first ones, that learn, would distort."""
    if not now.get("num_tensors"):
        return {}
    names = ("bytes_copied_out", "bytes_copied_in", "stall_ns", "num_prefetch_misses", "num_mismatches", "num_steps_planned", "num_stitches", "bytes_stitched",
             "bytes_dropped", "num_recomputes")
    return {"plan_step_ns": now["plan_step_ns"], **{name: (now[name] - middle[name]) / steps for name in names}}


def measure(options):
    import torch
    if options.deterministic:
        make_deterministic()
    chosen = settings(options.install) if options.row in WITH_LMS else {}
    if options.row == "recomputing":
        chosen["recompute"] = True
    limit = int(options.limits) if options.limits else None
    install(options.allocator, options.device, limit=limit, lms=options.row in WITH_LMS, **chosen)
    torch.manual_seed(1)
    step, context = make_step(options)
    half = options.steps // 2
    _, losses, middle = run_steps(options, step, context, 0, options.steps - half)
    seconds, more, now = run_steps(options, step, context, options.steps - half, half)
    peaks = memory(options.allocator, options.device)
    if options.profile:
        with recording(options):
            _, profiled, _ = run_steps(options, step, context, options.steps, PROFILED_STEPS)
        more += profiled
    weights = float(sum(parameter.detach().sum(dtype=torch.float64).item() for parameter in step.model.parameters()))
    print(json.dumps({"ms": 1e3 * statistics.median(seconds), "losses": losses + more, "weights": weights.hex(), **peaks, **of_last_half(now, middle, half)}), flush=True)


# ---- all rows ----


def run_row(options, row, limit=None, title=None):
    title = title or row
    allocator = "headroom" if row in ("headroom", *WITH_LMS) else "native"
    arguments = [__file__, "--row", row, "--allocator", allocator, "--model", options.model, "--device", options.device, "--steps", options.steps]
    arguments += [flag for flag, on in (("--small", options.small), ("--deterministic", options.deterministic)) if on]
    arguments += [f"--install={text}" for text in options.install]
    if limit:
        arguments += ["--limits", limit]
    if options.profile:
        path = Path(options.profile)
        arguments += ["--profile", path.with_name(f"{path.stem}-{title.replace(' ', '-').replace('%', '')}{path.suffix}")]
    # cuBLAS sums in the same order in every run only with a workspace of a fixed size.
    changes = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if options.deterministic else {}
    print(f"\n{options.model} {title}", flush=True)
    result = run_child(arguments, environment(options, **changes), options.timeout, show=lambda line: print(f"  {line}", flush=True))
    if "failed" in result:
        print(f"  failed: {result['failed']}", flush=True)
    return result


def limits_of(options, results):
    """Pairs of title and bytes."""
    if options.limits:
        return options.limits
    peak = results.get("headroom", {}).get("live")
    if not peak:
        print("\nno limit: a fraction needs the row headroom, for the peak")
        return []
    return [(f"{part:.0%}", int(peak * part)) for part in options.fraction]


def parse_limits(options):
    """Before the first row, which takes its time. Sizes are read by the package."""
    os.environ.setdefault("HEADROOM_LIBRARY_DIR", str(Path(options.build).resolve()))
    sys.path.insert(0, str(ROOT / "python"))
    from headroom.sizes import parse_size
    if not options.limits and not options.fraction:
        if options.small or options.model != "gpt2":
            options.fraction = "0.6"
        else:
            options.limits = "40GB,26GB"
    options.limits = [(text, parse_size(text)) for text in options.limits.split(",")] if options.limits else []
    options.fraction = [float(part) for part in options.fraction.split(",")] if options.fraction else []


def same(result, first):
    if result is first or "failed" in result:
        return "-"
    count = sum(one == other for one, other in zip(result["losses"], first["losses"]))
    return "to the bit" if result["losses"] == first["losses"] and result["weights"] == first["weights"] else f"{count}/{len(first['losses'])} losses"


def print_table(options, results):
    heads = ["ms/step", "live GB", "reserved", "plan ms", "out GB", "in GB", "drop GB", "runs", "stall ms", "misses", "mismatch", "planned", "stitched"]
    fields = [("ms", 1, 1), ("live", GB, 2), ("reserved", GB, 2), ("plan_step_ns", 1e6, 1), ("bytes_copied_out", GB, 2), ("bytes_copied_in", GB, 2), ("bytes_dropped", GB, 2),
              ("num_recomputes", 1, 0), ("stall_ns", 1e6, 1),
              ("num_prefetch_misses", 1, 1), ("num_mismatches", 1, 1), ("num_steps_planned", 1, 2), ("bytes_stitched", GB, 2)]
    good = [result for result in results.values() if "failed" not in result]
    exact = ", deterministic" if options.deterministic else ""
    print(f"\n{options.model}, {options.steps} steps{exact}; counters for one step, of the last half\n{'row':<18}" + "".join(f"{head:>10}" for head in heads) + "  losses")
    for title, result in results.items():
        cells = [f"{result[name] / scale:.{digits}f}" if name in result else "-" for name, scale, digits in fields]
        print(f"{title:<18}" + "".join(f"{text:>10}" for text in cells) + f"  {'failed' if 'failed' in result else same(result, good[0])}")


def run_all(options):
    results = {}
    for row in options.rows.split(","):
        if row in LIMITED:
            for size, limit in limits_of(options, results):
                title = f"{LIMITED[row]} {size}"
                results[title] = run_row(options, row, limit, title)
        else:
            results[row] = run_row(options, row)
    print_table(options, results)
    good = [result for result in results.values() if "failed" not in result]
    # Checkpointing computes the same values, with the same random numbers, but the rows compared are those that Headroom promises.
    differ = [title for title, result in results.items() if title.startswith(("headroom", "lms", *LIMITED.values())) and same(result, good[0]) not in ("-", "to the bit")] if good else []
    if options.deterministic and differ:
        print(f"DIFFERENT: {', '.join(differ)}")
    return int(len(good) < len(results) or not good or (options.deterministic and bool(differ)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("gpt2", "resnet", "unet"), default="gpt2")
    parser.add_argument("--limits", help="default 40GB,26GB for gpt2")
    parser.add_argument("--fraction", help="limits as fractions of the peak, such as 0.75,0.6; default 0.6 for resnet and unet, and with --small")
    parser.add_argument("--rows", default="native,headroom,limits", help=f"of {','.join(ROWS)}; default native,headroom,limits")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--deterministic", action="store_true", help="deterministic algorithms; rows that differ are a failure")
    parser.add_argument("--install", action="append", default=[], metavar="KEY=VALUE", help="an argument of headroom.torch.install for the rows lms, limits and recomputing, such as policy=lru")
    parser.add_argument("--profile", metavar="FILE", help="record three more steps of each row with a limit")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the program")
    parser.add_argument("--timeout", type=int, default=180, help="seconds for one row")
    parser.add_argument("--build", default=ROOT / "build-gpu", help="folder of libheadroom.so.0; HEADROOM_LIBRARY_DIR comes first")
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)  # in the process of a row
    parser.add_argument("--allocator", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.rows.split(",")) - set(ROWS):
        parser.error(f"--rows has no {', '.join(sorted(unknown))}")
    if wrong := [text for text in options.install if "=" not in text]:
        parser.error(f"--install needs KEY=VALUE, not {wrong[0]!r}")
    if options.steps < 2:
        parser.error("--steps is 2 at least")
    if options.row:
        return measure(options)
    try:
        parse_limits(options)
    except ValueError as error:
        parser.error(str(error))
    return run_all(options)


if __name__ == "__main__":
    sys.exit(main())
