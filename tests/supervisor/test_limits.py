# The overrides of single clients, as the supervisor keeps them.
import json
from pathlib import Path

import pytest
import trio
import trio.testing

from broker.control.frames import ChangeLimits
from broker.overload.quotas.overrides import limit_from
from supervisor.limits import ClientLimits, LimitRefused

NOON = 1.7e9  # a time of the day


class Lines:
    """A log whose lines are looked at."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **facts: object) -> None:
        self.lines.append((event, facts))

    warning = error = info

    def events(self) -> list[object]:
        return [(event, facts.get("client")) for event, facts in self.lines]


class Life:
    """A node's life: its clocks, its log, and what its workers were told."""

    def __init__(self, path: Path, monotonic: float = 100.0, wall: float = NOON) -> None:
        self.now = monotonic
        self.wall = wall
        self.log = Lines()
        self.told: list[ChangeLimits] = []
        self.limits = ClientLimits(path, self.log, self.told.append, lambda: self.now, lambda: self.wall)

    def set(self, client: str, seconds: float = 60.0, rate: str = "10:1", exempt: bool = False) -> None:
        self.limits.set(client, rate, exempt, seconds, "jo (uid 7)", "floods since noon")

    def listed(self) -> list[tuple[object, object]]:
        return [(one["client"], one["left"]) for one in self.limits.listed()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits"


def test_an_override_is_sent_to_running_and_to_new_workers(path: Path) -> None:
    """A client would be limited at some workers only, or until its worker is replaced."""
    life = Life(path)
    life.set("one", rate="10:1, 50:60")
    life.set("two", 5.0, rate="", exempt=True)

    assert [["one"], ["two"]] == [[each["client"] for each in told.limits] for told in life.told]
    assert [[], []] == [told.ended for told in life.told]
    holding = [limit_from(facts, facts["until"]) for facts in life.limits.holding()]
    assert [("two", "", True, 105.0), ("one", "10:1,50:60", False, 160.0)] == [
        (each.client_id, each.rate, each.exempt, each.until) for each in holding
    ]
    assert life.told[0].limits == life.limits.holding()[1:]


def test_the_log_names_the_user_the_client_the_time_and_the_reason(path: Path) -> None:
    """An operator could not find out which user had throttled a client, and why."""
    life = Life(path)
    life.set("one")
    life.set("one", 5.0, rate="", exempt=True)
    life.set("two")
    life.limits.drop("two", "eve (uid 8)")
    life.now += 5.0
    life.limits.expire_due()
    life.limits.expire_due()

    first, second, _, dropped, ended = life.log.lines
    why = "floods since noon"
    limited = {"client": "one", "rate": "10:1", "protection": True, "why": why}
    exempted = {"client": "one", "rate": "", "protection": False, "why": why}
    assert ("limit_set", {**limited, "seconds": 60.0, "by": "jo (uid 7)", "replaces": False}) == first
    assert ("limit_set", {**exempted, "seconds": 5.0, "by": "jo (uid 7)", "replaces": True}) == second
    assert ("limit_removed", {**limited, "client": "two", "by": "eve (uid 8)", "set_by": "jo (uid 7)"}) == dropped
    assert ("limit_expired", {**exempted, "set_by": "jo (uid 7)"}) == ended


def test_an_override_that_has_ended_is_sent_once_and_stored_nowhere(path: Path) -> None:
    """Workers and the file would keep ended overrides for ever."""
    life = Life(path)
    life.set("dropped")
    life.set("ended", 5.0)
    assert life.limits.drop("dropped", "eve")
    assert not life.limits.drop("dropped", "eve")
    life.now += 5.0
    assert not life.limits.drop("ended", "eve")

    assert [[], [], ["dropped"], ["ended"]] == [told.ended for told in life.told]
    assert ([], [], "") == (life.limits.listed(), life.limits.holding(), path.read_text())


def test_overrides_outlive_the_node(path: Path) -> None:
    """After a restart a throttled client would be free, or be throttled for longer than was asked."""
    before = Life(path)
    before.set("long", 60.0)
    before.set("short", 20.0)
    before.set("dropped")
    before.limits.drop("dropped", "eve")
    after = Life(path, monotonic=5.0, wall=NOON + 30.0)

    assert [("long", 30.0)] == after.listed()
    assert [35.0] == [one["until"] for one in after.limits.holding()]
    assert [("limit_expired", "short")] == after.log.events()
    assert [] == Life(path, monotonic=5.0, wall=NOON + 30.0).log.events()  # it is said once
    assert before.limits.listed()[-1]["reason"] == after.limits.listed()[0]["reason"]


def test_a_clock_that_was_set_back_prolongs_no_override(path: Path) -> None:
    """An exemption for an hour would hold for a day after a restart."""
    Life(path).set("one", 60.0)

    assert [("one", 60.0)] == Life(path, wall=NOON - 86_400.0).listed()


def test_a_damaged_line_is_skipped_and_logged(path: Path) -> None:
    """A node could not start because of the line, or no log line would say that an override is missing."""
    life = Life(path)
    for name in ("first", "second", "third", "fourth"):
        life.set(name)
    lines = path.read_text().splitlines()
    never = json.dumps({**json.loads(lines[2]), "rate": "0:1"})
    unspeakable = json.dumps({**json.loads(lines[2]), "by": "\ud800"})
    damaged = [
        lines[0],
        "[]",
        never,
        unspeakable,
        lines[1][:-3],
        '{"client": "x"}',
        "\N{REPLACEMENT CHARACTER}",
        lines[3],
    ]
    path.write_text("\n".join(damaged), "utf-8")
    after = Life(path)

    assert ["first", "fourth"] == [name for name, _ in after.listed()]
    assert [("limits_line_invalid", line) for line in range(2, 8)] == [
        (event, facts["line"]) for event, facts in after.log.lines
    ]


@pytest.mark.parametrize(
    ("rate", "exempt", "seconds", "sentence"),
    [
        ("0/s", False, 60.0, 'rate = "0/s" is not valid: it must be of whole counts from 1 to 1099511627776.'),
        ("fast", False, 60.0, 'rate = "fast" is not valid: it must be a rate such as "100/s" or "100:1,5000:60".'),
        ("", False, 60.0, "The limit of one changes nothing: give it a rate, or exempt it."),
        ("", True, 0.0, "The limit of one must end within 30 days."),
        ("", True, float("nan"), "The limit of one must end within 30 days."),
    ],
)
def test_an_invalid_override_is_refused_and_changes_nothing(
    path: Path, rate: str, exempt: bool, seconds: float, sentence: str
) -> None:
    """A client would have no override, or a valid one be replaced by an invalid one."""
    life = Life(path)
    life.set("one")
    before = life.limits.listed(), path.read_text()
    with pytest.raises(LimitRefused) as refused:
        life.set("one", seconds, rate, exempt)

    assert sentence == str(refused.value)
    assert before == (life.limits.listed(), path.read_text())
    assert 1 == len(life.told)


def test_an_override_that_cannot_be_stored_is_refused(path: Path) -> None:
    """The next restart would lose the override without a word."""
    life = Life(path)
    life.set("one")
    path.with_suffix(".new").mkdir()
    for change in (lambda: life.set("two"), lambda: life.limits.drop("one", "eve")):
        with pytest.raises(LimitRefused, match=r"^Nothing was changed, as .* cannot be written: .*\.$"):
            change()
    life.now += 60.0
    life.limits.expire_due()

    assert [("limit_set", "one"), ("limit_expired", "one"), ("limits_write_failed", None)] == life.log.events()
    assert [1, 0] == [len(told.limits) for told in life.told]


async def test_an_override_is_logged_when_it_expires(path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """The log would report the expiry late or never, or the supervisor check all the time."""
    began = trio.current_time()
    log = Lines()
    told: list[tuple[float, list[str]]] = []

    def send(change: ChangeLimits) -> None:
        told.append((round(trio.current_time() - began, 3), change.ended))

    limits = ClientLimits(path, log, send, trio.current_time, lambda: NOON)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limits.watch)
        await trio.sleep(1.0)
        for client, seconds in (("long", 500.0), ("short", 50.0), ("dropped", 5.0)):
            limits.set(client, "10:1", False, seconds, "jo", "test")
        limits.drop("dropped", "jo")
        await trio.sleep(1000.0)
        nursery.cancel_scope.cancel()

    assert [(1.0, ["dropped"]), (51.0, ["short"]), (501.0, ["long"])] == [one for one in told if one[1]]
