"""Show the results of `ganherd bench fusion` as a table and as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ganherd.bench.throughput import two_digits
from ganherd.util.text import note_lines, size, text_table
from ganherd.viz.pictures import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ganherd.bench.throughput import Row, ThroughputResult

COLOURS = {
    "eager": "#9aa4b2", "processes": "#6b7280", "streams": "#e0a458", "compiled": "#c9772b", "grouped": "#8b5cf6",
    "loop": "#bfdbfe", "fused": "#60a5fa", "graph": "#3b82f6", "ours": "#1d4ed8",
}  # fmt: skip
_HEAD = (
    "members", "way", "member-steps/s", "images/s", "TFLOP/s", "GB/s", "of the ceiling", "× eager", "× processes", "peak memory",
)  # fmt: skip


def table(result: ThroughputResult) -> str:
    """Return a table for each case, followed by an explanation of the columns, as text."""
    lines = [f"{result.machine}, {result.precision}"]
    if result.rates:
        lines.append(
            f"a large matrix product: {_three(result.rates['matmul_flops_per_second'] / 1e12)} TFLOP/s; "
            f"a large copy: {result.rates['copy_bytes_per_second'] / 1e9:,.0f} GB/s"
        )
    for name, case in result.cases.items():
        lines += ["", f"{name}: {case['about']}", *_ceiling(case)]
        lines += _rows([row for row in result.rows if row["case"] == name], result.device == "cpu")
    lines += ["", *note_lines(result.notes)]
    if result.rates:
        lines.append(
            "FLOP: products and convolutions of the plain modules, forward and backward. GB: layer outputs and state, perfectly "
            "fused. Ceiling: both at the rates above, one after the other to perfectly overlapped."
        )
    return "\n".join(lines)


def _ceiling(case: Row) -> list[str]:
    """Return a line with the operations, bytes and possible rates of a member-step (a training step of one GAN).

    Return an empty list if the limits of the machine were not measured.
    """
    if "ceiling_member_steps_per_second" not in case:
        return []
    low, high = map(two_digits, case["ceiling_member_steps_per_second"])
    flops, num_bytes = case["flops_per_member_step"] / 1e9, case["least_bytes_per_member_step"] / 1e9
    return [
        f"a member-step: {_three(flops)} GFLOP, at least {num_bytes:.3g} GB; ceiling {low} to {high} member-steps/s"
    ]


def _rows(rows: Sequence[Row], with_threads: bool) -> list[str]:
    """Return the lines of a table, without empty columns; `with_threads` adds remarks about numbers of threads."""
    cells = [_cells(row) for row in rows]
    shown = [i for i in range(len(_HEAD)) if i < 2 or any(i < len(line) and line[i] for line in cells)]
    lines = text_table(
        [[line[i] for i in shown if i < len(line)] for line in (_HEAD, *cells)], right={0, *range(2, len(_HEAD))}
    )
    return [lines[0], *(line + _remarks(row, with_threads) for line, row in zip(lines[1:], rows, strict=True))]


def _cells(row: Row) -> list[str]:
    """Return the cells of a row for the columns `_HEAD`; only the first two if the measurement failed."""
    start = [str(row["members"]), row["way"]]
    if "error" in row:
        return start
    return [
        *start,
        two_digits(row["member_steps_per_second"]),
        two_digits(row["images_per_second"]),
        *_limits(row),
        _times(row["against_eager"]),
        _times(row["against_processes"]),
        size(row["peak_bytes"]),
    ]


def _limits(row: Row) -> list[str]:
    """Return the cells TFLOP/s, GB/s and share of the ceiling; three "" if the machine's limits were not measured."""
    if "tflops" not in row:
        return ["", "", ""]
    share = "–".join(f"{100 * part:.2g}" for part in row["share_of_ceiling"]) + " %"
    return [_three(row["tflops"]), _three(row["gigabytes_per_second"]), share]


def _remarks(row: Row, with_threads: bool) -> str:
    if "error" in row:
        return f"  no number: {row['error']}"
    how = [row["engine"]] if row["engine"] != row["way"] else []
    how += [f"{row['threads']} threads"] if with_threads and row["threads"] > 1 else []
    how += [row["note"]] if row["note"] else []
    return (f"  {', '.join(how)}" if how else "") + ("  <- chosen" if row["chosen"] and row["way"] != "ours" else "")


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.1f}"


def _three(value: float) -> str:
    """Return a number as text with three significant digits, and at least all digits before the point.

    >>> _three(0.01234), _three(1234.5)
    ('0.0123', '1,234')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw(result: ThroughputResult, path: Path) -> None:
    """Draw a panel for each case into a file: a dot for every way and number of members, and the ceiling as a band.

    The axis of rates is logarithmic.
    """
    from matplotlib.figure import Figure

    rows = [row for row in result.rows if "error" not in row]
    shown = [name for name in result.cases if any(row["case"] == name for row in rows)]
    columns = min(2, len(shown))
    figure = Figure(figsize=(7.6 * columns, 4.4 * -(-len(shown) // columns)), layout="constrained")
    ways = [way for way in COLOURS if any(row["way"] == way for row in rows)]
    handles: dict[str, Any] = {}
    for number, name in enumerate(shown):
        axes = figure.add_subplot(-(-len(shown) // columns), columns, number + 1)
        own = [row for row in rows if row["case"] == name]
        rates = [row["member_steps_per_second"] for row in own]
        if ceiling := result.cases[name].get("ceiling_member_steps_per_second"):
            axes.axhspan(*ceiling, color="#10b981", alpha=0.18, lw=0, label="ceiling: what the machine allows")
            rates += ceiling
        _dots(axes, own, ways)
        axes.set_ylim(min(rates) / 1.6, 1.6 * max(rates))
        axes.set_title(result.cases[name]["about"], color=INK, fontsize=9.5, loc="left")
        axes.set_ylabel("member-steps/s", color=INK)
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=4 * columns, frameon=False, fontsize=9
    )
    figure.suptitle(f"{result.machine}, {result.precision}", color=INK, fontsize=10)
    figure.savefig(path, dpi=150)


def _dots(axes: Axes, rows: Sequence[Row], ways: Sequence[str]) -> None:
    """Draw a dot labelled with its rate for each row; the axis is logarithmic, on which bars would have no meaning."""
    from matplotlib.ticker import LogLocator

    sizes = sorted({row["members"] for row in rows})
    places = {(row["members"], row["way"]): row["member_steps_per_second"] for row in rows}
    width = 0.84 / len(ways)
    for number, way in enumerate(ways):
        own = [(i, places[n, way]) for i, n in enumerate(sizes) if (n, way) in places]
        if not own:
            continue
        at = [i - 0.42 + width * (number + 0.5) for i, _ in own]
        axes.plot(at, [rate for _, rate in own], "o", ms=7, color=COLOURS[way], label=way)
        for x, (_, rate) in zip(at, own, strict=True):
            place: Any = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center"}
            axes.annotate(two_digits(rate), (x, rate), fontsize=8, color=INK, **place)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))  # so that even one decade has several labelled ticks
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set_xlim(-0.6, len(sizes) - 0.4)
    for edge in range(1, len(sizes)):
        axes.axvline(edge - 0.5, color=INK, lw=0.8, alpha=0.12)
    axes.set_xticks(range(len(sizes)), [f"N = {n}" for n in sizes])
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9, length=3)
    axes.grid(axis="y", color=INK, alpha=0.09, lw=0.8)
    axes.set_axisbelow(True)
