"""The results as a picture: applied events per second and p99 of the peers and Paidonce."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.report import OURS, PEER, TUNED_PEER, Line

COLOURS = {PEER: "#c4c4c4", TUNED_PEER: "#8a8a8a", OURS: "#0b7a75"}
INK = "#333333"
GROUP_WIDTH = 0.78
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "paidonce",  # The same results make the same file.
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def draw(path: Path, lines: Sequence[Line]) -> None:
    """Write the picture of those that speak HTTP as SVG."""
    lines = [line for line in lines if line.contender in COLOURS]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 4), layout="constrained")
        rates, delays = figure.subplots(1, 2)
        _bars(rates, lines, [line.figures.events_per_s for line in lines], "{:,.0f}")
        rates.set_title("Applied events per second", loc="left", fontweight="bold")
        _bars(delays, lines, [line.figures.p99_ms for line in lines], "{:,.0f}")
        delays.set_title("p99 in ms, logarithmic: lower is better", loc="left", fontweight="bold")
        delays.set_yscale("log")
        delays.set_ylim(bottom=1)
        handles, titles = rates.get_legend_handles_labels()
        figure.legend(handles, titles, loc="outside lower center", ncols=3, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _bars(axes: Axes, lines: Sequence[Line], values: Sequence[float], form: str) -> None:
    """Groups of bars, a group per number of connections, a bar per contender."""
    names = list(dict.fromkeys(line.contender for line in lines))
    groups = list(dict.fromkeys(line.connections for line in lines))
    width = GROUP_WIDTH / len(names)
    for name in names:
        own = [
            (line, value)
            for line, value in zip(lines, values, strict=True)
            if line.contender == name
        ]
        shift = (names.index(name) - (len(names) - 1) / 2) * width
        bars = axes.bar(
            [groups.index(line.connections) + shift for line, _ in own],
            [value for _, value in own],
            width * 0.92,
            color=COLOURS[name],
            label=own[0][0].title,
        )
        axes.bar_label(bars, [form.format(value) for _, value in own], padding=2, fontsize=8.5)
    _tidy(axes, groups)


def _tidy(axes: Axes, groups: Sequence[int]) -> None:
    axes.set_xticks(range(len(groups)), [f"{group} connections" for group in groups])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.yaxis.set_visible(False)
    axes.margins(y=0.15)
