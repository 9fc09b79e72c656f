# Each reason that exists, made to happen: what `weir why`, the counter, the log and the wire say of it.
#
# A reason that nobody can see is none. Those of which there is no scenario yet are listed with the cause, and the list
# can only get shorter: who writes a scenario has to take its reason off.
from collections.abc import Callable, Iterator, MutableMapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

import pytest
import structlog.testing

from broker.insight.explain import explain
from broker.insight.facts import Facts, together
from broker.insight.reason_words import words_of
from broker.overload.admit import CLOSE, DROP, FILTER, PAUSE, REFUSE
from broker.reasons import CloseReason, DropReason, FilterRefusal, PauseReason, PublishRefusal
from tests.innode import Node
from tests.inprocess import Broker
from tests.protocol.reasons import connections, publishing, reading  # noqa: F401  # they register their scenarios
from tests.protocol.reasons.stage import SCENARIOS, Seen, Stage
from tests.redis_servers import RunningRedis

Log = list[MutableMapping[str, Any]]

ALL: Final[list[Enum]] = [*PauseReason, *PublishRefusal, *DropReason, *FilterRefusal, *CloseReason]
TASKS: Final = "it takes the tasks of trio: see tests/net/test_websocket.py"
LOGS: Final = "it takes a log: see tests/cluster/test_applications.py"
QUEUE: Final = "it takes a log: see tests/store/durable/test_application.py"
SHARED: Final = "it takes a log: see tests/cluster/test_shared_applications.py"
BACKBONE: Final = "it takes an inbound backbone: see tests/cluster/test_backbone.py"
MISSING: Final[dict[Enum, str]] = {
    CloseReason.WEBSOCKET_REFUSED: TASKS,
    CloseReason.WEBSOCKET_ERROR: TASKS,
    CloseReason.WEBSOCKET_TEXT: TASKS,
    CloseReason.RECEIVER_MOVED: "it takes a stored session: see tests/cluster/test_durable_takeovers.py",
    CloseReason.SESSION_DAMAGED: "it takes a stored session: see tests/cluster/test_durable.py",
    PauseReason.STORE: "it takes a stored session: see tests/cluster/test_durable_publishers.py",
    CloseReason.PACK_TIMEOUT: LOGS,
    CloseReason.LOG_UNAVAILABLE: LOGS,
    CloseReason.APPLICATION_LIMIT: LOGS,
    CloseReason.BACKBONE_REFUSED: BACKBONE,
    DropReason.PACK_TIMEOUT: LOGS,
    FilterRefusal.SHARED_FILTERS: SHARED,
    FilterRefusal.LOG_UNAVAILABLE: SHARED,
    DropReason.RETENTION_EXPIRED: QUEUE,
    DropReason.LOG_DAMAGED: QUEUE,
    DropReason.LOG_REFUSED: QUEUE,
    DropReason.BACKBONE_REFUSED: BACKBONE,
    DropReason.RETAINED_UNWRITTEN: "it takes a store: see tests/cluster/test_durable_retained.py",
}
LINES: Final[dict[type[Enum], str]] = {
    PauseReason: "client_throttled",
    PublishRefusal: "publish_refused",
    FilterRefusal: "filter_refused",
    CloseReason: "client_closed",
}
# Of a message: its client's doing has a line, what becomes of it on its way to a reader is in the metrics record alone,
# as it may happen a million times a second.
DROP_LINES: Final = {
    DropReason.NOT_AUTHORIZED: "publish_refused",
    DropReason.RETAINED_FULL: "message_not_retained",
    DropReason.RETAINED_PER_CLIENT: "message_not_retained",
    DropReason.RETAINED_UNWRITTEN: "message_not_retained",
    DropReason.GATE_TIMEOUT: "publish_dropped",
}
# Their clients are not told, though there is a code for it.
UNHEARD: Final = (
    CloseReason.GATE_TIMEOUT,  # the client speaks 3.1.1
    CloseReason.SLOW_CONSUMER,  # it does not read
    CloseReason.OUTBOUND_BUDGET,
)


@pytest.fixture
def stage(
    brokers: Callable[..., Broker],
    nodes: Callable[..., Node],
    start_redis: Callable[..., RunningRedis],
    tmp_path: Path,
) -> Stage:
    return Stage(brokers, nodes, start_redis, tmp_path)


@pytest.fixture
def log() -> Iterator[Log]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def by_name(member: Enum) -> str:
    return f"{type(member).__name__}.{member.name}"


@pytest.mark.parametrize("member", ALL, ids=by_name)
def test_a_reason_has_a_scenario_or_is_known_to_lack_one(member: Enum) -> None:
    """A reason would be added that nobody has ever seen happen; or the list of those say less than is true."""
    assert (member in SCENARIOS) != (member in MISSING)


@pytest.mark.parametrize("member", [one for one in ALL if one in SCENARIOS], ids=by_name)
def test_a_reason_that_happens_is_seen(stage: Stage, log: Log, member: Enum) -> None:
    """Somebody would be slowed down, refused or closed, and nobody could find out why."""
    seen = SCENARIOS[member](stage)

    assert counted(seen, member) > 0
    assert_logged(seen, log, member)
    assert expected_codes(member) == seen.heard[-1:]
    if seen.client_id:
        assert_explained(seen, member)


def counted(seen: Seen, member: Enum) -> int:
    """How often it happened, as the workers count."""
    found = 0
    for broker in seen.workers:
        counters = broker.counters
        label = member.label  # type: ignore[attr-defined]
        by_reason = {
            PauseReason: counters.pauses_by_reason,
            PublishRefusal: counters.publishes_refused_by_reason,
            DropReason: counters.dropped_by_reason,
            FilterRefusal: counters.refused_by_reason,
            CloseReason: counters.closed_by_reason,
        }[type(member)]
        found += by_reason[label]
    return found


def assert_logged(seen: Seen, log: Log, member: Enum) -> None:
    label = member.label  # type: ignore[attr-defined]
    if isinstance(member, DropReason):
        records = [record(broker) for broker in seen.workers]
        assert any(one["dropped"].get(label, 0) for one in records)
        published = label.startswith("quota_") and not label.endswith("_outgoing")
        event = DROP_LINES.get(member, "publish_dropped" if published else "")
        if not event:
            return
    else:
        event = LINES[type(member)]
    lines = [line for line in log if line["event"] == event and line.get("reason", label) == label]
    assert lines, log
    assert not seen.client_id or seen.client_id in str(lines)


def record(broker: Broker) -> dict[str, Any]:
    """The metrics record of all that has happened."""
    return broker.interval_metrics.recorder.record(broker.clock.now + 1.0, 1.0, broker.gauges(), {})


def expected_codes(member: Enum) -> list[int]:
    """What a client of 5.0 is told last."""
    code: int = getattr(member, "code", 0)
    return [code] if code and member not in UNHEARD else []


def assert_explained(seen: Seen, member: Enum) -> None:
    told = " ".join(explain(facts(seen)))
    label = member.label  # type: ignore[attr-defined]
    kinds = {PauseReason: PAUSE, PublishRefusal: REFUSE, DropReason: DROP, FilterRefusal: FILTER, CloseReason: CLOSE}
    happened, helps = words_of(kinds[type(member)], label, seen.client_id)
    assert happened in told
    assert helps in told
    assert label in told


def facts(seen: Seen) -> Facts:
    found = together([broker.diagnostics.facts(seen.client_id) for broker in seen.workers], [])
    assert found is not None
    return found
