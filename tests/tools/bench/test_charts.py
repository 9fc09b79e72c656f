# What is drawn of figures that are made up; measuring is a matter of tests/system/test_bench.py.
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.tools.bench import charts
from tests.tools.bench.contenders import ToolFailed
from tests.tools.bench.overload import SCENES, Row, Run, covers, deal, middle

PEAK = 1000.0


def figures(goodput: float, mib: float, level: float) -> list[Row]:
    """Five seconds that are all alike."""
    return [
        {
            "second": second,
            "goodput": goodput,
            "modest_p99_ms": 10.0,
            "aggressors_p99_ms": 0.0,
            "modest_delivery_p99_ms": 20.0,
            "aggressors_delivery_p99_ms": 30.0,
            "level": level,
            "cause": "lag",
            "held": 3.5,
            "worker0_mib": 40.0,
            "worker1_mib": mib,
            "supervisor_mib": 50.0,
            "redis_mib": 10.0,
            "budget_mib": 100.0,
            "peak": PEAK,
        }
        for second in range(1, 6)
    ]


def seen(p99_ms: float) -> dict[str, dict[str, float]]:
    one = {"p50_ms": 1.0, "p99_ms": p99_ms, "delivery_p50_ms": 2.0, "delivery_p99_ms": 3.0, "closed": 1}
    return {"aggressors": one, "modest": one}


@pytest.fixture
def page(tmp_path: Path) -> str:
    """Of both scenes, with a protected run that is well and an unprotected one that is not, but for its goodput."""
    runs = {
        "protected": Run(figures(goodput=990, mib=60, level=4), seen(p99_ms=200)),
        "unprotected": Run(figures(goodput=1200, mib=101, level=0), seen(p99_ms=9000)),
    }
    rounds = {
        "protected": [runs["protected"].figures(), {"goodput": 0.95, "memory": 0.3, "p99_ms": 240.0}],
        "unprotected": [runs["unprotected"].figures()] * 2,
    }
    facts: dict[str, Any] = {"offered": 3000, "weir": "weir 0", "rounds": rounds}
    for scene in SCENES:
        charts.keep(tmp_path, scene, facts, runs)
    charts.draw(tmp_path)
    return (tmp_path / "README.md").read_text()


def line(page: str, begins: str) -> list[str]:
    """The cells of the first row that begins so."""
    found = next(line for line in page.splitlines() if line.startswith(f"| {begins}"))
    return [cell.strip() for cell in found.strip("|").split("|")][1:]


def test_the_page_says_whether_a_bar_is_met_and_by_what(page: str) -> None:
    """A run that missed its bar would pass for one that met it, or protection be praised for what needs none."""
    assert ["at most 100%", "60%", "101%", "met, by protection"] == line(page, "resident memory")
    assert ["above 95%", "97.0% (99%, 95%)", "120.0% (120%, 120%)", "met; so it is without protection"] == line(
        page, "goodput"
    )
    assert ["below 250 ms", "240 ms", "9000 ms", "met, by protection"] == line(
        page, "modest clients: publish to PUBACK"
    )
    assert "Clients that the broker closed: 2 protected, 2 unprotected." in page


def test_a_missed_bar_is_called_missed() -> None:
    """A bar that only the unprotected run meets would look like one that both miss."""
    assert "missed, and met without protection" == charts.verdict(False, True)
    assert "missed, with and without" == charts.verdict(False, False)


def test_the_round_in_the_middle_is_drawn() -> None:
    """The luckiest of several rounds would be shown."""
    runs = [Run(figures(goodput, mib=60, level=4), seen(p99_ms=1)) for goodput in (1100, 900, 1000)]

    assert 2 == middle(runs)


def test_each_second_has_one_record_of_a_worker() -> None:
    """A worker that is busy writes its records late: there would be seconds with none, and with twice who was held."""
    ends = [0.2, 1.3, 2.9, 3.95, 5.1, 6.0]
    intervals = [1.0, *(end - begin for begin, end in pairwise(ends))]
    records = [{"ts": 1000.0 + end, "interval_s": interval} for end, interval in zip(ends, intervals, strict=True)]

    assert [[], [0], [1, 2], [3], [4], []] == [list(covers(record, 1000.0, 5)) for record in records]


def test_each_scene_has_its_chart(page: str, tmp_path: Path) -> None:
    """The page would point at charts that are not there, or that show nothing."""
    for scene in SCENES:
        assert f"({scene.name}.svg)" in page
        chart = (tmp_path / f"{scene.name}.svg").read_text()
        assert "with protection" in chart
        assert "without protection" in chart
        assert "budget of a worker" in chart


def test_the_same_figures_make_the_same_chart(page: str, tmp_path: Path) -> None:
    """Each drawing would be a change to commit, whatever was measured."""
    before = [(tmp_path / f"{scene.name}.svg").read_text() for scene in SCENES]
    charts.draw(tmp_path)

    assert before == [(tmp_path / f"{scene.name}.svg").read_text() for scene in SCENES]


def test_each_worker_has_as_many_of_the_clients() -> None:
    """What a node can do would differ from run to run, and goodput be told as a share of what another one could."""
    at = {1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 0}

    assert [1, 4, 5] == deal(at, [0, 1], 3)
    assert {2: 0, 3: 0, 6: 0} == at
    with pytest.raises(ToolFailed):
        deal(at, [0, 1], 2)
    assert [2, 3, 6] == deal(at, [0], 3)
