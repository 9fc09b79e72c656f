# Which groups of APPLICATION clients are looked at, and when.
from typing import Any, Final, cast

import pytest

from broker.store.durable.group_looks import AT_ONCE, LOOK, POLL, GroupLooks
from broker.store.durable.shared_readers import ReadGroup
from broker.store.durable.shared_topics import SharedTopic

pytestmark = pytest.mark.interpreted

START: Final = 1000.0
MEMBER: Final = cast(Any, None)


class Group(ReadGroup):
    def __init__(self, number: int) -> None:
        super().__init__(b"$share/%d/t" % number, SharedTopic(b"t"), cast(Any, None), cast(Any, None), None, 1.0)
        self.members = {MEMBER: MEMBER}
        self.looks = self.polls = 0
        self.changes = False  # a look finds that it may change soon

    def look(self, now: float) -> bool:
        self.looks += 1
        self.polls += self.due
        self.due = False
        return self.changes


def groups(count: int) -> dict[bytes, ReadGroup]:
    made = [Group(number) for number in range(count)]
    return {group.digest: group for group in made}


def each(found: dict[bytes, ReadGroup]) -> list[Group]:
    return [group for group in found.values() if isinstance(group, Group)]


def run(looks: GroupLooks, found: dict[bytes, ReadGroup], seconds: float, now: float = START) -> list[int]:
    """How many looks there are at each time, from *now* on."""
    counts: list[int] = []
    end = now + seconds
    while now < end:
        before = sum(group.looks for group in each(found))
        due = looks.tick(found, now)
        counts.append(sum(group.looks for group in each(found)) - before)
        assert due > now
        now = min(due, end)
    return counts


@pytest.mark.parametrize("count", [1, 59, 61, 1000])
def test_groups_that_are_idle_are_looked_at_now_and_then(count: int) -> None:
    """A thousand groups would take some per cent of a core; or a notice that was lost would be missed for good."""
    found, looks = groups(count), GroupLooks()
    counts = run(looks, found, 10 * POLL)

    assert all(9 <= group.polls <= 21 for group in each(found))
    assert max(counts) <= count * LOOK / POLL + 1
    assert len(counts) <= 10 * POLL / LOOK + 1


def test_a_group_whose_members_may_become_stuck_is_looked_at_often() -> None:
    """The work of a member that is stuck would wait for it."""
    found, looks = groups(100), GroupLooks()
    first, *others = each(found)
    first.changes = True
    assert looks.watch(first)
    assert not looks.watch(first)
    run(looks, found, 1.0)
    assert first.looks >= 1.0 / LOOK - 1
    assert all(group.looks <= 1 for group in others)
    first.changes = False
    run(looks, found, 2 * LOOK, START + 1.0)
    first.looks = 0
    run(looks, found, 1.0, START + 1.0 + 2 * LOOK)

    assert first.looks <= 1


def test_groups_that_are_looked_at_often_take_turns() -> None:
    """Thousands of groups at work would hold up the clients of their worker."""
    found, looks = groups(2 * AT_ONCE + 100), GroupLooks()
    for group in each(found):
        group.changes = True
        looks.watch(group)
    counts = run(looks, found, 1.0)

    assert max(counts) <= AT_ONCE + len(found) * LOOK / POLL + 1
    assert min(group.looks for group in each(found)) >= 5, "20 times AT_ONCE looks are 9 for each"


def test_a_group_without_members_is_not_looked_at() -> None:
    """It would be kept for good."""
    found, looks = groups(3), GroupLooks()
    first, second, third = each(found)
    looks.tick(found, START)
    for group in (first, second):
        looks.soon(group)
        looks.watch(group)
        group.changes = True
        del found[group.digest]
        group.members = {}
        looks.forget(group)
    assert not looks.has_work()
    first.looks = second.looks = 0
    run(looks, found, 2 * POLL, START + LOOK)

    assert 0 == first.looks + second.looks
    assert third.looks
