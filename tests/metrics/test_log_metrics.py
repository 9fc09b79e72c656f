# The figures of a worker about the logs that it appends to and reads.
from collections.abc import Callable

from broker.config.applications import Application, ApplicationRule
from broker.config.schema import Config
from broker.reasons import LogFailure
from broker.store.logs.link import PACK
from broker.store.logs.records import Position
from broker.store.logs.topics import LogError
from tests.inprocess import Broker
from tests.store.logs.test_link import Told


def test_what_a_worker_appends_and_reads_is_measured(brokers: Callable[..., Broker]) -> None:
    """A log that falls behind, or refuses messages, would not be seen before publishers wait."""
    broker = brokers(Config(application=Application(clients=(ApplicationRule(client="service"),))))
    link, gate = broker.worker.links.carrier, broker.worker.links.log_gate
    assert link is not None and gate is not None
    now = broker.clock.now
    for body in (b"one", b"two", b"three"):
        link.append("t", 0, body, Told([]), now)
    link.read("t", 0, Position(), Told([]))
    link._stored([(1, 0)], now)
    link._refused(2, LogError(LogFailure.TOO_LARGE, ""), now)
    gauges = broker.gauges()

    assert (1, PACK + 5, 0, 1, 0) == (
        gauges.log_waiting,
        gauges.log_waiting_bytes,
        gauges.log_held_bytes,
        gauges.log_readings,
        gauges.log_failing,
    )
    counters = broker.counters
    assert (1, 3, 0) == (counters.log_packs, counters.log_bytes, counters.log_carriers)
    refusals = counters.log_refusals_by_reason
    assert (1, 1) == (refusals[LogFailure.TOO_LARGE.label], sum(refusals.values()))
