# A publish to a crowd, which is served in pages while receivers come and go.
import pytest

from broker.metrics.counters import Counters
from broker.mqtt.packets import V5
from broker.reasons import DropReason
from broker.routing.fanout import PAGE, PagedPublish
from broker.session.message import NEVER, Message
from broker.session.origin import NOWHERE
from broker.session.run import Run
from tests.routing.party import Party
from tests.session.receiver import NOW, message

CROWD = 2 * PAGE + 100


def fan_out(party: Party, copies: int = 0, counters: Counters | None = None) -> PagedPublish:
    """A publish to "t": a message, or a run of so many *copies*."""
    if copies:
        data = message(b"x", topic=b"t").whole(V5, NOW)
        run = Run(data * copies, V5, copies, b"t", copies, len(data))
        return PagedPublish(party.routes.find(b"t"), None, run, None, None, False, NOWHERE, counters or Counters(), NOW)
    sent = Message(b"t", b"x", 0, False, b"", NEVER)
    return PagedPublish(party.routes.find(b"t"), sent, None, None, None, False, NOWHERE, counters or Counters(), NOW)


def served(party: Party) -> dict[str, int]:
    """The copies that each client got since the last time, without those who got none."""
    counts = {name: len(client.payloads()) for name, client in party.clients.items()}
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize("copies", [0, 2])
def test_a_page_is_full_however_small_the_groups_are(copies: int) -> None:
    """A crowd with subscription identifiers of its own would be served one at a time, or all in one go."""
    party = Party()
    for number in range(1, 128):
        for each in range(5):
            party.subscribe(f"{number}-{each}", b"t", identifier=number)
    publish = fan_out(party, copies)
    pages = []
    while publish.step(NOW):
        pages.append(len(served(party)))

    assert [PAGE, 127 * 5 - PAGE] == pages


@pytest.mark.parametrize("copies", [0, 1])
def test_those_who_leave_between_pages_are_left_out(copies: int) -> None:
    """A receiver would be served after it left, or others be skipped or served twice because of it."""
    party = Party()
    for number in range(CROWD):
        party.subscribe(f"{number}", b"t")
    publish = fan_out(party, copies)
    assert publish.step(NOW)
    first = served(party)
    gone = {f"{number}" for number in range(0, CROWD, 5)}
    for name in gone:
        party.unsubscribe(name, b"t")
    while publish.step(NOW):
        pass

    assert PAGE == len(first)
    assert dict.fromkeys(party.clients.keys() - gone - first.keys(), 1) == served(party)


def test_those_who_stay_are_served_once_though_their_group_is_replaced() -> None:
    """A receiver would be skipped or served twice because most of the others left."""
    party = Party()
    for number in range(CROWD):
        party.subscribe(f"{number}", b"t")
    publish = fan_out(party)
    assert publish.step(NOW)
    first = served(party)
    stay = {f"{number}" for number in range(0, CROWD, 5)}
    for name in party.clients.keys() - stay:
        party.unsubscribe(name, b"t")
    while publish.step(NOW):
        pass

    later = served(party)
    assert len(party.routes.find(b"t").groups[0].sessions) < CROWD
    assert first.keys().isdisjoint(later)
    assert {1} == set(later.values())
    assert stay <= first.keys() | later.keys()


def test_who_comes_between_pages_does_not_get_what_was_published_before() -> None:
    """A new subscriber would get a message twice: retained, and with the fan-out of the same message."""
    party = Party()
    for number in range(CROWD):
        party.subscribe(f"{number}", b"t")
    publish = fan_out(party)
    publish.step(NOW)
    party.subscribe("late", b"t")
    party.subscribe("other", b"t", identifier=1)
    while publish.step(NOW):
        pass

    assert {f"{number}": 1 for number in range(CROWD)} == served(party)
    assert {"late", "other"} <= party.publish(b"t").keys()


@pytest.mark.parametrize("copies", [0, 2])
def test_many_shared_groups_are_served_in_pages_too(copies: int) -> None:
    """A client with thousands of share names would hold the worker with one publish, or a group be served twice."""
    party = Party()
    for number in range(PAGE + 1):
        party.subscribe("a", b"t", share=b"%d" % number)
    publish = fan_out(party, copies)
    pages = []
    while publish.step(NOW):
        pages.append(served(party)["a"])

    each = max(1, copies)
    assert each * (PAGE + 1) == sum(pages)
    assert PAGE == pages[0]


def test_a_group_without_a_member_that_may_have_it_is_counted() -> None:
    """Messages of a large publish would be lost without a word."""
    party = Party()
    for number in range(3):
        party.subscribe("a", b"t", share=b"%d" % number)
    counters = Counters()
    publish = fan_out(party, counters=counters)
    party.client("a").session.detach()
    while publish.step(NOW):
        pass

    assert 3 == counters.dropped_by_reason[DropReason.NO_SHARED_MEMBER.label]
