"""HTML for notebooks: tables, texts and charts of memory over time. Nothing is loaded from elsewhere, and there are no scripts."""
import html

from .sizes import format_size

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 900, 220, 80, 16, 28


def _box(title, body):
    return f'<div class="headroom"><div style="font-weight:bold;margin:4px 0">{html.escape(title)}</div>{body}</div>'


def text(title, contents):
    """A text in lines, as it is."""
    return _box(title, f'<pre style="line-height:1.2;overflow-x:auto;white-space:pre">{html.escape(contents)}</pre>')


def value(name, number):
    """A statistic for people: "12.0 MiB" of bytes_in_use."""
    if not isinstance(number, int) or isinstance(number, bool):
        return str(number)
    if "bytes" in name or name.endswith("_size") or name in ("current", "peak", "largest_free"):
        return format_size(number) if number >= 0 else str(number)
    return f"{number:,}"


def table(title, rows):
    """Two columns: pairs of a name and a number."""
    cells = "".join(f'<tr><td style="text-align:left">{html.escape(str(name))}</td><td style="text-align:right">{html.escape(value(str(name), number))}</td></tr>'
                    for name, number in rows)
    return _box(title, f"<table>{cells}</table>")


def _path(points, x, y):
    return " ".join(f"{'M' if not at else 'L'}{x(when):.1f},{y(size):.1f}" for at, (when, size) in enumerate(points))


def chart(title, points, unit="s"):
    """An area chart of pairs (time, bytes)."""
    if not points:
        return _box(title, "<div>nothing was allocated</div>")
    first, last, most = points[0][0], points[-1][0], max(size for _, size in points) or 1

    def x(when):
        return LEFT + (WIDTH - LEFT - 10) * ((when - first) / (last - first) if last > first else 0)

    def y(size):
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - size / most)
    line = _path(points, x, y)
    area = f"{line} L{x(last):.1f},{y(0):.1f} L{x(first):.1f},{y(0):.1f} Z"
    grid = "".join(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y(most * part):.1f}" y2="{y(most * part):.1f}" stroke="currentColor" stroke-opacity="0.2"/>'
                   f'<text x="{LEFT - 6}" y="{y(most * part) + 4:.1f}" text-anchor="end" font-size="11" fill="currentColor">{format_size(int(most * part))}</text>'
                   for part in (0, 0.5, 1))
    times = "".join(f'<text x="{x(when):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}" font-size="11" fill="currentColor">{when:.3g} {html.escape(unit)}</text>'
                    for when, anchor in ((first, "start"), (last, "end")))
    return _box(title, f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" style="max-width:{WIDTH}px" role="img" aria-label="{html.escape(title)}">{grid}{times}'
                f'<path d="{area}" fill="#4c78a8" fill-opacity="0.35"/><path d="{line}" fill="none" stroke="#4c78a8" stroke-width="1.5"/></svg>')


def timeline(report):
    """A chart for each device and step of a report with the view "timeline"."""
    charts = []
    for each in report.data["reports"]:
        title = f"memory in use, {each['device']}" + (f", step {each['step']}" if each.get("step") is not None else "")
        rows = each["timeline"]["rows"]
        unit, scale = ("s", 1e6) if rows and rows[-1]["end_micros"] >= 1e6 else ("ms", 1e3)
        points = [(when / scale, row["peak_bytes"]) for row in rows for when in (row["begin_micros"], row["end_micros"])]
        charts.append(chart(title, points if any(size for _, size in points) else [], unit))
    return "".join(charts) or _box("memory in use", "<div>nothing was allocated</div>")
