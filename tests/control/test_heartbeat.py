import mmap

import pytest
import trio
import trio.testing

from broker.config.schema import Config, Metrics, Sys
from broker.control import heartbeat
from broker.control.heartbeat import DRAINING, SERVING, Heartbeat
from broker.worker import Worker
from tests.inprocess import serve


@pytest.fixture
def page() -> mmap.mmap:
    return mmap.mmap(-1, 3 * heartbeat.SLOT)


def test_each_worker_has_a_slot_of_its_own(page: mmap.mmap) -> None:
    """A live worker would hide a dead one."""
    workers = [Heartbeat(page, shard, (1 << 64) - 1 - shard) for shard in range(3)]
    for number, worker in enumerate(workers):
        worker.enter(SERVING, 10.5 + number)
    heartbeat.clear(page, 1)

    found = [heartbeat.read(page, shard) for shard in range(3)]

    assert [((1 << 64) - 1, 10.5, SERVING), (0, 0.0, 0), ((1 << 64) - 3, 12.5, SERVING)] == found


async def test_the_loop_stamps_ten_times_a_second_though_nothing_happens(
    page: mmap.mmap, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """An idle worker would be taken for a dead one."""
    autojump_clock.autojump_threshold = 0.01
    stamps = Heartbeat(page, 0, 7)
    worker = Worker(Config(sys=Sys(interval=0.0)), 100, trio.current_time, heartbeat=stamps)
    stamps.enter(SERVING, trio.current_time())
    stopping = trio.Event()
    nursery.start_soon(serve, worker, stopping)

    for _ in range(10):
        await trio.sleep(0.1)
        incarnation, stamped, phase = heartbeat.read(page, 0)
        assert trio.current_time() - stamped < 0.11
        assert (7, SERVING) == (incarnation, phase)
    stopping.set()
    await trio.sleep(0.1)

    assert DRAINING == heartbeat.read(page, 0)[2]
    worker.close()


async def test_what_an_idle_worker_does_is_done_at_the_same_times(
    page: mmap.mmap, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """The heartbeat and the level, each ten times a second at times of its own, would wake it twice as often."""
    autojump_clock.autojump_threshold = 0.01
    config = Config(sys=Sys(interval=0.0), metrics=Metrics(interval=60.0))  # whose seconds are the wall's, and go on
    worker = Worker(config, 100, trio.current_time, heartbeat=Heartbeat(page, 0, 7))
    nursery.start_soon(serve, worker, trio.Event())
    await trio.sleep(0.25)
    before = worker.loop.statistics.slices

    await trio.sleep(2.0)

    assert 20 <= worker.loop.statistics.slices - before <= 24
    nursery.cancel_scope.cancel()
    worker.close()
