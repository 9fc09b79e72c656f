# The hybrid clock: stamps rise whatever wall time does, and one wrong clock does not spoil the others.
import itertools

from hypothesis import given
from hypothesis import strategies as st

from broker.routing.hybrid_clock import FOLLOWED, WRITER_BITS, WRITER_MASK, HybridClock, writer_of
from broker.worker_id import WorkerId

NOW = 1_800_000_000.0  # a Unix time
HOUR = 3600.0


class Wall:
    """Wall time that a test sets."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def clock(shard: int = 0, wall: Wall | None = None, node: str = "weir", incarnation: int = 1) -> HybridClock:
    return HybridClock(WorkerId(node, shard, incarnation), wall or Wall())


def seconds_of(stamp: int) -> float:
    return (stamp >> WRITER_BITS) / 1e6


def test_a_stamp_is_wall_time() -> None:
    """After a reboot every write would lose against what was stored before it."""
    wall = Wall()
    one = clock(wall=wall)
    first = one.stamp()
    wall.now += HOUR

    assert NOW == seconds_of(first)
    assert NOW + HOUR == seconds_of(one.stamp())


@given(st.lists(st.floats(-HOUR * 24, HOUR * 24), min_size=2, max_size=20))
def test_stamps_rise_while_wall_time_jumps_both_ways(jumps: list[float]) -> None:
    """The later of two writes would lose when NTP or an administrator sets the clock back."""
    wall = Wall()
    one = clock(wall=wall)
    stamps = []
    for jump in jumps:
        wall.now += jump
        stamps += [one.stamp(), one.stamp()]

    assert all(before < after for before, after in itertools.pairwise(stamps))


def test_after_a_step_back_the_clock_stands_until_wall_time_has_caught_up() -> None:
    """Stamps would run ahead of wall time for ever."""
    wall = Wall()
    one = clock(wall=wall)
    one.stamp()
    wall.now -= HOUR
    assert NOW + 1e-6 == seconds_of(one.stamp())
    wall.now += 2 * HOUR
    assert NOW + HOUR == seconds_of(one.stamp())


def test_a_write_after_a_followed_one_has_the_greater_stamp() -> None:
    """A write that was made after another was seen would lose against it."""
    ahead, behind = clock(1, Wall(NOW + 5)), clock(2)
    first = ahead.stamp()
    behind.follow(first)

    assert first < behind.stamp()
    assert 0 == behind.not_followed


def test_following_an_older_stamp_changes_nothing() -> None:
    """The clock would go back."""
    old = clock(1, Wall(NOW - 5)).stamp()
    one = clock(2)
    before = one.stamp()
    one.follow(old)

    assert before < one.stamp()


def test_a_clock_far_ahead_drags_nobody_along() -> None:
    """One worker with a wrong clock would put the stamps of the whole cluster years ahead, for good."""
    wrong = clock(1, Wall(NOW + 100 * 365 * 24 * HOUR))
    one = clock(2)
    one.follow(wrong.stamp())
    assert (NOW, 1) == (seconds_of(one.stamp()), one.not_followed)

    limit = clock(3, Wall(NOW + FOLLOWED / 1e6)).stamp()
    one.follow(limit)
    assert limit < one.stamp()


def test_what_replaces_a_write_of_the_future_wins_over_it() -> None:
    """A topic that a wrong clock wrote to could not be written again until that time has come."""
    wrong = clock(1, Wall(NOW + 1000 * HOUR)).stamp()
    one = clock(2)
    one.follow(wrong)
    replacing = one.stamp(after=wrong)
    again = one.stamp(after=replacing)

    assert wrong < replacing < again
    assert seconds_of(one.stamp()) < NOW + 1  # the clock itself stays with wall time


def test_stamps_of_the_same_moment_differ_by_their_writer() -> None:
    """Two workers would each keep its own write, for ever."""
    stamps = [clock(1), clock(2), clock(1, node="other"), clock(1, incarnation=2)]
    made = {one.stamp() for one in stamps}

    assert 4 == len(made)
    assert {NOW} == {seconds_of(stamp) for stamp in made}


def test_a_stamp_names_its_writer() -> None:
    """A newcomer would be told a write by nobody, or by everybody."""
    worker = WorkerId("weir", 7, 99)

    assert writer_of(worker) == HybridClock(worker, Wall()).stamp() & WRITER_MASK
    assert writer_of(worker) != writer_of(WorkerId("weir", 7, 100))
