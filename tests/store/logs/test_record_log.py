# Metrics records on their way to the carrier: what is sent, what is dropped instead of waiting, and what was answered.
import pytest

from broker.config.schema import Overload
from broker.metrics.counters import Counters
from broker.overload.gate import Gate
from broker.reasons import LogFailure
from broker.store.logs import frames
from broker.store.logs.frames import LaneError
from broker.store.logs.link import CarrierLink
from broker.store.logs.log_gate import LogGate
from broker.store.logs.record_log import MOST, MOST_BYTES, CarrierRecordLog
from tests.store.logs.test_link import PaperCarrier, taken


class Worker:
    def __init__(self) -> None:
        self.counters = Counters()
        self.log = CarrierRecordLog(self.counters)
        self.failures: list[Exception] = []
        gate = LogGate(Gate(Overload(), "log", 2, 0.0), lambda gate, now: None)
        self.link = CarrierLink(1, gate, self.failures.append, self.log)

    def carrier(self) -> PaperCarrier:
        return PaperCarrier(self.link, 0.0)

    def append(self, *records: bytes) -> None:
        for record in records:
            self.log.append(record, 0.0)

    def counted(self) -> tuple[int, dict[str, int]]:
        dropped = {label: count for label, count in self.counters.kafka_records_dropped_by_reason.items() if count}
        return self.counters.kafka_records_written, dropped


def records(carrier: PaperCarrier) -> list[bytes]:
    """Those that have come since the last call."""
    return [body.rest() for kind, body in taken(carrier.control) if kind == frames.METRICS]


def test_records_go_to_the_carrier_which_says_what_became_of_them() -> None:
    """Consumers of Kafka would miss records, and nobody know of it."""
    worker = Worker()
    carrier = worker.carrier()
    worker.append(b"{1}", b"{2}", b"{3}")
    for failure in (None, LogFailure.UNREACHABLE, None):
        carrier.says(frames.recorded(failure), 0.1)

    assert [b"{1}", b"{2}", b"{3}"] == records(carrier)
    assert (2, {"unreachable": 1}) == worker.counted()


def test_without_a_carrier_records_are_dropped() -> None:
    """They would pile up in the worker until it has no memory."""
    worker = Worker()
    worker.append(b"{1}")
    first = worker.carrier()
    worker.append(b"{2}", b"{3}")
    worker.link.lost(first.control, "peer_closed", 0.2)
    worker.append(b"{4}")
    second = worker.carrier()
    worker.append(b"{5}")
    second.says(frames.recorded(None), 0.3)

    assert [b"{5}"] == records(second)
    assert (1, {"carrier_away": 4}) == worker.counted()


def test_a_carrier_that_replaces_another_has_nothing_to_answer_of_it() -> None:
    """After some carriers no record would be sent any more."""
    worker = Worker()
    for _ in range(MOST):
        worker.carrier()
        worker.append(b"{}")
    last = worker.carrier()
    worker.append(b"{last}")

    assert [b"{last}"] == records(last)
    assert (0, {"carrier_away": MOST}) == worker.counted()


@pytest.mark.parametrize(("size", "sent"), [(100, MOST), (MOST_BYTES // 2, 2), (2 * MOST_BYTES, 1)])
def test_what_has_no_answer_is_little(size: int, sent: int) -> None:
    """While Kafka hangs, records would pile up in the carrier: clients with long names make them large."""
    worker = Worker()
    carrier = worker.carrier()
    worker.append(*[bytes(size)] * (sent + 3))
    assert sent == len(records(carrier))
    assert (0, {"backlog_full": 3}) == worker.counted()
    carrier.says(frames.recorded(None), 0.1)
    worker.append(bytes(size))

    assert 1 == len(records(carrier))


def test_an_answer_to_nothing_is_a_mistake() -> None:
    """Counters would say that Kafka has more records than there were."""
    worker = Worker()
    carrier = worker.carrier()

    with pytest.raises(LaneError, match="metrics record that was not sent"):
        carrier.says(frames.recorded(None), 0.1)
