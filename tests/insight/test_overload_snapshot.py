# What a worker tells people of its overload.
from collections.abc import Callable
from typing import Any

from broker.config.schema import Config, Quotas, QuotaScope
from broker.mqtt.packets import Publish
from broker.overload.reports import Report
from broker.worker_id import WorkerId
from tests.inprocess import Broker

Brokers = Callable[..., Broker]

LATE = 0.1  # seconds: twice the target of lag
WALL = 1_700_000_000.0
QUOTA = Config(quotas=Quotas(reserve=0.0, session=QuotaScope(incoming_messages="3:3")))


def snapshot_of(broker: Broker) -> dict[str, Any]:
    return broker.overload_snapshot.take(broker.clock.now)


def signal_of(told: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in told["signals"] if one["name"] == name]
    return dict(found)


def test_a_calm_worker_says_that_it_is(brokers: Brokers) -> None:
    """An idle worker would look overloaded."""
    broker = brokers()
    broker.advance(0.5)
    told = snapshot_of(broker)

    assert (0.0, "", 0.0, "") == (told["level"], told["cause"], told["cluster"]["level"], told["cluster"]["cause"])
    assert {"lag", "outbound", "memory", "redis", "connect", "topology"} == {one["name"] for one in told["signals"]}
    assert all(one["contended_s"] is None and one["injected_s"] is None for one in told["signals"])
    assert ({}, 0, []) == (told["held"], told["connects"]["waiting"], told["reports"]["heard"])


def test_a_signal_is_told_with_how_bad_since_when_and_who_says_so(brokers: Brokers) -> None:
    """An injected value would look measured, or the time since when a signal is contended would be missing."""
    broker = brokers()
    broker.advance(0.3)
    broker.overload_monitor.inject("lag", LATE, broker.clock.now + 5.0)
    broker.advance(2.0)
    told = snapshot_of(broker)
    lag = signal_of(told, "lag")

    assert (2.0, "lag", 2.0) == (lag["value"], told["cause"], told["worst"])
    assert lag["resource"].endswith("/0")
    assert 1.8 < lag["contended_s"] < 2.0
    assert 2.9 < lag["injected_s"] < 3.1
    assert 0.0 < told["level"] == told["cluster"]["level"]
    assert told["credits"]["per_tick"] < told["credits"]["when_calm"]
    broker.advance(4.0)
    lag = signal_of(snapshot_of(broker), "lag")
    assert (0.0, None, None) == (lag["value"], lag["contended_s"], lag["injected_s"])


def test_who_is_held_is_told_by_reason_now_and_for_the_last_minute(brokers: Brokers) -> None:
    """The throttled clients and their time would be missing."""
    broker = brokers(QUOTA)
    client = broker.connect("client")
    client.send(*[Publish(b"a", b"", 1, packet_id=n + 1) for n in range(4)])
    broker.settle()
    broker.advance(0.5)
    broker.record(WALL)
    (figures,) = snapshot_of(broker)["held"].values()
    assert (1, 500, 500) == (figures["clients"], figures["interval_ms"], figures["minute_ms"])

    broker.advance(2.0)
    broker.record(WALL + 2.0)
    broker.record(WALL + 3.0)
    (figures,) = snapshot_of(broker)["held"].values()
    assert (0, 0) == (figures["clients"], figures["interval_ms"])
    assert 500 < figures["minute_ms"] <= 1500

    broker.clock.now += 61.0
    broker.record(WALL + 64.0)
    assert {} == snapshot_of(broker)["held"]


def test_what_others_say_is_told_with_its_age(brokers: Brokers) -> None:
    """A level would have no source, or come from a worker that reports no more."""
    broker = brokers()
    reports = broker.protection.reports
    reports.hear(Report(WorkerId("far", 1, 1), 1, 5.5, "memory", 1.5, ("far/1",)).encode(), broker.clock.now)
    reports.hear(b"nonsense", broker.clock.now)
    broker.advance(0.5)
    told = snapshot_of(broker)

    (said,) = told["reports"]["heard"]
    assert ("far", 1, 5.5, "memory", ["far/1"]) == tuple(
        said[key] for key in ("node", "worker", "level", "cause", "contended")
    )
    assert (0.5, True) == (said["age_s"], said["counts"])
    assert {"malformed": 1} == told["reports"]["ignored"]
    assert ("far", 1, 5.5) == tuple(told["cluster"][key] for key in ("node", "worker", "level"))
    broker.advance(1.0)
    told = snapshot_of(broker)
    assert (False, 0.0) == (told["reports"]["heard"][0]["counts"], told["cluster"]["level"])
