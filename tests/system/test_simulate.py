# `weir simulate` on what a real node recorded while one client flooded it.
import json
from collections.abc import Callable
from typing import Any

import pytest

from broker.mqtt.packets import PUBACK, Publish
from tests.cli.running import weir as run
from tests.system import scene
from tests.system.processes import BrokerProcess
from tests.system.raw import RawClient

pytestmark = pytest.mark.weir_only("a matter of Weir's processes")

StartWeir = Callable[..., BrokerProcess]
TABLE = [1000, 200, 100, 100, 60, 60, 60, 60, 60, 60, 60]  # credits, so few that a flood is soon held
FLOOD = 200  # publishes


def held_seconds(told: dict[str, Any]) -> dict[str, float]:
    """That clients were held, by reason, as the node tells Prometheus."""
    return {reason: ms / 1000 for reason, ms in told["reasons"]["paused_ms"].items() if ms}


def test_who_was_held_and_for_how_long_is_what_the_node_counted(start_weir: StartWeir) -> None:
    """What is said of the past would be wrong, and so all that is concluded from it."""
    settings = {"node.workers": 1, "overload.trace": "4MiB", "overload.cap": 1000, "overload.cap_least": 200}
    table = {"overload.refill": ",".join(map(str, TABLE))}
    weir = start_weir({**settings, **table}, environment=scene.TESTED)
    modest, aggressor = RawClient(weir.port), RawClient(weir.port)
    modest.connect("modest")
    aggressor.connect("aggressor")
    scene.inject(weir, 0, "lag", 0.12, 4.0)
    scene.until(lambda: scene.levels(weir)[0] >= 2, "a level")
    for number in range(FLOOD):
        aggressor.send(Publish(b"flood", bytes(500), 1, packet_id=number + 1))
    modest.publish("calm", b"x", qos=1)
    for number in range(FLOOD):
        aggressor.expect_ack(PUBACK, number + 1)
    totals: dict[str, Any] = {}

    def all_is_told() -> bool:
        """What the node says of itself may be a second old, and of a moment between two pauses."""
        totals.update(scene.totals(weir))
        return FLOOD + 1 == totals["counters"]["publishes_received"] and not totals["gauges"]["paused"]

    scene.until(all_is_told, "an end of it")
    happened = held_seconds(totals)
    modest.close()
    aggressor.close()
    assert weir.control is not None
    folder = weir.control.parent
    assert 0 == weir.terminate()
    (folder / "off.toml").write_text("[overload]\nenabled = false\n")
    shown = run("simulate", "--policy", str(folder / "off.toml"), "--folder", str(folder), "--json")
    assert (0, "") == (shown.returncode, shown.stderr)
    told = json.loads(shown.stdout)

    assert [0] == [one["different"] for one in told["traces"]]
    recorded = told["recorded"]["outcome"]
    assert happened["credits"] > 0.5
    assert happened == pytest.approx(recorded["held_s"], abs=0.003)
    assert ["aggressor"] == [one["client"] for one in recorded["clients"]]
    assert FLOOD + 1 == recorded["publishes"] == recorded["accepted"]
    without = told["policies"][0]
    assert without["estimate"] and not without["outcome"]["held_s"]
    # How near an estimate is shows where nobody else takes the worker's time: tests/backtest/test_backtest.py.
    estimate = told["recorded_estimated"]["outcome"]
    assert ["aggressor"] == [one["client"] for one in estimate["clients"]]
    assert FLOOD + 1 == estimate["publishes"] == estimate["accepted"]
