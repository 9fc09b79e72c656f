# The alerts and the board in deploy/ beside what a node really serves to Prometheus.
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
import trio
from prometheus_client.parser import text_string_to_metric_families

from broker.config.schema import Config
from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.overload_figures import OverloadFigures
from broker.metrics.report import report
from broker.reasons import CloseReason, DropReason, FilterRefusal, FlushCause, PauseReason, PublishRefusal
from supervisor.folder import NodeFolder
from supervisor.logfile import LogFile
from supervisor.metrics import exposition
from supervisor.node import Node
from supervisor.node_redis import NodeRedis

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
METRIC: Final = re.compile(r"\b(?:weir_\w+|up)\b(?=\s*(?:\{|\[|$|[^\w(]))")
SELECTOR: Final = re.compile(r"\b(weir_\w+)\{([^}]*)\}")
MATCHER: Final = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING: Final = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")
SHOWN: Final = re.compile(r"\$labels\.(\w+)")
OF_THE_SCRAPE: Final = {"instance", "job"}  # labels that Prometheus adds
REASONS: Final = (CloseReason, DropReason, FilterRefusal, FlushCause, PauseReason, PublishRefusal)


@dataclass
class Family:
    labels: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Family]:
    """By name what a node with one worker serves, of which each thing has happened once."""
    found: dict[str, Family] = {}
    text = trio.run(served, NodeFolder("weir", str(tmp_path_factory.mktemp("node"))))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, Family()).labels |= sample.labels.keys()
    return found


async def served(folder: NodeFolder) -> str:
    counters = Counters()
    counters.dropped(DropReason.EXPIRED, 1)
    counters.closed(CloseReason.KICKED)
    counters.paused(PauseReason.GATE)
    counters.paused_ms_by_reason[PauseReason.GATE.label] = 100
    told = report(counters, Gauges(overload=OverloadFigures(signals={"lag": 0.5})))
    for kind in told["reasons"]:
        told["reasons"][kind] = told["reasons"][kind] or {"any": 1}
    config = Config()
    redis = NodeRedis(config, folder, structlog.get_logger())
    node = Node(config, folder, [[]], LogFile(), lambda: "", redis, lambda: None)
    (shard,) = node.shards
    shard.process = worker = shard.make()
    worker.state = "serving"
    worker.statistics = dict(told)
    text = exposition(node).decode()
    worker.mark_dead()
    return text


def rules() -> Iterator[dict[str, str]]:
    """The alerts, as far as lines of YAML can tell: ours have each value on its own line."""
    rule: dict[str, str] = {}
    for line in (DEPLOY / "alerts.yml").read_text().splitlines():
        key, colon, value = line.strip().removeprefix("- ").partition(": ")
        if line.strip().startswith("- alert: "):
            if "alert" in rule:
                yield rule
            rule = {}
        if colon and not line.lstrip().startswith("#"):
            rule[key] = value
    yield rule


def board() -> dict[str, Any]:
    told: dict[str, Any] = json.loads((DEPLOY / "grafana" / "weir.json").read_text())
    return told


def expressions() -> list[tuple[str, str, str]]:
    """(where, expression, what is shown of it)."""
    found = [(rule["alert"], rule["expr"], rule["summary"] + rule["description"]) for rule in rules()]
    for panel in board()["panels"]:
        for target in panel["targets"]:
            shown = target["legendFormat"].replace("{{", "$labels.").replace("}}", "")
            found.append((panel["title"], target["expr"], shown))
    return found


@pytest.mark.parametrize(("where", "expression", "shown"), expressions(), ids=lambda value: str(value)[:40])
def test_what_is_asked_for_is_there(exported: dict[str, Family], where: str, expression: str, shown: str) -> None:
    """An alert would never come, or a panel stay empty, and nobody would know."""
    metrics = METRIC.findall(expression)
    assert metrics
    labels = set(OF_THE_SCRAPE)
    for metric in metrics:
        if metric != "up":
            assert metric in exported, f"{where}: there is no {metric}"
            labels |= exported[metric].labels
    for metric, inside in SELECTOR.findall(expression):
        for label, _, value in MATCHER.findall(inside):
            assert label in exported[metric].labels | OF_THE_SCRAPE, f"{where}: {metric} has no label {label}"
            if label == "reason":
                assert any(value == one.label for reasons in REASONS for one in reasons), value
    grouped = {label.strip() for group in GROUPING.findall(expression) for label in group.split(",")}
    assert grouped <= labels, where
    named = set(SHOWN.findall(shown))
    assert named <= (grouped or labels), where


def test_counters_are_asked_for_by_how_they_grow() -> None:
    """An alert would go off when a node has run for long, and never end."""
    for where, expression, _ in expressions():
        for metric in METRIC.findall(expression):
            if metric.endswith("_total"):
                assert re.search(rf"(rate|increase)\({metric}[{{\[]", expression), where


def test_each_alert_says_how_bad_it_is_and_what_to_do() -> None:
    """Somebody would be woken up, and not know for what."""
    found = list(rules())
    names = [rule["alert"] for rule in found]

    assert len(set(names)) == len(names) >= 15
    for rule in found:
        assert rule["labels"] in ("{ severity: warning }", "{ severity: critical }"), rule["alert"]
        assert rule["summary"].endswith('."') and rule["description"].endswith('."'), rule["alert"]
    for needed in (
        "weir_clients_non_writable",
        "weir_overload_level",
        "weir_messages_dropped",
        'reason="gate"',
        "deaths",
    ):
        assert any(needed in rule["expr"] for rule in found), needed


def test_panels_stand_beside_each_other() -> None:
    """Some of them could not be seen."""
    panels = board()["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
