#!/usr/bin/env python3
"""Large Model Support under PyTorch: a training step with less memory than it needs, and whether its losses are the same to the bit.

    bench/torch_lms.py [--model gpt2|resnet|unet] [--limits 40GB,26GB | --fraction 0.6] [--rows NAMES] [--steps N] [--deterministic]
                       [--install KEY=VALUE]... [--profile FILE] [--build FOLDER] [--device cpu --small]
    bench/torch_lms.py --cases all|NAMES [--seconds N] [--log FILE] [the same options]
    bench/torch_lms.py --largest-batch 16GB [--rows native,checkpoint,recomputing] [--seconds N]

    gpt2       GPT-2 medium, batch 16 x 1024, bf16 autocast, AdamW, dropout on; limits of 40 and 26 GB unless told otherwise
    resnet     ResNet-50, batch 64; a limit of 60% of its peak
    unet       a U-Net, batch 24 of 256 x 256; a limit of 60% of its peak

Each row is a process of its own:

    native, headroom   PyTorch's allocator; Headroom as the allocator, no limit
    lms                Large Model Support without a limit: what the announcement of ops costs
    limits             Large Model Support at each limit, by moving alone (recompute=False). A fraction is of the peak of live bytes in the row headroom
    recomputing        the same with recompute=True
    save_on_cpu, checkpoint    PyTorch's own means: saved tensors in pinned host memory; gradient checkpointing
    compile             torch.compile with an activation memory budget, --budget

--cases has rows of several models in one table, MODEL:ROW or MODEL:ROW@LIMIT; the limit is a size or a percentage of the peak of an earlier case of that model, and the
budget of compile. Names may be patterns of those in the table below (CASES): gpt2:recomputing@*. No case begins after --seconds.

--largest-batch finds the largest batch of GPT-2 with which two steps run at that limit, to a multiple of --unit: by doubling, then by halving the distance.

A line for each step has its time and what the step added to the counters of headroom.torch.lms_stats(); exact losses follow. The table has the median of the
last half of the steps, and compares all losses and the sums of all weights with the first row. They can only be expected to be equal with --deterministic.
--profile adds three steps to all rows, which no figure includes, and records those of the rows with a limit; the names of model and row are added to the file's.
"""
import argparse
import contextlib
import fnmatch
import gc
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

from torch_workloads import ROOT, WORKLOADS, environment, gpt2, install, memory, run_child, synchronize, synchronize_stream

MODELS = ("gpt2", "resnet", "unet")
LIMITED = {"limits": "limit", "recomputing": "recomputing"}  # and what the titles of the row begin with
WITH_LMS = ("lms", *LIMITED)
ROWS = ("native", "headroom", *WITH_LMS, "save_on_cpu", "checkpoint", "compile")
CASES = ("gpt2:native", "gpt2:recomputing@26GB", "gpt2:recomputing@40GB", "gpt2:recomputing@16GB", "gpt2:checkpoint", "resnet:native", "resnet:recomputing@50%",
         "unet:native", "unet:recomputing@50%", "gpt2:limits@26GB", "gpt2:compile@0.5", "gpt2:save_on_cpu", "gpt2:limits@40GB", "gpt2:limits@16GB", "resnet:limits@50%",
         "unet:limits@50%")  # the first ones matter most, if time is short
PROFILED_STEPS = 3
GB = 1e9


# ---- one row, in a process of its own ----


def settings(texts):
    """The arguments of install() from KEY=VALUE."""
    words = {"true": True, "false": False, "none": None}
    pairs = (text.split("=", 1) for text in texts)
    return {key: words.get(value.lower(), value) for key, value in pairs}


def recipes_of(options):
    """The arguments of install() for this row, without limit and lms."""
    return {**({"recompute": options.row == "recomputing"} if options.row in LIMITED else {}), **settings(options.install)}


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
    if options.row == "compile":
        import torch._functorch.config
        torch._functorch.config.activation_memory_budget = options.budget
        step.model.compile()
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
            f"drops {added['num_drops']} recomputed {added['num_recomputes']}, planned {added['num_planned_recomputes']}, failed {added['num_failed_recomputes']}, "
            f"again {now['plan_again_ns'] / 1e6:.1f} ms  plan {now['plan_step_ns'] / 1e6:.1f} ms, out {now['plan_bytes_out'] / GB:.3f} in {now['plan_bytes_in'] / GB:.3f} GB  stall {added['stall_ns'] / 1e6:.1f} ms  "
            f"stitches {added['num_stitches']} of {added['bytes_stitched'] / GB:.3f} GB  defragmented {added['bytes_defragged'] / GB:.3f} GB")


def run_steps(options, step, context, first, count):
    """Times, exact losses, and the counters after the last step.

    A step ends when the stream that computes has done its work, and its time begins where that of the step before it ends. So copies to the host that are left over run beside the
    next step, as in a training loop, and what they delay counts there. Losses are read at the end, because reading one would wait for these copies.
    """
    seconds, losses, before = [], [], counters(options)
    synchronize(options.device)
    end = time.perf_counter()
    for number in range(first, first + count):
        with context():
            losses.append(step(number).detach())
        synchronize_stream(options.device)
        begin, end = end, time.perf_counter()
        seconds.append(end - begin)
        now = counters(options)
        print(f"step {number:>2} {1e3 * seconds[-1]:9.1f} ms{describe(now, before)}", flush=True)
        before = now
    losses = [float(loss).hex() for loss in losses]
    print(f"losses {' '.join(losses)}", flush=True)
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
    chosen = recipes_of(options) if options.row in WITH_LMS else {}
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


# ---- the largest batch, in a process of its own ----


def is_out_of_memory(error):
    import torch
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error) or "cannot run: it needs" in str(error)


def time_of_batch(options, step, context, batch):
    """Milliseconds of a step; None if there is not enough memory."""
    step.batch = batch
    try:
        return 1e3 * run_steps(options, step, context, 0, 2)[0][-1]
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        print(f"batch {batch}: {str(error).splitlines()[0][:200]}", flush=True)
    for parameter in step.model.parameters():
        parameter.grad = None
    gc.collect()
    if options.device == "cuda":
        import torch
        torch.cuda.empty_cache()
    return None


def find_largest_batch(options):
    import torch
    limit, end = int(options.limits), time.monotonic() + 0.8 * options.timeout
    if options.allocator == "headroom":
        install(options.allocator, options.device, limit=limit, lms=True, **recipes_of(options))
    elif options.device == "cuda":
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    torch.manual_seed(1)
    step, context = make_step(options)
    best, ms, too_large, batch = 0, None, None, options.unit
    while batch and time.monotonic() < end:
        taken = time_of_batch(options, step, context, batch)
        if taken is None:
            too_large = batch
        else:
            best, ms = batch, taken
        batch = 2 * batch if too_large is None else (best + too_large) // 2 // options.unit * options.unit
        if batch <= best:
            break
    complete = too_large is not None and too_large - best <= options.unit
    print(json.dumps({"batch": best, "ms": ms, "complete": complete}), flush=True)


# ---- all rows ----


def tell(line):
    print(line, flush=True)


def is_headroom(row):
    return row in ("headroom", *WITH_LMS)


def child_arguments(options, model, row):
    arguments = [__file__, "--row", row, "--allocator", "headroom" if is_headroom(row) else "native", "--model", model, "--device", options.device]
    arguments += [flag for flag, on in (("--small", options.small), ("--deterministic", options.deterministic)) if on]
    return arguments + [f"--install={text}" for text in options.install]


def run_row(options, model, row, limit=None, title=None, show=tell, timeout=None):
    title = title or row
    arguments = child_arguments(options, model, row) + ["--steps", options.steps, "--budget", options.budget]
    if limit:
        arguments += ["--limits", limit]
    if options.profile:
        path = Path(options.profile)
        arguments += ["--profile", path.with_name(re.sub(r"[^\w.]+", "-", f"{path.stem}-{model}-{title}").strip("-") + path.suffix)]
    # cuBLAS sums in the same order in every run only with a workspace of a fixed size.
    changes = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if options.deterministic else {}
    show(f"\n{model} {title}")
    result = run_child(arguments, environment(options, **changes), timeout or options.timeout, show=lambda line: show(f"  {line}"))
    if "failed" in result:
        show(f"  failed: {result['failed']}")
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
    if result is first or not first or "failed" in result:
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
                results[title] = run_row(options, options.model, row, limit, title)
        else:
            results[row] = run_row(options, options.model, row)
    print_table(options, results)
    good = [result for result in results.values() if "failed" not in result]
    # Checkpointing computes the same values, with the same random numbers, but the rows compared are those that Headroom promises.
    differ = [title for title, result in results.items() if title.startswith(("headroom", "lms", *LIMITED.values())) and same(result, good[0]) not in ("-", "to the bit")] if good else []
    if options.deterministic and differ:
        print(f"DIFFERENT: {', '.join(differ)}")
    return int(len(good) < len(results) or not good or (options.deterministic and bool(differ)))


# ---- cases ----


def find_cases(options):
    """The chosen names. Raises ValueError."""
    if options.cases == "all":
        return list(CASES)
    names = []
    for text in options.cases.split(","):
        found = fnmatch.filter(CASES, text) or [text]
        model, colon, rest = found[0].partition(":")
        if not colon or model not in MODELS or rest.partition("@")[0] not in ROWS:
            raise ValueError(f"--cases has {text!r}, which is not MODEL:ROW or MODEL:ROW@LIMIT")
        names += [name for name in found if name not in names]
    return names


def limit_of(amount, results, model):
    """Bytes of a size, or of a percentage of the peak of the first case of the model. Raises ValueError."""
    from headroom.sizes import parse_size
    if not amount.endswith("%"):
        return parse_size(amount)
    peak = next((result["live"] for name, result in results.items() if name.startswith(f"{model}:") and "live" in result), None)
    if not peak:
        raise ValueError(f"{amount} of the peak of {model} needs a case before it that has a peak, such as {model}:{'native' if peak is None else 'headroom'}")
    return int(peak * float(amount[:-1]) / 100)


def run_case(options, name, results, show, left):
    model, rest = name.split(":")
    row, _, amount = rest.partition("@")
    try:
        limit = limit_of(amount, results, model) if row in LIMITED else None
    except ValueError as error:
        return {"failed": str(error)}
    if row == "compile" and amount:
        options.budget = float(amount)
    return run_row(options, model, row, limit, rest, show, timeout=min(options.timeout, left))


def print_cases(options, results):
    heads = ["ms/step", "/native", "live GB", "plan ms", "out GB", "in GB", "drop GB", "runs", "stall ms", "misses"]
    fields = [("live", GB, 2), ("plan_step_ns", 1e6, 1), ("bytes_copied_out", GB, 2), ("bytes_copied_in", GB, 2), ("bytes_dropped", GB, 2), ("num_recomputes", 1, 0),
              ("stall_ns", 1e6, 1), ("num_prefetch_misses", 1, 1)]
    print(f"\n{options.steps} steps each; times and counters of the last half\n{'case':<24}" + "".join(f"{head:>9}" for head in heads) + "  losses")
    for name, result in results.items():
        first = next((other for other_name, other in results.items() if other_name.split(":")[0] == name.split(":")[0] and "failed" not in other), None)
        if "failed" in result:
            print(f"{name:<24}  failed: {result['failed'][:100]}")
            continue
        cells = [f"{result['ms']:.1f}", f"{result['ms'] / first['ms']:.3f}"]
        cells += [f"{result[field] / scale:.{digits}f}" if field in result else "-" for field, scale, digits in fields]
        print(f"{name:<24}" + "".join(f"{text:>9}" for text in cells) + f"  {same(result, first)}")


def run_cases(options):
    begin, results = time.monotonic(), {}
    log = open(options.log, "w", encoding="utf-8") if options.log else None
    show = (lambda line: print(line, file=log, flush=True)) if log else tell
    for name in find_cases(options):
        left = options.seconds - (time.monotonic() - begin)
        results[name] = run_case(options, name, results, show, left) if left > 5 else {"failed": "not begun, because --seconds were over"}
        result = results[name]
        print(f"{name}: {result.get('failed') or format(result['ms'], '.1f') + ' ms'} ({time.monotonic() - begin:.0f} s)", flush=True)
    print_cases(options, results)
    return int(any("failed" in result for result in results.values()))


def run_largest_batch(options):
    from headroom.sizes import parse_size
    begin, results, rows = time.monotonic(), {}, options.rows.split(",")
    for at, row in enumerate(rows):
        left = (options.seconds - (time.monotonic() - begin)) / (len(rows) - at)
        arguments = child_arguments(options, "gpt2", row) + ["--limits", parse_size(options.largest_batch), "--largest-batch", "here", "--unit", options.unit, "--timeout", left]
        results[row] = run_child(arguments, environment(options), left, show=lambda line: print(f"  {line}", flush=True))
    print(f"\nlargest batch of gpt2 with which two steps run in {options.largest_batch}, a multiple of {options.unit}\n{'row':<18}{'batch':>8}{'ms/step':>10}")
    for row, result in results.items():
        text = "  failed: " + result["failed"] if "failed" in result else f"{result['batch']:>8}{result['ms'] or 0:>10.1f}" + ("" if result["complete"] else "  or more: the time was over")
        print(f"{row:<18}{text}")
    return int(any("failed" in result for result in results.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--limits", help="default 40GB,26GB for gpt2")
    parser.add_argument("--fraction", help="limits as fractions of the peak, such as 0.75,0.6; default 0.6 for resnet and unet, and with --small")
    parser.add_argument("--rows", help=f"of {','.join(ROWS)}; default native,headroom,limits, with --largest-batch native,checkpoint,recomputing")
    parser.add_argument("--cases", help=f"all, or of {','.join(CASES)}, or others of that form")
    parser.add_argument("--seconds", type=float, default=3600, help="with --cases and --largest-batch: of all processes together")
    parser.add_argument("--log", metavar="FILE", help="with --cases: write the lines of all steps there, and only a line for each case to the terminal")
    parser.add_argument("--largest-batch", metavar="LIMIT", help="find the largest batch of GPT-2 that runs at a limit")
    parser.add_argument("--unit", type=int, default=2, help="with --largest-batch")
    parser.add_argument("--budget", type=float, default=0.5, help="activation memory budget of the row compile: 1 = keep everything, 0 = recompute everything")
    parser.add_argument("--steps", type=int, help="default 20, with --cases 12")
    parser.add_argument("--deterministic", action="store_true", help="deterministic algorithms; rows that differ are a failure")
    parser.add_argument("--install", action="append", default=[], metavar="KEY=VALUE", help="an argument of headroom.torch.install for the rows lms, limits and recomputing, such as policy=lru")
    parser.add_argument("--profile", metavar="FILE", help="record three more steps of each row with a limit")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the program")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for one row")
    parser.add_argument("--build", default=ROOT / "build-gpu", help="folder of libheadroom.so.0; HEADROOM_LIBRARY_DIR comes first")
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)  # in the process of a row
    parser.add_argument("--allocator", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rows = options.rows or ("native,checkpoint,recomputing" if options.largest_batch else "native,headroom,limits")
    options.steps = options.steps or (12 if options.cases else 20)
    if unknown := set(options.rows.split(",")) - set(ROWS):
        parser.error(f"--rows has no {', '.join(sorted(unknown))}")
    if wrong := [text for text in options.install if "=" not in text]:
        parser.error(f"--install needs KEY=VALUE, not {wrong[0]!r}")
    if options.steps < 2:
        parser.error("--steps is 2 at least")
    if options.row:
        return find_largest_batch(options) if options.largest_batch else measure(options)
    try:
        parse_limits(options)
        if options.largest_batch:
            return run_largest_batch(options)
        return run_cases(options) if options.cases else run_all(options)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
