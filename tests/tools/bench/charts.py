# python -m tests.tools.bench.charts: measures the overloads of overload.py and draws them. `make charts` runs it.
#
# What was measured stays beside the charts: a CSV for each run that is drawn, and a JSON for what holds for all of a
# scene.
# Charts and their page come of these files alone, so --draw makes them again without measuring.
import argparse
import csv
import json
import os
from pathlib import Path
from statistics import mean
from typing import Any, Final

from tests.tools.bench import overload, panels
from tests.tools.bench.contenders import open_bench
from tests.tools.bench.overload import AGGRESSORS, MODEST, SCENES, WARM_UP, Run, Scene
from tests.tools.bench.table import markdown, number

FOLDER: Final = Path(__file__).resolve().parents[3] / "deploy" / "charts"
MOST_OF_BUDGET: Final = 1.0
LEAST_OF_PEAK: Final = 0.95
LATEST_MS: Final = 250.0  # of the modest, p99

TITLES: Final = {
    "processor": "Bound by the processor",
    "slow-worker": "Bound by a worker that is slow",
}
STORIES: Final = {
    "processor": "Every publish of the aggressors goes to all subscribers, at both workers; all cores are busy.",
    "slow-worker": "All publishers are at worker 0 and all subscribers at worker 1, which is stopped for four fifths\n"
    "of the time, 20 ms at once as a rule: what it has no time for waits in worker 0.",
}

PAGE: Final = """\
# Sustained overload, with protection and without

Made by `make charts` from what it measured: {weir}, two workers, {cores} cores that they share with their clients,
{seconds} s for each run, {rounds} runs with protection and as many without, in turn. Drawn is the round whose goodput
with protection is in the middle, and beside each chart is what it was drawn from.

{aggressors} aggressors offer three times what the workers can do, at QoS 1, each publish to {subscribers} subscribers.
{modest} modest clients publish {modest_rate} messages a second in all, far below anybody's share at any level.
A latency counts from when a publish was due and its client had room for it: what it waited in the kernel is in it.
The lines show those that were answered, by the second; the tables also count what was not answered by the end, as old
as it was then.
The budget of a worker is what it held at the start and what its settings allow to wait in it
({budgets}).
Without protection (`overload.enabled = false`) there are no levels and no credits; quanta, and the byte limits of
gates, buffers and queues remain. The level is then measured all the same, and clients are held back by gates alone.
"""

SECTION: Final = """\
## {title}

{story}
At most {peaks} deliveries a second:
the best of closed loops of the same clients and of a flood without protection, as the mean of what it was before the
run and after it. Offered: {offered} publishes a second.

![Goodput, latency, memory, level and clients held, with protection and without]({name}.svg)

{table}

Clients that the broker closed: {closed}. Measured: [with protection]({name}-protected.csv),
[without]({name}-unprotected.csv), [in all]({name}.json).
"""

Facts = dict[str, Any]


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.bench.charts", description="Measure overloads and draw them."
    )
    parser.add_argument("--seconds", type=int, default=60, help="of each run (default 60)")
    parser.add_argument("--rounds", type=int, default=3, help="of a run with protection and one without (default 3)")
    parser.add_argument("--draw", action="store_true", help="measure nothing: draw what is there")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where all of it goes (default: the documentation)")
    parser.add_argument("--interpreted", action="store_true", help="measure the source tree, not the installed Weir")
    return parser


def main() -> None:
    parser = options()
    arguments = parser.parse_args()
    if arguments.seconds <= WARM_UP:
        parser.error(f"--seconds is more than {WARM_UP}, which do not count")
    if arguments.rounds < 1:
        parser.error("--rounds is 1 at least")
    folder: Path = arguments.folder
    if not arguments.draw:
        folder.mkdir(parents=True, exist_ok=True)
        with open_bench(arguments.interpreted) as bench:
            for scene in SCENES:
                facts, runs = overload.measure(bench, scene, arguments.seconds, arguments.rounds)
                keep(folder, scene, facts, runs)
    draw(folder)


def keep(folder: Path, scene: Scene, facts: Facts, runs: dict[str, Run]) -> None:
    """What was measured, as files."""
    facts = {**facts, "cores": len(os.sched_getaffinity(0)), "total": {name: run.total for name, run in runs.items()}}
    (folder / f"{scene.name}.json").write_text(json.dumps(facts, indent=2) + "\n")
    for name, run in runs.items():
        with (folder / f"{scene.name}-{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(run.rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(run.rows)


def draw(folder: Path) -> None:
    """The charts, and the page with them and what they show."""
    sections = []
    for scene in SCENES:
        facts = json.loads((folder / f"{scene.name}.json").read_text())
        columns = {name: read(folder / f"{scene.name}-{name}.csv") for name in facts["total"]}
        panels.draw(folder / f"{scene.name}.svg", TITLES[scene.name], columns, LATEST_MS)
        sections.append(section(scene, facts, columns))
    page = PAGE.format(
        weir=facts["weir"],
        cores=facts["cores"],
        seconds=len(next(iter(columns.values()))["second"]),
        rounds=len(next(iter(facts["rounds"].values()))),
        aggressors=overload.AGGRESSIVE.publishers,
        subscribers=overload.AGGRESSIVE.subscribers,
        modest=overload.MODESTY.publishers,
        modest_rate=overload.MODEST_RATE,
        budgets=", ".join(f"{key} = {size >> 20}MiB" for key, size in overload.BUDGETS.items()),
    )
    (folder / "README.md").write_text("\n".join([page, *sections]))
    print("\n".join(sections))


def read(path: Path) -> dict[str, list[float]]:
    """The columns of numbers."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in rows[0] if name != "cause"}


def section(scene: Scene, facts: Facts, columns: dict[str, dict[str, list[float]]]) -> str:
    rows = [judged(*bar) for bar in bars(facts)]
    table = markdown(["", "required with protection", "with protection", "without", ""], rows)
    closed = {name: sum(int(fleet["closed"]) for fleet in total.values()) for name, total in facts["total"].items()}
    return SECTION.format(
        title=TITLES[scene.name],
        story=STORIES[scene.name],
        peaks=" and ".join(f"{run['peak'][0]:,.0f} ({name})" for name, run in columns.items()),
        offered=f"{facts['offered']:,}",
        name=scene.name,
        table=table,
        closed=", ".join(f"{count} {name}" for name, count in closed.items()),
    )


def bars(facts: Facts) -> list[tuple[str, str, list[str], list[bool] | None]]:
    """What was measured with protection and without; whether each passes, where something is required.

    The required is of all rounds, goodput as their mean and the rest at its worst; what follows is of those drawn.
    """
    total = list(facts["total"].values())
    rounds = list(facts["rounds"].values())
    memory = [max(one["memory"] for one in runs) for runs in rounds]
    late = [max(one["p99_ms"] for one in runs) for runs in rounds]
    goodputs = [[one["goodput"] for one in runs] for runs in rounds]
    goodput = [mean(shares) for shares in goodputs]
    modest = [f"{number(one[MODEST]['p50_ms'])} ms" for one in total]
    aggressors = [f"{number(one[AGGRESSORS]['p50_ms'])} / {number(one[AGGRESSORS]['p99_ms'])} ms" for one in total]
    delivered = [
        f"{number(one[MODEST]['delivery_p50_ms'])} / {number(one[MODEST]['delivery_p99_ms'])} ms" for one in total
    ]
    return [
        (
            "resident memory of the larger worker, of its budget",
            f"at most {MOST_OF_BUDGET:.0%}",
            [f"{share:.0%}" for share in memory],
            [share <= MOST_OF_BUDGET for share in memory],
        ),
        (
            "goodput, of the peak",
            f"above {LEAST_OF_PEAK:.0%}",
            [f"{mean(shares):.1%} ({', '.join(f'{share:.0%}' for share in shares)})" for shares in goodputs],
            [share > LEAST_OF_PEAK for share in goodput],
        ),
        (
            "modest clients: publish to PUBACK, p99",
            f"below {LATEST_MS:.0f} ms",
            [f"{number(ms)} ms" for ms in late],
            [ms < LATEST_MS for ms in late],
        ),
        ("the same, p50", "-", modest, None),
        ("modest clients: publish to its subscriber, p50 / p99", "-", delivered, None),
        ("aggressors: publish to PUBACK, p50 / p99", "-", aggressors, None),
    ]


def judged(what: str, required: str, found: list[str], passes: list[bool] | None) -> list[object]:
    return [what, required, *found, "" if passes is None else verdict(*passes)]


def verdict(protected: bool, unprotected: bool) -> str:
    if protected:
        return "met; so it is without protection" if unprotected else "met, by protection"
    return "missed, and met without protection" if unprotected else "missed, with and without"


if __name__ == "__main__":
    main()
