#!/usr/bin/env python3
"""The HTML page in a real browser: Debian's Chromium opens it from the disk, a pointer zooms, hovers and sorts, and the displayed
numbers equal those that an independent reader (plain_trace.py) finds in the trace. The console must stay empty, and the page must
load nothing else.

    test_page_browser.py --screenshot FILE PAGE     only draws the picture of the README: PAGE is report.html of `headroom demo`
"""
import json
import math
import os
import shutil
import sys
import tempfile
from pathlib import Path
from subprocess import run

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import browser
from plain_trace import Ledger, Trace

sys.path.append(str(Path(__file__).resolve().parents[1] / "cli"))
import trace_file

command = Path(os.environ.get("HEADROOM_COMMAND", "build/headroom"))
program = command.parent / "tests/profile/test_page"
folder = Path(tempfile.mkdtemp(prefix="hr-page-"))
failures = 0


def check(what, got, wanted):
    global failures
    if got != wanted:
        failures += 1
        print(f"not ok - {what}: {got!r}, not {wanted!r}")


def make_page(kind, most=None):
    trace, page = folder / f"{kind}.hrt", folder / f"{kind}{most or ''}.html"
    if not trace.exists():
        run([program, "--trace", kind, trace], check=True)
    if most:
        run([program, "--html", trace, page, str(most)], check=True)
    else:
        run([command, "report", trace, "--html", page], check=True)
    return trace, page


def report(trace, view):
    """Output of `headroom report`, by device."""
    done = run([command, "report", trace, "--view", view, "--json", "--max-rows", "100000"], check=True, capture_output=True)
    return {one["device"]: one for one in json.loads(done.stdout)["reports"]}


def format_bytes(count):
    units = ["B", "KiB", "MiB", "GiB"]
    unit = 0
    while unit < 3 and count >= 1024 ** (unit + 1):
        unit += 1
    tenths = math.floor(count * 10 / 1024 ** unit + 0.5)  # a tie goes up, as in the browser
    return f"{tenths / 10:,.1f} {units[unit]}" if unit else f"{count:,} B"


def format_time(ns):
    unit, size = next((one for one in (("s", 1e9), ("ms", 1e6), ("\u00b5s", 1e3)) if ns >= one[1]), ("ns", 1))
    value = ns / size
    return f"{value:,.{0 if size == 1 else 3 if value < 10 else 2 if value < 100 else 1}f} {unit}"


def sum_by(blocks, key):
    sums = {}
    for block in blocks:
        sums[key(block)] = sums.get(key(block), 0) + block.bytes
    return sums


def table(page, tab):
    """The rows of a table: the value of a number, the text of anything else."""
    page.press(f"#tab-{tab}")
    return page.eval("[...document.querySelectorAll('#table tbody tr')].map(row => [...row.cells].map(cell => cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value)))")


def column(page, number):
    return page.eval(f"[...document.querySelectorAll('#table tbody tr')].map(row => row.cells[{number}]).map(cell => cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value))")


def choose_device(page, name):
    names = page.eval("[...document.querySelectorAll('#devices button')].map(button => button.textContent)")
    page.press(f"#devices button:nth-child({names.index(name) + 1})")


# ---- checks ----

def colour_by(page, by):
    page.eval(f"(s => {{ s.value = '{by}'; s.dispatchEvent(new Event('change')); }})(document.getElementById('group'))")
    page.settle()


def check_colours(page, ledger):
    """Tags define the colours at first, if there are any; sizes do on a device without names; until the user chooses."""
    colours = "Object.fromEntries([...document.querySelectorAll('#legend li')].map(one => [one.innerText, getComputedStyle(one.querySelector('span')).backgroundColor]))"
    for name, device in ledger.devices.items():
        if not device["blocks"]:
            continue
        choose_device(page, name)
        page.settle()
        tags = sum_by(device["blocks"], lambda block: block.tag or "(no tag)")
        named = any(block.op or block.scope or block.tag for block in device["blocks"])
        wanted = "tag" if len(set(tags) - {"(no tag)"}) > 1 else "op" if named else "size"
        check(f"{name}: colours at first", page.eval("[headroom.state.by, document.getElementById('group').value]"), [wanted] * 2)
        legend = page.eval(colours)
        check(f"{name}: nothing was summed up", "(brief and small)" in legend, False)
        check(f"{name}: a colour for each", len(set(legend.values())), len(legend))
        if wanted != "tag":
            continue
        check(f"{name}: tags", set(legend), set(tags))
        check(f"{name}: the runtime's tags", {"weights", "gradients", "activations", "optimizer"} <= set(legend), True)
        check(f"{name}: weights are blue", legend["weights"], "rgb(63, 116, 181)")
        at_peak = sum_by(device["peak_live"], lambda block: block.tag or "(no tag)")
        parts = page.eval("Object.fromEntries([...document.querySelectorAll('#breakdown tr')].map(row => [row.dataset.name, Number(row.dataset.bytes)]))")
        if device["peak_is_clear"]:
            check(f"{name}: tags at the peak", parts, at_peak)
        if name.endswith("host memory"):
            continue  # no op runs there
        check(f"{name}: most ops have a colour", page.eval("(o => { let n = 0; for (let i = 0; i < o.count; i++) n += headroom.groupOfOp(i) >= 0; return n > o.count / 2; })(headroom.capture.ops)"), True)
    check("both ways to begin were seen", {name for name, device in ledger.devices.items() if device["blocks"]} >= {"GPU:0", "CPU:0"}, True)
    choose_device(page, "GPU:0")
    check("GPU:0 begins with tags", page.eval("headroom.state.by"), "tag")
    choose_device(page, "CPU:0")
    check("CPU:0, where nothing has a name, begins with sizes", page.eval("headroom.state.by"), "size")
    colour_by(page, "size")
    choose_device(page, "GPU:0")
    check("GPU:0 is not coloured by size", page.eval("headroom.state.by"), "tag")
    colour_by(page, "scope")
    choose_device(page, "GPU:0")
    check("what was chosen stays", page.eval("[headroom.state.by, document.getElementById('group').value]"), ["scope"] * 2)
    colour_by(page, "op")


def check_device(page, name, ledger, by_step=True):
    device = ledger.devices[name]
    choose_device(page, name)
    page.press("#tab-alive")
    check(f"{name}: peak", page.eval("Number(document.getElementById('tiles').dataset.peak)"), device["peak"])
    check(f"{name}: peak, as text", page.eval("document.querySelector('#tiles .first dd').firstChild.textContent"), format_bytes(device["peak"]))
    parts = page.eval("[...document.querySelectorAll('#breakdown tr')].map(row => [row.dataset.name, Number(row.dataset.bytes)])")
    check(f"{name}: the peak adds up", sum(part for _, part in parts), device["peak"])
    if not device["peak_is_clear"]:
        return
    by_op = sum_by(device["peak_live"], lambda block: block.op or "(no op)")
    for op, part in parts:
        if op != "all others":
            check(f"{name}: {op} at the peak", part, by_op.get(op))
    largest = sorted((block.bytes for block in device["peak_live"]), reverse=True)[:100]
    check(f"{name}: live at the peak", [row[4] for row in table(page, "alive")], largest)
    ops = {row[0]: row for row in table(page, "ops")}
    for op, total in sum_by(device["blocks"], lambda block: block.op or "(no op)").items():
        row = ops[op]
        check(f"{name}: op {op}", [row[3], row[4], row[6]], [sum((b.op or "(no op)") == op for b in device["blocks"]), total, by_op.get(op, 0)])
    for op, (runs, ns) in ledger.ops.items():
        check(f"{name}: runs of {op}", ops[op][1:3], [runs, ns])
    if by_step and ledger.steps:
        rows = table(page, "steps")
        wanted = [[step["number"], step["begin"], step["end"] - step["begin"], *(step["devices"][id(device)][key] for key in ("peak", "allocations", "bytes", "left"))] for step in ledger.steps]
        check(f"{name}: steps", rows, sorted(wanted, key=lambda row: row[0]))


def check_limits(page, trace):
    """The second training has an allocator with a limit of its own."""
    check("the trace has its limit", 64 << 20 in Trace(trace).limits.values(), True)
    choose_device(page, "GPU:0")
    steps = page.eval("headroom.model().limits.map(({ from, to, limit }) => [from, to, limit])")
    check("limits", [limit for _, _, limit in steps], [160 << 20, 64 << 20, 160 << 20])
    check("limits follow each other", [before[1] == after[0] for before, after in zip(steps, steps[1:])], [True, True])
    check("from the beginning to the end", [steps[0][0], steps[-1][1]], [0, page.eval("headroom.capture.end")])
    shown = page.eval("headroom.model().limitAt(headroom.model().device.peakTime)")
    check("the limit at the peak", shown, report(trace, "peak")["GPU:0"]["peak"]["limit_bytes"])


def check_json(page, trace):
    """The views of the terminal and the HTML page agree."""
    peaks, ops, steps = (report(trace, view) for view in ("peak", "op", "steps"))
    for name in peaks:
        choose_device(page, name)
        check(f"json, {name}: peak", page.eval("headroom.model().peak"), peaks[name]["peak"]["peak_bytes"])
        shown = {row[0]: row for row in table(page, "ops")}
        for row in peaks[name]["by_op"]["rows"]:
            check(f"json, {name}: {row['op']} at the peak", shown[row["op"] or "(no op)"][6], row["bytes"])
        for row in ops[name]["op"]["rows"]:
            check(f"json, {name}: {row['name']}", shown[row["name"] or "(no op)"][3:5], [row["allocations"], row["bytes"]])
        scopes = {row[0]: row for row in table(page, "scopes")}
        for row in peaks[name]["by_scope"]["rows"]:
            check(f"json, {name}: {row['scope']} at the peak", scopes[row["scope"] or "(no scope)"][4], row["bytes"])
        rows = sorted(([row["step"], row["peak_bytes"], row["allocations"], row["bytes"], row["residual_bytes"]] for row in steps[name]["steps"]["rows"]), key=lambda row: row[0])
        check(f"json, {name}: steps", [[row[0], *row[3:]] for row in table(page, "steps")], rows)


def check_map(page):
    held, used, free, largest = page.eval("['held', 'used', 'free', 'largest'].map(key => Number(document.getElementById('map').dataset[key]))")
    check("map: what is in use is the peak", used, page.eval("headroom.model().peak"))
    check("map: used and free are all there is", used + free, held)
    check("map: a hole is a hole", largest <= free, True)


def check_zoom(page, ledger, name):
    device = ledger.devices[name]
    page.key("0")
    check("all of it", page.eval("[headroom.state.t0, headroom.state.t1]"), [0, ledger.end])
    x, y, width, height = page.box("#chart")
    for part in (0.2, 0.35, 0.5):
        page.wheel(x + width * part, y + height / 2, -300)
        t0, t1 = page.eval("[headroom.state.t0, headroom.state.t1]")
        most = format_bytes(Ledger.most_between(device, t0, t1))
        said = page.eval("document.getElementById('chart').getAttribute('aria-label')")
        check(f"highest from {t0} to {t1}", said.split("at most ")[1], most)
    check("zoomed in", t1 - t0 < ledger.end / 2, True)
    page.drag(x + width * 0.5, y + height / 2, x + width * 0.3, y + height / 2)
    moved = page.eval("headroom.state.t0") - t0
    check("panned by a fifth", abs(moved - 0.2 * (t1 - t0)) < 0.02 * (t1 - t0), True)
    page.drag(x + width * 0.25, y + height / 2, x + width * 0.75, y + height / 2, modifiers=8)
    check("half of it chosen", abs(page.eval("headroom.state.t1 - headroom.state.t0") / (t1 - t0) - 0.5) < 0.02, True)
    page.press("#zoom-all")
    check("all again", page.eval("[headroom.state.t0, headroom.state.t1]"), [0, ledger.end])


def check_hover(page, ledger, name):
    """Hovers over some of the drawn allocations: the tooltip agrees with the trace."""
    blocks = {(block.begin, block.address): block for block in ledger.devices[name]["blocks"]}
    x, y, width, height = page.box("#chart")
    hovered = 0
    for across in range(1, 12):
        for up in (0.1, 0.3, 0.5, 0.7):
            spot = page.eval(f"""(() => {{ const chart = headroom.chart(), {{ capture }} = headroom, c = Math.floor(chart.w * {across} / 12), r = Math.floor(chart.h * (1 - {up}));
                const id = chart.owner[r * chart.w + c];
                return id < 0 ? null : [capture.begin[id], capture.address[id], (c + 0.5) / chart.w, (r + 0.5) / chart.h]; }})()""")
            if not spot:
                continue
            block = blocks[int(spot[0]), int(spot[1])]
            page.mouse("mouseMoved", x + width * spot[2], y + height * spot[3])
            page.settle()
            text = page.eval("document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText")
            lifetime = format_time((ledger.end if block.end is None else block.end) - block.begin)
            for part in (block.op, block.tensor, block.scope, format_bytes(block.bytes), lifetime, hex(block.address)):
                check(f"tip of {block.op} at {hex(block.address)} has {part!r}", part in text, True)
            hovered += 1
    check("some were hovered", hovered > 5, True)
    page.mouse("mouseMoved", 2, 2)
    page.settle()
    check("the tip goes away", page.eval("document.getElementById('tip').hidden"), True)


def check_heights(page):
    """The drawn height equals the bytes, in every column: the total, and some allocations."""
    wrong = page.eval("""(() => { const { owner, moments, w, h, top } = headroom.chart(), model = headroom.model(), { bytes } = headroom.capture, wrong = [];
        const pixels = document.getElementById('chart').getContext('2d').getImageData(0, 0, w, h).data;
        for (let c = 0; c < w; c++) {
            const rows = new Map();
            let all = 0;
            for (let y = 0; y < h; y++) {
                const id = owner[y * w + c];
                if (id === -1) continue;
                all++;
                rows.set(id, (rows.get(id) || 0) + 1);
                if (pixels[4 * (y * w + c) + 3] !== 255) wrong.push(['not painted', c, y]);
            }
            if (Math.abs(all - model.inUse(moments[c]) / top * h) > 2) wrong.push(['column', c, all, model.inUse(moments[c]) / top * h]);
            for (const [id, count] of rows) if (id >= 0 && Math.abs(count - bytes[id] / top * h) > 1.5) wrong.push(['allocation', id, count, bytes[id] / top * h]);
        }
        return wrong.slice(0, 5); })()""")
    check("heights in the chart", wrong, [])


def check_search(page, ledger, name):
    device = ledger.devices[name]
    page.key("/")
    check("the search has the focus", page.eval("document.activeElement.id"), "search")
    page.type("matmul block1")
    fits = lambda block: "matmul" in block.op and "block1" in block.scope
    wanted = [b for b in device["blocks"] if fits(b)]
    check("found", page.eval("(d => [Number(d.count), Number(d.bytes), Number(d.atPeak)])(document.getElementById('found').dataset)"),
          [len(wanted), sum(b.bytes for b in wanted), sum(b.bytes for b in device["peak_live"] if fits(b))])
    check("the tables follow", len(table(page, "tensors")), min(100, len(wanted)))
    page.press("#search")
    page.key("Escape")
    check("the search ends", page.eval("[headroom.state.search, document.getElementById('search').value]"), ["", ""])


def check_sort(page, ledger, name):
    device = ledger.devices[name]
    page.press("#tab-tensors")
    by_size = sorted((block.bytes for block in device["blocks"]), reverse=True)
    check("largest first", column(page, 4), by_size[:100])
    page.press("#table th:nth-child(5) button")
    check("then smallest first", column(page, 4), by_size[::-1][:100])
    check("and it says so", page.eval("document.querySelector('#table th:nth-child(5)').getAttribute('aria-sort')"), "ascending")
    page.press("#table th:nth-child(7) button")
    check("latest first", column(page, 6), sorted((block.begin for block in device["blocks"]), reverse=True)[:100])
    page.press("#table th:nth-child(8) button")
    lives = sorted(((ledger.end if b.end is None else b.end) - b.begin for b in device["blocks"]), reverse=True)
    check("longest first", column(page, 7), lives[:100])
    page.press("#table th:nth-child(1) button")
    names = column(page, 0)
    check("by name", names, sorted(names))
    page.press("#table .more")
    check("more of them", len(column(page, 0)), min(500, len(device["blocks"])))


def check_keys(page):
    page.eval("document.getElementById('chart').focus()")
    span = "headroom.state.t1 - headroom.state.t0"
    page.key("0")
    whole = page.eval(span)
    for _ in range(3):
        page.key("ArrowUp")
    check("zoomed by keys", abs(page.eval(span) / whole - 0.6 ** 3) < 1e-6, True)
    before = page.eval("headroom.state.t0")
    page.key("ArrowRight")
    check("panned by keys", page.eval("headroom.state.t0") > before, True)
    page.key("p")
    check("the peak is in view", page.eval("(m => { const t = m.times[m.peakChange]; return headroom.state.t0 <= t && t <= headroom.state.t1; })(headroom.model())"), True)
    page.key(".")
    check("the change after the peak", page.eval("headroom.state.moment - headroom.model().peakChange"), 1)
    check("which is said", page.eval("document.getElementById('said').textContent !== ''"), True)
    page.key("]")
    check("a step fills the view", page.eval("headroom.capture.steps.some(step => Math.abs(step.begin - headroom.state.t0) < 1)"), True)
    page.key("?")
    check("help", page.eval("document.getElementById('help').open"), True)
    page.key("Escape")
    check("no help", page.eval("document.getElementById('help').open"), False)
    page.eval("document.getElementById('chart').focus()")
    device = page.eval("headroom.state.device")
    page.key("d")
    check("another device", page.eval("headroom.state.device") != device, True)
    unnamed = page.eval("""[...document.querySelectorAll('button, input, select, canvas:not([aria-hidden])')].filter(e => !e.hidden && !e.closest('[aria-hidden]') && !(e.textContent.trim() || e.getAttribute('aria-label') || e.closest('label'))).length""")
    check("everything has a name", unnamed, 0)


def check_quiet(page, path, what):
    page.settle()
    check(f"{what}: console", page.console, [])
    check(f"{what}: asked for", [url for url in page.requests if not url.startswith("data:")], ["file://" + str(path)])


def check_train(page):
    trace, path = make_page("train")
    ledger = Ledger(Trace(trace))
    page.open(path)
    check_colours(page, ledger)
    for name in ledger.devices:
        if ledger.devices[name]["blocks"]:
            check_device(page, name, ledger)
    check_json(page, trace)
    check_limits(page, trace)
    choose_device(page, "GPU:0")
    check_map(page)
    check("ops, short and long, add up", page.eval("headroom.busyOps(0, Infinity)"), sum(ns for _, ns in ledger.ops.values()))
    moves = page.eval("headroom.capture.moves.map(device => [device.out.bytes, device.in.bytes])")
    check("moved", moves, [[device["out"], device["in"]] for device in ledger.devices.values()])
    check("LMS moved something", moves[0][0] > 0, True)
    check_zoom(page, ledger, "GPU:0")
    check_heights(page)
    check_hover(page, ledger, "GPU:0")
    check_search(page, ledger, "GPU:0")
    check_sort(page, ledger, "GPU:0")
    check_keys(page)
    for by in ("scope", "tag", "op"):
        colour_by(page, by)
    light = page.eval("getComputedStyle(document.documentElement).backgroundColor")
    page.dark(True)
    page.settle()
    check("dark is another theme", page.eval("getComputedStyle(document.documentElement).backgroundColor") != light, True)
    page.dark(False)
    check_quiet(page, path, "train")
    print("ok - the page shows what the trace holds, by pointer and by keys")

    for most in (50, 500):
        _, path = make_page("train", most)
        page.open(path)
        for name in ledger.devices:
            if ledger.devices[name]["blocks"]:
                choose_device(page, name)
                check(f"{name}: peak with {most} allocations", page.eval("headroom.model().peak"), ledger.devices[name]["peak"])
                check(f"{name}: what is summed up is in the legend, where something is", "(brief and small)" in page.eval("document.getElementById('legend').innerText"), page.eval("headroom.capture.sites.some((site, i) => site.rest && site.device === headroom.state.device && headroom.capture.site.includes(i))"))
                count = page.eval("[...document.querySelectorAll('#tiles div')].find(tile => tile.innerText.startsWith('Allocations')).querySelector('dd').textContent")
                check(f"{name}: allocations with {most} shown", count, f"{len(ledger.devices[name]['blocks']):,}")
                check(f"{name}: never less than nothing", page.eval("headroom.model().total.every(total => total >= 0)"), True)
                check(f"{name}: steps with {most} allocations", [row[3:] for row in table(page, "steps")],
                      [list(step["devices"][id(ledger.devices[name])].values()) for step in sorted(ledger.steps, key=lambda step: step["number"])])
        check_quiet(page, path, f"at most {most}")
    print("ok - with less detail, peaks and steps are the same")


def check_hostile(page):
    trace, path = make_page("hostile")
    page.open(path)
    ledger = Ledger(Trace(trace))
    title = page.eval("document.title")
    for name in ("GPU:0", "CPU:0"):
        check(f"hostile: peak of {name}", (choose_device(page, name), page.eval("headroom.model().peak"))[1], ledger.devices[name]["peak"])
    choose_device(page, "GPU:0")
    shown = [row[0] for row in table(page, "tensors")]
    check("markup is shown as text", "</script><script>document.title='owned'</script>" in shown, True)
    check("names can be searched for", (page.press("#search"), page.type("<!--"), page.eval("Number(document.getElementById('found').dataset.count)"))[2], 1)
    x, y, width, height = page.box("#chart")
    for part in range(20):
        page.mouse("mouseMoved", x + width * (0.9 + part / 200), y + height * 0.8)
    check("nothing ran", page.eval("document.title"), title)
    check("nothing was made", page.eval("document.querySelectorAll('img, iframe, script[src]').length"), 0)
    check_quiet(page, path, "hostile")
    print("ok - names that want to be script are names")


def check_million(page):
    _, path = make_page("million")
    page.open(path)
    peak = page.eval("headroom.model().peak")
    x, y, width, height = page.box("#chart")
    times = []
    for delta in [-120] * 20 + [120] * 10:
        page.wheel(x + width * 0.6, y + height / 2, delta)
        times.append(page.eval("headroom.state.drawMs"))
    times.sort()
    check_quiet(page, path, "million")
    print(f"ok - a million events, page of {path.stat().st_size / 1e6:.1f} MB: a zoom takes {times[len(times) // 2]:.0f} ms (median), {times[-1]:.0f} ms (worst of {len(times)}); wanted: 100")
    _, path = make_page("million", 20000)
    page.open(path)
    check("a million: the peak with 20,000 allocations", page.eval("headroom.model().peak"), peak)
    check("a million: fewer allocations", page.eval("headroom.capture.bytes.length") < 60000, True)
    check_quiet(page, path, "million, less detail")


def check_crowded(page):
    """More than an HTML page holds: numbers are those of the whole trace, the latest parts are not left out, and the page says so."""
    trace, path = make_page("crowded")
    page.open(path)
    choose_device(page, "GPU:0")
    summary = report(trace, "timeline")["GPU:0"]
    tiles = page.eval("Object.fromEntries([...document.querySelectorAll('#tiles div')].map(tile => [tile.querySelector('dt').textContent, tile.querySelector('dd').textContent]))")
    check("crowded: refused", tiles["Refused"], "12,000requests")
    check("crowded: steps", tiles["Duration"].endswith("60,000 steps"), True)
    check("crowded: refused, as the command says", sum(row["refused"] for row in summary["timeline"]["rows"]), 12000)
    kept = page.eval("(c => [c.refusals.length, c.regions.length, c.steps.length, c.moveRecords <= 400000])(headroom.capture)")
    check("crowded: what is in the page", kept, [10000, 200000, 50000, True])
    check("crowded: refusals after the peak", page.eval("headroom.capture.refusals.some(one => one.time > headroom.model().device.peakTime)"), True)
    check("crowded: the step of the peak", "step 59,999" in tiles["Peak"], True)
    moved = page.eval("(m => [m.out.count, m.out.bytes, m.in.count, m.in.bytes])(headroom.capture.moves[headroom.state.device])")
    check("crowded: moved", moved, [250000, 250000 * 4096, 250000, 250000 * 4096])
    check("crowded: from all over the time", page.eval("Math.abs(headroom.capture.steps.filter(step => step.number <= 30000).length - 25000) <= 1"), True)
    held, used = page.eval("['held', 'used'].map(key => Number(document.getElementById('map').dataset[key]))")
    check("crowded: held at the peak, and the block outside", [held, used], [4 << 20 | 4096, 1 << 20 | 4096])
    notes = page.eval("document.getElementById('notes').innerText")
    for part in ("10,000 of 12,000 refused", "200,000 of 210,001 regions", "50,000 of 60,000 steps", "500,000 moves"):
        check(f"crowded: the page says {part!r}", part in notes, True)
    check("crowded: the map does not blame the trace", page.eval("document.getElementById('map-note').textContent"), "")
    check_quiet(page, path, "crowded")
    print("ok - more than a page takes is chosen from everywhere, and said")


def set_width(page, width, height=1000, scale=1):
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)
    page.settle()


def page_of(name, trace, **header):
    """The HTML page of a trace that is written here."""
    file, path = folder / f"{name}.hrt", folder / f"{name}.html"
    file.write_bytes(trace.bytes(**header))
    run([command, "report", file, "--html", path], check=True)
    return path


def check_stacks(page):
    """The tip of an allocation has its call stack, as text."""
    trace = trace_file.Trace()
    stack = (("forward", "model<b>.py", 12),) + tuple((f"outer{i}", "train.py", i) for i in range(20))
    trace.event(trace_file.ALLOC, 0, address=1 << 30, bytes=4 << 20, stack=stack)
    trace.event(trace_file.FREE, 100000, address=1 << 30)
    path = page_of("stacks", trace)
    page.open(path)
    x, y, width, height = page.box("#chart")
    page.mouse("mouseMoved", x + width * 0.5, y + height * 0.8)
    check("stack: the title is the innermost call", page.eval("document.querySelector('#tip b').textContent"), "forward (model<b>.py:12)")
    text = page.eval("document.getElementById('tip').textContent")
    for part in ("forward (model<b>.py:12)outer0 (train.py)outer1 (train.py:1)", "outer10 (train.py:10)and 9 more"):
        check(f"stack: {part}", part in text, True)
    check_quiet(page, path, "stacks")
    print("ok - the tip has the call stack")


def check_tip_follows_keys(page):
    """Op a has memory in the first half of the time, op b in the second; keys move the chart under the pointer, which stays."""
    trace = trace_file.Trace()
    trace.event(trace_file.ALLOC, 0, address=1 << 30, bytes=4 << 20, op="a")
    trace.event(trace_file.FREE, 50000, address=1 << 30)
    trace.event(trace_file.ALLOC, 50000, address=2 << 30, bytes=4 << 20, op="b")
    trace.event(trace_file.FREE, 100000, address=2 << 30)
    path = page_of("tip", trace)
    page.open(path)
    x, y, width, height = page.box("#chart")
    page.mouse("mouseMoved", x + width * 0.55, y + height * 0.8)
    title = "document.querySelector('#tip b').textContent"
    check("tip: what is under the pointer", page.eval(title), "b")
    page.eval("document.getElementById('chart').focus()")
    page.key("ArrowUp")    # from 20% to 80%: the pointer is at 53%
    check("tip: still that", page.eval(title), "b")
    page.key("ArrowLeft")  # from 8% to 68%: the pointer is at 41%
    check("tip: what is there now", page.eval(title), "a")
    check_quiet(page, path, "tip")
    print("ok - the tip tells of what is under the pointer after keys too")


def check_what_numbers_are_of(page):
    """Limits, fragmentation and pauses of a recording with known numbers: 16 MiB are held, blocks are at 0 and at 8 MiB, a second
    allocator has a limit."""
    trace, base = trace_file.Trace(), 1 << 30
    name, kind = b"limited", b"bfc"
    trace.define(trace_file.ALLOCATOR, trace_file.varint(9) + trace_file.varint(0) + trace_file.varint(len(name)) + name + kind)
    trace.define(37, trace_file.varint(9) + trace_file.varint(2 << 20))
    trace.event(trace_file.MAP, 0, address=base, bytes=16 << 20)
    trace.event(trace_file.ALLOC, 1000, address=base, bytes=4 << 20, op="a")
    trace.event(trace_file.ALLOC, 1001, address=base + (8 << 20), bytes=4 << 20, op="a")
    trace.event(trace_file.FREE, 40000, address=base)
    trace.event(trace_file.FREE, 40001, address=base + (8 << 20))
    trace.event(trace_file.ALLOC, 50000, allocator=9, address=2 << 30, bytes=1 << 20, op="a")
    trace.event(trace_file.OP_BEGIN, 50001, op="a")
    trace.event(trace_file.OP_END, 60000, op="a")
    trace.event(trace_file.MARK, 90000, bytes=20000, tag="headroom.lms.plan")
    trace.event(trace_file.FREE, 100000, allocator=9, address=2 << 30)
    path = page_of("numbers", trace)
    page.open(path)
    tiles = page.eval("[...document.querySelectorAll('#tiles div')].map(tile => [tile.querySelector('dt').textContent, tile.querySelector('dd').textContent])")
    check("tiles: the device's memory", ["Device memory", "1.0 GiB0.8% at the peak"] in tiles, True)
    check("tiles: the allocator's limit", ["Limit", '2.0 MiBof "limited"'] in tiles, True)
    lead = page.eval("document.getElementById('map-lead').textContent")
    check("fragmentation says of what", lead, "16.0 MiB held in 1 piece, 8.0 MiB free, 4.0 MiB of it in the largest hole. "
          "Fragmentation 50.0% of what is free: 4.0 MiB are in other holes, 25.0% of what is held.")
    check("pauses", page.eval("headroom.capture.pauses"), [{"begin": 70000, "length": 20000}])
    x, y, width, height = page.box("#ops")
    page.mouse("mouseMoved", x + width * 0.8, y + height / 2)
    check("a pause has a label", page.eval("document.getElementById('tip').textContent"), "Pause: Large Model Support makes a planlength20.00 \u00b5sfrom70.00 \u00b5s")
    check_quiet(page, path, "numbers")
    print("ok - limits, fragmentation and pauses say what they are of")


def check_notes(page):
    """Gaps of a recording are stated at the top: it ended at its size limit, or events were lost."""
    trace = trace_file.Trace()
    trace.event(trace_file.ALLOC, 0, address=1 << 30, bytes=4 << 20, op="a")
    limit = "The recording ended when its file reached its size limit; later events are missing."
    for name, header, notes in (("whole", {}, []), ("limited", {"limited": True}, [limit]), ("lost", {"lost": 1}, ["1 event could not be written while recording."])):
        path = page_of(name, trace, **header)
        page.open(path)
        check(f"{name}: notes", page.eval("[...document.querySelectorAll('#notes p')].map(note => note.textContent)"), notes)
        check_quiet(page, path, name)
    print("ok - the page says what is not in the recording")


def check_nameless(page):
    """Without names, blocks are grouped by size; the sums are those of all blocks."""
    trace, now = trace_file.Trace(), 0
    sizes = [1 << 20, 4 << 20, 4 << 20, 16 << 20]
    for i, size in enumerate(sizes):
        now += 1000
        trace.event(trace_file.ALLOC, now, address=(i + 1) << 30, bytes=size)
    trace.event(trace_file.FREE, now + 1000, address=1 << 30)
    path = page_of("nameless", trace)
    page.open(path)
    groups = page.eval("headroom.model().groups.map(({ name, colour }) => [name, colour])")
    check("nameless: groups", sorted(name for name, _ in groups), ["1.0 MiB to 2.0 MiB", "16.0 MiB to 32.0 MiB", "4.0 MiB to 8.0 MiB"])
    check("nameless: colours", len({colour for _, colour in groups} - {-1}), 3)
    check("nameless: coloured by", page.eval("document.getElementById('group').value"), "size")
    check("nameless: sums", table(page, "ops"), [["(no op)", 0, 0, 4, sum(sizes), 16 << 20, sum(sizes), sum(sizes) - (1 << 20)]])
    check_quiet(page, path, "nameless")
    print("ok - without names, sizes have colours")


def check_widths(page):
    _, path = make_page("train")
    page.open(path)
    for width in (1400, 1100, 1000, 900, 700, 500):
        set_width(page, width)
        check(f"{width} wide: no wider than the window", page.eval("document.documentElement.scrollWidth"), width)
        check(f"{width} wide: numbers fit their tiles", page.eval("[...document.querySelectorAll('#tiles dd')].filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)"), [])
    set_width(page, 1440)
    check_quiet(page, path, "widths")
    print("ok - it fits windows of any width")


def take_screenshot(page, path, html):
    """The picture of docs/profile.md: at a higher resolution than a screen, with the tooltip of an allocation."""
    set_width(page, 1200, 1226, 1.5)
    page.open(html)
    page.mouse("mouseMoved", 1, 1)
    page.eval("scrollTo(0, 0)")
    page.settle()
    x, y, width, height = page.eval("(b => [b.left, b.top, b.width, b.height])(document.getElementById('chart').getBoundingClientRect())")
    # The activation with the largest area, in the part with Large Model Support.
    across, down = page.eval("""(() => { const { owner, w, h } = headroom.chart(), { capture } = headroom, spots = new Map();
        for (let y = 0; y < h; y++) for (let x = Math.floor(w * 0.6); x < w * 0.75; x++) {
            const id = owner[y * w + x];
            if (id >= 0 && capture.sites[capture.site[id]].tag === 'activations') spots.set(id, [...spots.get(id) || [], [x, y]]);
        }
        const [x, y] = [...spots.values()].sort((a, b) => b.length - a.length).map(all => all[Math.floor(all.length / 2)])[0];
        return [(x + 0.5) / w, (y + 0.5) / h]; })()""")
    page.mouse("mouseMoved", x + width * across, y + height * down)
    page.settle()
    page.screenshot(path, page.eval("Math.floor(document.querySelector('.pair').getBoundingClientRect().bottom)"))


def main():
    if not browser.find():
        print("skipped: no Chromium here; tools/setup.sh test installs it where there is apt-get")
        return 0
    page = browser.Browser()
    try:
        if sys.argv[1:2] == ["--screenshot"]:
            take_screenshot(page, sys.argv[2], sys.argv[3])
            return 0
        check_train(page)
        check_hostile(page)
        check_million(page)
        check_crowded(page)
        check_stacks(page)
        check_tip_follows_keys(page)
        check_what_numbers_are_of(page)
        check_notes(page)
        check_nameless(page)
        check_widths(page)
    finally:
        page.close()
        shutil.rmtree(folder, ignore_errors=True)
    print("failed" if failures else "all ok")
    return 1 if failures else 0


sys.exit(main())
