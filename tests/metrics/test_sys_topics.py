from math import exp

import pytest

from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.overload_figures import OverloadFigures
from broker.metrics.sys_topics import SysTopics
from broker.reasons import CloseReason, DropReason, FilterRefusal, PauseReason, PublishRefusal

STARTED = 1000.0

# What a Mosquitto 2.0 publishes, with what it leaves out while it is zero.
CURRENT = {
    "version": "weir version 1",
    "uptime": "10 seconds",
    "messages/received": "1",
    "messages/sent": "10",
    "bytes/received": "3",
    "bytes/sent": "4",
    "publish/messages/received": "5",
    "publish/messages/sent": "6",
    "publish/bytes/received": "7",
    "publish/bytes/sent": "8",
    "publish/messages/dropped": "9",
    "clients/connected": "21",
    "clients/active": "21",
    "clients/maximum": "21",
    "clients/total": "25",
    "clients/disconnected": "4",
    "clients/inactive": "4",
    "clients/expired": "22",
    "subscriptions/count": "26",
    "shared_subscriptions/count": "27",
    "retained messages/count": "28",
    "messages/stored": "29",
    "store/messages/count": "29",
    "store/messages/bytes": "30",
    "heap/current": "31",
    "heap/maximum": "31",
}
LOADS = [
    "load/bytes/received",
    "load/bytes/sent",
    "load/connections",
    "load/messages/received",
    "load/messages/sent",
    "load/publish/dropped",
    "load/publish/received",
    "load/publish/sent",
    "load/sockets",
]


def sample(topics: SysTopics, after: float, counters: Counters, gauges: Gauges | None = None) -> dict[str, str]:
    """What is published *after* seconds, by the name below $SYS/broker/."""
    pairs = topics.sample(STARTED + after, counters, gauges or Gauges())
    assert all(topic.startswith(b"$SYS/broker/") for topic, _ in pairs)
    return {topic[len(b"$SYS/broker/") :].decode(): payload.decode() for topic, payload in pairs}


def test_the_names_are_those_of_mosquitto() -> None:
    """A dashboard or exporter made for Mosquitto would miss a topic."""
    loads = [f"{load}/{window}" for load in LOADS for window in ("1min", "5min", "15min")]

    told = sample(SysTopics("weir", STARTED), 0.0, Counters())
    assert sorted([*CURRENT, *loads]) == sorted(name for name in told if not name.startswith(("overload/", "weir/")))


def test_the_first_sample_has_everything_in_its_format() -> None:
    """A reader of $SYS would fail to parse a value, or read the value of another topic."""
    counters = Counters()
    counters.packets_received = 1
    counters.answers_sent = 4
    counters.bytes_received = 3
    counters.bytes_sent = 4
    counters.publishes_received = 5
    counters.publishes_sent = 6
    counters.publish_bytes_received = 7
    counters.publish_bytes_sent = 8
    counters.publishes_dropped = 9
    counters.sessions_expired = 22
    gauges = Gauges(
        clients_connected=21,
        clients_total=25,
        subscriptions=26,
        shared_subscriptions=27,
        retained=28,
        retained_bytes=20,
        queued=1,
        queued_bytes=10,
        heap_bytes=31,
    )

    told = sample(SysTopics("weir version 1", STARTED), 10.9, counters, gauges)

    assert {name: told[name] for name in CURRENT} == CURRENT


def test_only_what_changed_is_published_again() -> None:
    """Every subscriber of $SYS would get a hundred messages at each interval."""
    counters, topics = Counters(), SysTopics("weir", STARTED)
    sample(topics, 0.0, counters)

    assert {"uptime": "10 seconds"} == sample(topics, 10.0, counters)
    assert {"uptime": "20 seconds", "subscriptions/count": "1"} == sample(
        topics, 20.0, counters, Gauges(subscriptions=1)
    )


def test_a_maximum_stays() -> None:
    """The maximum would follow the current value down."""
    counters, topics = Counters(), SysTopics("weir", STARTED)
    sample(topics, 0.0, counters, Gauges(clients_connected=5, clients_total=5, heap_bytes=100))

    told = sample(topics, 10.0, counters, Gauges(clients_connected=2, clients_total=5, heap_bytes=50))

    assert ("2", "50") == (told["clients/connected"], told["heap/current"])
    assert "clients/maximum" not in told and "heap/maximum" not in told


def test_a_load_is_a_decayed_average_per_minute() -> None:
    """Loads would be rates of another unit, or forget and remember differently than Mosquitto's.

    The numbers of the first are what a Mosquitto 2.0.11 told after four connections in its first 11 seconds.
    """
    counters, topics = Counters(), SysTopics("weir", STARTED)
    sample(topics, 0.0, counters)
    counters.sockets_opened = 4

    told = sample(topics, 11.0, counters)

    assert ["3.65", "0.79", "0.27"] == [told[f"load/sockets/{window}"] for window in ("1min", "5min", "15min")]
    assert "load/connections/1min" not in told

    told = sample(topics, 22.0, counters)
    assert "3.04" == told["load/sockets/1min"]


def test_a_steady_load_is_reached() -> None:
    """A load would not become the rate that lasts, whatever the interval of the samples."""
    counters, topics = Counters(), SysTopics("weir", STARTED)
    told: dict[str, str] = {}
    for seconds in (2, 5, 30, 60, 60, 120, 240, 480):
        counters.packets_received = seconds * 10
        told |= sample(topics, float(seconds), counters)

    assert 600 * (1 - exp(-480 / 60)) == pytest.approx(float(told["load/messages/received/1min"]), abs=0.01)


def test_two_samples_at_one_time() -> None:
    """A clock that did not move would stop $SYS for good, or lose what happened in between."""
    counters, topics = Counters(), SysTopics("weir", STARTED)
    sample(topics, 0.0, counters)
    counters.connects_received = 6

    assert "6.00" == sample(topics, 0.0, counters)["load/connections/1min"]


def test_reasons_are_published_when_they_occurred() -> None:
    """The reasons of drops, closes and refusals would not be in $SYS."""
    counters, topics = Counters(), SysTopics("weir", STARTED)
    sample(topics, 0.0, counters)
    counters.dropped(DropReason.NOT_WRITABLE, 7)
    counters.closed(CloseReason.SLOW_CONSUMER)
    counters.filter_refused(FilterRefusal.SUBSCRIPTIONS)
    counters.publish_refused(PublishRefusal.QUOTA_SESSION_BYTES)

    told = sample(topics, 1.0, counters)

    own = {name: value for name, value in told.items() if name.startswith("weir/")}
    refused = {"weir/refused/subscriptions_per_session": "1", "weir/refused/quota_session_bytes": "1"}
    reasons = {"weir/dropped/not_writable": "7", "weir/closed/slow_consumer": "1"}
    assert reasons | refused == own
    assert "7" == told["publish/messages/dropped"]


def test_what_overload_protection_is_at_is_published() -> None:
    """$SYS would not show that clients are throttled, nor why."""
    figures = OverloadFigures(
        level=3,
        cluster_level=7,
        cause="lag",
        signals={"lag": 1.5},
        credits_per_tick=6000,
        using_credits=12,
        average_credits=41234.5,
        throttled=4,
    )
    counters, topics = Counters(), SysTopics("weir", STARTED)
    counters.paused(PauseReason.CREDITS)
    counters.paused_ms_by_reason["credits"] = 1234

    told = sample(topics, 0.0, counters, Gauges(overload=figures, non_writable=2, paused=5, p50_ms=0.25, p99_ms=3.5))

    assert {
        "level": "3",
        "cluster_level": "7",
        "cause": "lag",
        "credits_per_tick": "6000",
        "clients/using_credits": "12",
        "clients/average_credits": "41234",
        "clients/throttled": "4",
        "clients/paused": "5",
        "clients/non_writable": "2",
        "latency/p50_ms": "0.250",
        "latency/p99_ms": "3.500",
        "paused/credits/pauses": "1",
        "paused/credits/ms": "1234",
    } == {name.removeprefix("overload/"): value for name, value in told.items() if name.startswith("overload/")}
    assert {"overload/level": "0", "overload/cause": "none"}.items() <= sample(topics, 10.0, counters).items()
