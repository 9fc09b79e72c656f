# A chart of two runs beside each other, one panel below the other: what clients got, and what it cost the node.
#
# The same scales on both sides. The background is left out and the colours are of middle brightness, so that the chart
# can be read on a white page as well as on a black one.
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

Columns = dict[str, list[float]]

BLUE: Final = "#3b8ede"
ORANGE: Final = "#e0812b"
GREEN: Final = "#3fa45b"
GREY: Final = "#85898f"
# (Any: which names there are is for each release of matplotlib to say.)
STYLE: Final[dict[Any, Any]] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "weir",  # the same chart for the same figures
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
LEGENDS: Final = {"protected": "with protection", "unprotected": "without protection"}


def draw(path: Path, title: str, runs: dict[str, Columns], latest_ms: float) -> None:
    """*runs*: the columns of overload.py by name."""
    kinds: list[tuple[str, Callable[[Axes, Columns], None]]] = [
        ("deliveries\nin thousands a second", goodput),
        ("publish to PUBACK,\np99 in ms", lambda axes, run: latency(axes, run, "p99_ms", latest_ms)),
        ("publish to subscriber,\np99 in ms", lambda axes, run: latency(axes, run, "delivery_p99_ms")),
        ("resident memory\nMiB", memory),
        ("overload level\n0 to 10", level),
        ("clients held back\non average", held),
    ]
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(len(kinds), len(runs), figsize=(10, 13), sharex=True, sharey="row", squeeze=False)
        figure.suptitle(title, fontsize=13)
        for row, (label, panel) in zip(grid, kinds, strict=True):
            for axes, run in zip(row, runs.values(), strict=True):
                panel(axes, run)
            row[0].set_ylabel(label)
            if row[0].get_yscale() == "linear":
                row[0].set_ylim(bottom=0)
            if row[0].get_legend_handles_labels()[1]:  # above the panel, where no line can be
                legend = row[0].legend(loc="lower left", bbox_to_anchor=(0, 0.98), ncols=5, borderpad=0)
                legend.set_in_layout(False)  # a long one is to reach over both columns
        for axes, name in zip(grid[0], runs, strict=True):
            axes.set_title(LEGENDS[name], color=GREY, fontsize=11, pad=20)
        for axes in grid[-1]:
            axes.set_xlabel("seconds")
        figure.align_ylabels(grid[:, 0])
        figure.tight_layout()
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


def goodput(axes: Axes, run: Columns) -> None:
    axes.plot(run["second"], [count / 1e3 for count in run["goodput"]], color=BLUE, label="delivered")
    axes.axhline(run["peak"][0] / 1e3, color=GREY, linestyle="--", linewidth=1.2, label="peak")


def latency(axes: Axes, run: Columns, key: str, latest_ms: float = 0.0) -> None:
    axes.plot(run["second"], drawable(run[f"modest_{key}"]), color=BLUE, label="modest clients")
    axes.plot(run["second"], drawable(run[f"aggressors_{key}"]), color=ORANGE, label="aggressors")
    if latest_ms:
        axes.axhline(latest_ms, color=GREY, linestyle="--", linewidth=1.2, label=f"{latest_ms:.0f} ms")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def drawable(latencies: list[float]) -> list[float]:
    """A gap for each second in which nothing was acknowledged, told as 0."""
    return [ms if ms > 0 else float("nan") for ms in latencies]


def memory(axes: Axes, run: Columns) -> None:
    axes.plot(run["second"], run["worker0_mib"], color=BLUE, label="worker 0")
    axes.plot(run["second"], run["worker1_mib"], color=GREEN, label="worker 1")
    axes.plot(run["second"], run["supervisor_mib"], color=ORANGE, linewidth=1, label="supervisor")
    axes.plot(run["second"], run["redis_mib"], color=ORANGE, linewidth=1, linestyle=":", label="redis")
    axes.plot(run["second"], run["budget_mib"], color=GREY, linestyle="--", linewidth=1.2, label="budget of a worker")


def level(axes: Axes, run: Columns) -> None:
    axes.step(run["second"], run["level"], color=BLUE, where="mid")
    axes.set_ylim(top=10.5)


def held(axes: Axes, run: Columns) -> None:
    axes.plot(run["second"], run["held"], color=BLUE)
