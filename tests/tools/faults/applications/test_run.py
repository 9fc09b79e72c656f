# Short runs with faults on each log, and the parts of the tool that a run rests on.
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from broker.config.schema import POWER
from broker.session.message import NEVER, Message
from broker.store.durable.application_queue import FORM, SAVED
from broker.store.durable.log_pack import encode_log_pack
from broker.store.durable.pack import Pack as QueuePack
from broker.store.durable.pack import StoredMessage, encode_pack
from broker.store.logs.records import Pack, Position, encode
from tests.kafka_servers import skip_without_java
from tests.tools.faults.applications.logs import Records, Snapshot, all_messages, missing
from tests.tools.faults.applications.plan import KAFKA_LOG, LOGS, REDIS_LOG, certain, plan
from tests.tools.faults.applications.run import ApplicationRun, last_deliveries
from tests.tools.faults.durable.__main__ import report
from tests.tools.faults.durable.checker import OVERDUE
from tests.tools.faults.durable.history import Connected, Connecting, Ended, Received
from tests.tools.faults.durable.plan import EMBEDDED
from tests.tools.faults.durable.power import compiler

ERA = b"the  era"
OTHER = b"another "
SOURCE = 7


@pytest.fixture
def folder() -> Iterator[Path]:
    """One whose sockets have short paths."""
    path = Path(tempfile.mkdtemp(prefix="weir-"))
    yield path
    shutil.rmtree(path)


@pytest.mark.skipif(compiler() is None, reason="there is no C compiler")
@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize(("log", "seed"), [(REDIS_LOG, 1), (KAFKA_LOG, 2)])
def test_application_clients_lose_nothing_whatever_is_harmed(folder: Path, log: str, seed: int) -> None:
    """A message that was acknowledged would be lost or doubled with a process, or with a connection to the log."""
    if log == KAFKA_LOG:
        skip_without_java()
    outcome = ApplicationRun(folder, seed, 2, len(certain(log)), brisk=True, log=log).go()

    print(report(outcome))  # with the seed, which a failure needs
    assert [] == outcome.failures
    assert outcome.figures["from logs"] > 0


@pytest.mark.parametrize("log", LOGS)
def test_a_run_has_each_fault_of_its_log(log: str) -> None:
    """A run could end well in which nothing happened to the carrier, or to Kafka."""
    for seed in range(20):
        planned = plan(Random(seed), log, EMBEDDED, POWER, 2, len(certain(log)), True)
        assert sorted(certain(log)) == sorted(each.kind for each in planned)
    assert plan(Random(5), log, EMBEDDED, POWER, 2, 30, False) == plan(Random(5), log, EMBEDDED, POWER, 2, 30, False)


# What is stored.


def message(number: int) -> Message:
    return Message(b"d/1", b"p %d" % number, 1, False, b"", NEVER)


def pack(*numbers: int, era: bytes = ERA) -> bytes:
    return encode_log_pack([message(number) for number in numbers], era, False, 0.0, 0.0)


def log_of(*records: tuple[int, ...]) -> Records:
    """Each record has one pack with messages of these numbers."""
    return [(offset, encode([Pack(SOURCE, offset + 1, pack(*numbers))])) for offset, numbers in enumerate(records)]


def snapshot(offset: int, passed: int, *queued: int, unfinished: tuple[int, ...], era: bytes = ERA) -> Snapshot:
    log = SAVED.pack(FORM, passed, era) + Position(offset).encode()
    stored = [StoredMessage(number, message(number)) for number in queued]
    queue = (encode_pack(QueuePack(0, 1, 100, 100, stored), 0.0, 0.0),) if stored else ()
    return Snapshot(1.0, "app-1", frozenset(("p", number) for number in unfinished), log, queue)


def test_a_position_that_has_passed_a_message_is_found() -> None:
    """A message that only a live worker knows of would seem to be stored."""
    records = log_of((1, 2), (3, 4))

    assert set() == missing(snapshot(0, 0, unfinished=(1, 2, 3, 4)), records)
    assert {("p", 2)} == missing(snapshot(1, 0, 1, unfinished=(1, 2, 3, 4)), records)
    assert set() == missing(snapshot(1, 0, 1, 2, unfinished=(1, 2, 3, 4)), records)
    assert {("p", 1)} == missing(snapshot(0, 1, unfinished=(1, 2, 3, 4)), records)


def test_nothing_is_said_of_a_session_whose_log_was_deleted() -> None:
    """What it had not got would seem to be lost."""
    assert set() == missing(snapshot(0, 0, unfinished=(1,), era=OTHER), log_of((1, 2)))


def test_a_message_counts_as_one_of_the_log_in_whichever_session_it_was_appended() -> None:
    """What a session got before it was begun anew would seem to have come from elsewhere."""
    records = log_of((1, 2))
    records.append((1, encode([Pack(SOURCE, 2, pack(3, era=OTHER))])))

    assert {("p", 1), ("p", 2), ("p", 3)} == all_messages(records)


def test_a_clean_start_without_an_answer_may_end_the_session_later() -> None:
    """What came to the session before would seem to come from elsewhere, as the log of that session is deleted."""

    def came(at: float, number: int) -> Received:
        return Received(at, "app", ("p", number), "d/1", 1, number)

    before = [Connecting(0.0, "app", False), Connected(1.0, "app", False), came(2.0, 1)]
    clean = Connecting(3.0, "app", True)
    again = [Connecting(5.0, "app", False), Connected(6.0, "app", True), came(7.0, 2), came(5.0 + OVERDUE, 3)]

    assert {"app": {("p", 1), ("p", 2), ("p", 3)}} == last_deliveries([*before, *again], ["app"])
    assert {"app": {("p", 3)}} == last_deliveries([*before, clean, Ended(4.0, "app"), *again], ["app"])
    answered = [*before, clean, Connected(4.0, "app", False), Ended(4.5, "app"), *again]
    assert {"app": {("p", 2), ("p", 3)}} == last_deliveries(answered, ["app"])
