# Work that a worker does again and again.
from functools import partial

import pytest
import trio
import trio.testing

from broker.control import periodic
from broker.control.periodic import as_due, at_once_and_every, at_whole, every


async def test_a_job_is_called_after_each_interval(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """Housekeeping would be done once, or all the time."""
    began = trio.current_time()
    times: list[float] = []
    nursery.start_soon(every, 2.0, lambda: times.append(trio.current_time() - began))
    await trio.sleep(7)

    assert [2.0, 4.0, 6.0] == times


async def test_a_job_can_say_when_it_is_to_be_called_again(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """Clients of a node that is drained would leave in bursts, or an idle worker look fifty times a second."""
    began = trio.current_time()
    times: list[float] = []

    def job() -> float:
        times.append(trio.current_time() - began)
        return float(len(times))

    nursery.start_soon(as_due, job)
    await trio.sleep(7)

    assert [0.0, 1.0, 3.0, 6.0] == times


async def test_a_job_can_be_called_at_once_and_after_each_interval(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """$SYS would be empty for the first ten seconds."""
    began = trio.current_time()
    times: list[float] = []
    nursery.start_soon(at_once_and_every, 2.0, lambda: times.append(trio.current_time() - began))
    await trio.sleep(5)

    assert [0.0, 2.0, 4.0] == times


class WallClock:
    """A wall clock that is *ahead* seconds ahead of trio's, and stands *slow* times as fast."""

    def __init__(self, ahead: float, speed: float) -> None:
        self._ahead = ahead
        self._speed = speed
        self._began = trio.current_time()

    def time(self) -> float:
        return self._ahead + (trio.current_time() - self._began) * self._speed


@pytest.mark.parametrize("speed", [1.0, 0.9, 1.1])
async def test_the_metrics_record_is_written_once_in_each_whole_interval(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, speed: float
) -> None:
    """A window of the analysis would have two records of a worker, or none."""
    monkeypatch.setattr(periodic, "time", WallClock(1000.3, speed))
    walls: list[float] = []
    nursery.start_soon(partial(at_whole, 1.0, walls.append))
    await trio.sleep(20)

    assert walls
    assert list(range(1001, 1001 + len(walls))) == [round(wall) for wall in walls]
    assert all(abs(wall - round(wall)) < 0.2 for wall in walls)
