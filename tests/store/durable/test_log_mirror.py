# What the tools of Kafka see of how far an APPLICATION session has read its log.
import pytest

from broker.store.durable.log_mirror import AFRESH, EVERY
from broker.store.durable.log_topics import group_of, topic_of
from tests.store.durable.durable_worker import CLIENT, DurableWorker
from tests.store.durable.model import ModelRedis
from tests.store.durable.model_log import ModelLog

pytestmark = pytest.mark.interpreted

TOPIC = topic_of(CLIENT)


@pytest.fixture
def worker() -> DurableWorker:
    """Its client has connected."""
    made = DurableWorker(ModelRedis(), log=ModelLog())
    made.connect()
    made.settle()
    return made


def told(worker: DurableWorker) -> list[int]:
    """The offsets that were told since the last call."""
    reached, worker.link.reached = worker.link.reached, []
    assert {(group_of(TOPIC), TOPIC, 0)} >= {one[:3] for one in reached}
    return [offset for *_, offset in reached]


def records(worker: DurableWorker, count: int) -> None:
    """Have *count* messages come, each in a record of its own."""
    for _ in range(count):
        worker.offer(b"x")
        worker.settle()


def test_nothing_that_is_told_is_not_acknowledged(worker: DurableWorker) -> None:
    """Who goes on at that offset would leave out what the client has not acknowledged (TBMQ, issue 320)."""
    records(worker, 3)
    worker.pass_time(2 * EVERY)
    assert [0] == told(worker)
    assert worker.session.puback(1, worker.now) and worker.session.puback(3, worker.now)
    worker.pass_time(2 * EVERY)
    assert [] == told(worker)
    assert worker.session.puback(2, worker.now)
    worker.pass_time(2 * EVERY)

    assert [3] == told(worker)


def test_what_is_told_keeps_up_with_a_client_that_always_has_something_to_do(worker: DurableWorker) -> None:
    """The lag would grow for as long as messages come."""
    found: list[int] = []
    records(worker, 2)
    for packet_id in range(1, 21):
        records(worker, 1)
        assert worker.session.puback(packet_id, worker.now)
        worker.pass_time(EVERY)
        found += told(worker)

    assert sorted({*found}) == found
    assert found[-1] >= 18


def test_how_far_a_client_has_come_is_told_when_it_leaves(worker: DurableWorker) -> None:
    """The tools would show a lag that it does not have, until it is back."""
    records(worker, 2)
    worker.client.acknowledge()
    worker.settle()
    worker.disconnect()
    worker.settle()
    assert 2 == told(worker)[-1]
    worker.offer(b"x")
    worker.pass_time(3 * EVERY)

    assert [] == told(worker)


def test_nothing_is_told_twice_but_to_the_next_carrier_and_after_a_day(worker: DurableWorker) -> None:
    """A thousand idle services would have Kafka write all the time; or be forgotten."""
    worker.pass_time(10 * EVERY)
    assert [0] == told(worker)
    worker.link.restart()
    worker.pass_time(2 * EVERY)
    assert [0] == told(worker)
    worker.tick(AFRESH)
    worker.pass_time(2 * EVERY)

    assert [0] == told(worker)
