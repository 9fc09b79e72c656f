# The bans of a node, as the supervisor keeps them.
from pathlib import Path

import pytest

from broker.control.frames import ChangeBans
from supervisor.bans import BanRefused, NodeBans
from tests.supervisor.test_limits import NOON, Lines


class Life:
    """A node's life: its clocks, its log, and what its workers were told."""

    def __init__(self, path: Path, monotonic: float = 100.0, wall: float = NOON) -> None:
        self.now = monotonic
        self.wall = wall
        self.log = Lines()
        self.told: list[ChangeBans] = []
        self.bans = NodeBans(path, self.log, self.told.append, lambda: self.now, lambda: self.wall)

    def ban(self, client: str, seconds: float = 60.0) -> None:
        self.bans.add("client", client, seconds, "jo (uid 7)", "floods since noon")

    def listed(self) -> list[tuple[object, object]]:
        return [(one["value"], one["left"]) for one in self.bans.listed()]

    def events(self) -> list[tuple[str, object]]:
        return [(event, facts.get("value")) for event, facts in self.log.lines]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bans"


def test_a_ban_is_sent_to_running_and_to_new_workers(path: Path) -> None:
    """A client would be kept out by some workers only, or until its worker is replaced."""
    life = Life(path)
    life.ban("one")
    life.ban("two", 5.0)

    assert [["one"], ["two"]] == [[each["value"] for each in told.bans] for told in life.told]
    assert [("two", 105.0), ("one", 160.0)] == [(each["value"], each["until"]) for each in life.bans.holding()]


def test_a_ban_that_has_ended_is_sent_once_and_stored_nowhere(path: Path) -> None:
    """Workers and the file would keep ended bans for ever, or a client stay out for longer than was asked."""
    life = Life(path)
    life.ban("removed")
    life.ban("ended", 5.0)
    assert life.bans.remove("client", "removed", "eve (uid 8)")
    assert not life.bans.remove("client", "removed", "eve (uid 8)")
    life.now += 5.0
    life.bans.expire_due()
    life.bans.expire_due()

    assert [[], [], [["client", "removed"]], [["client", "ended"]]] == [told.ended for told in life.told]
    assert ([], [], "") == (life.bans.listed(), life.bans.holding(), path.read_text())
    events = [("ban_added", "removed"), ("ban_added", "ended"), ("ban_removed", "removed"), ("ban_expired", "ended")]
    assert events == life.events()


def test_bans_outlive_the_node(path: Path) -> None:
    """After a restart a banned client would be let in, or be kept out for longer than was asked."""
    before = Life(path)
    before.ban("long", 60.0)
    before.ban("short", 20.0)
    after = Life(path, monotonic=5.0, wall=NOON + 30.0)

    assert [("long", 30.0)] == after.listed()
    assert [("ban_expired", "short")] == after.events()
    assert [("long", 30.0)] == Life(path, monotonic=5.0, wall=NOON + 30.0).listed()


def test_a_clock_that_was_set_back_does_not_prolong_a_ban(path: Path) -> None:
    """A client would be kept out for as long as the clock was wrong."""
    Life(path).ban("one", 60.0)

    assert [("one", 60.0)] == Life(path, wall=NOON - 86_400.0).listed()


def test_lines_that_are_no_bans_cost_no_others(path: Path) -> None:
    """A slip of an editor would let everybody in, or keep the node from starting."""
    Life(path).ban("one")
    path.write_text('{"kind": "client"}\nnonsense\n[]\n' + path.read_text())
    life = Life(path)

    assert [("one", 60.0)] == life.listed()
    assert ["bans_line_invalid"] * 3 == [event for event, _ in life.log.lines]
    assert 1 == len(path.read_text().splitlines())


def test_a_ban_that_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    """An administrator would rely on a ban that the next start does not know."""
    life = Life(tmp_path / "missing" / "bans")

    with pytest.raises(BanRefused, match="Nothing was changed"):
        life.ban("one")
    assert ([], []) == (life.bans.listed(), life.told)
