import pytest

from broker.mqtt.packets import V5, Publish
from broker.mqtt.properties import SUBSCRIPTION_IDENTIFIER
from broker.routing.shared import CHECKS, FEW_CHECKS, SharedGroup
from broker.session.message import NEVER, Message
from tests.routing.party import Party
from tests.session.receiver import NOW, Receiver, message


def group(party: Party) -> SharedGroup:
    (shared,) = party.routes.find(b"t").shared
    return shared


def chosen(party: Party, qos: int) -> str | None:
    """The client that the next message goes to, or waits for."""
    before = {name: _handed(client) for name, client in party.clients.items()}
    group(party).deliver(Message(b"t", b"", qos, False, b"", NEVER), NOW)
    names = [name for name, client in party.clients.items() if _handed(client) != before[name]]
    assert len(names) <= 1
    return names[0] if names else None


def _handed(client: Receiver) -> int:
    return client.counters.publishes_sent + client.session.waiting()


def make_slow(party: Party, name: str) -> None:
    """*name* has a connection that is over its high watermark."""
    party.client(name).connect(V5, high=10).offer(message(b"x" * 20))


def fill_window(party: Party, name: str) -> None:
    """*name* does not acknowledge what it has."""
    party.client(name).connect(V5, window=1).offer(message(b"", 1))


def three(*, expiry: int = 0, pending: int = 1000) -> Party:
    party = Party()
    for name in "abc":
        party.client(name, expiry=expiry, pending=pending)
        party.subscribe(name, b"t", share=b"g")
    return party


def test_members_take_turns() -> None:
    """One member would do all the work, or all of them the same work (4.8.2)."""
    party = three()

    assert [{"a": 1}, {"b": 1}, {"c": 1}, {"a": 1}] == [party.publish(b"t") for _ in range(4)]


def test_each_share_name_and_filter_is_a_group_of_its_own() -> None:
    """Groups would take each other's messages (4.8.2)."""
    party = Party()
    for share in (b"g", b"h"):
        for filter in (b"t", b"+"):
            for name in ("a", "b"):
                party.subscribe(f"{name}{share!r}{filter!r}", filter, share=share)
    party.subscribe("plain", b"t")

    assert 5 == len(party.publish(b"t"))
    assert (1, 5, 4) == party.routes.statistics()


@pytest.mark.parametrize("filter", [b"t", b"+", b"t/#"])
def test_members_come_and_go_without_a_gap(filter: bytes) -> None:
    """A message would go to a member that left, to nobody, or not to the first that came."""
    party = Party()
    assert {} == party.publish(b"t")
    party.subscribe("a", filter, share=b"g")
    assert {"a": 1} == party.publish(b"t")
    route = party.routes.find(b"t")
    party.subscribe("b", filter, share=b"g")
    assert route is party.routes.find(b"t")
    assert [{"a": 1}, {"b": 1}] == [party.publish(b"t") for _ in range(2)]

    party.unsubscribe("b", b"$share/g/" + filter)
    assert [{"a": 1}] * 2 == [party.publish(b"t") for _ in range(2)]
    party.unsubscribe("a", b"$share/g/" + filter)
    assert {} == party.publish(b"t")
    assert [] == party.routes.find(b"t").shared
    assert (1, 0, 0) == party.routes.statistics()


def test_a_client_with_both_kinds_of_subscription_gets_both_copies() -> None:
    """A shared subscription would be merged with the client's own (4.8.2)."""
    party = Party()
    party.subscribe("a", b"t", share=b"g")
    party.subscribe("a", b"t")

    assert {"a": 2} == party.publish(b"t")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_slow_member_is_passed_over(qos: int) -> None:
    """A slow member would cost the group its messages, or their time."""
    party = three()
    make_slow(party, "b")

    assert ["a", "c", "a", "c"] == [chosen(party, qos) for _ in range(4)]


def test_a_full_window_waits_only_where_all_are_full() -> None:
    """A member that does not acknowledge would hold messages that another could have."""
    party = three()
    fill_window(party, "a")
    fill_window(party, "b")
    assert ["c", "c"] == [chosen(party, 1) for _ in range(2)]

    fill_window(party, "c")

    assert ["a", "b", "c", "a"] == [chosen(party, 1) for _ in range(4)]


def test_qos_0_needs_no_place_in_a_window() -> None:
    """A member that could take a message at once would be passed over, and the message dropped."""
    party = three()
    for name in "abc":
        fill_window(party, name)

    assert ["a", "b", "c"] == [chosen(party, 0) for _ in range(3)]


def test_a_member_that_would_refuse_is_passed_over() -> None:
    """A message would be dropped at a member whose list is full while another has room."""
    party = three(pending=2)
    for name in "abc":
        make_slow(party, name)
    party.client("a").offer(message(b"", 1), message(b"", 1))

    assert ["b", "c", "b", "c"] == [chosen(party, 1) for _ in range(4)]
    assert chosen(party, 1) is None


def test_a_connected_member_is_preferred_to_one_that_is_away() -> None:
    """Messages would wait for days although somebody is there."""
    party = three(expiry=60)
    make_slow(party, "b")
    for name in "ac":
        party.client(name).session.detach()
    assert ["b", "b"] == [chosen(party, 1) for _ in range(2)]

    party.client("b").session.detach()

    assert ["a", "c", "b"] == [chosen(party, 1) for _ in range(3)]


def test_qos_0_does_not_wait_for_a_member() -> None:
    """QoS 0 would be queued for a group, or be given to a member that drops it while it counts as delivered."""
    party = three(expiry=60)
    make_slow(party, "b")
    for name in "ac":
        party.client(name).session.detach()

    assert chosen(party, 0) is None
    assert not group(party).deliver(message(b"", 0), NOW)


def test_a_member_that_leaves_for_good_gets_nothing() -> None:
    """A client's own will would go to the session that ends with it, and be lost."""
    party = three()
    party.client("b").session.detach()

    assert ["a", "c", "a"] == [chosen(party, 1) for _ in range(3)]
    party.client("a").session.detach()
    party.client("c").session.detach()
    assert chosen(party, 1) is None


def test_a_message_is_delivered_as_its_member_subscribed() -> None:
    """A member would get another QoS than was granted [MQTT-4.8.2-3], or not learn by which subscription."""
    party = Party()
    party.subscribe("a", b"t", 2, share=b"g", as_published=True, identifier=9)
    party.subscribe("b", b"t", 2, share=b"g", as_published=True)
    party.subscribe("c", b"t", 2, share=b"g")
    party.subscribe("d", b"t", 1, share=b"g", as_published=True)
    sent = Message(b"t", b"payload", 2, True, b"", NEVER)

    assert all(group(party).deliver(sent, NOW) for _ in range(4))

    assert [
        Publish(b"t", b"payload", 2, True, False, 1, {SUBSCRIPTION_IDENTIFIER: [9]}),
        Publish(b"t", b"payload", 2, True, False, 1),
        Publish(b"t", b"payload", 2, False, False, 1),
        Publish(b"t", b"payload", 1, True, False, 1),
    ] == [packet for name in "abcd" for packet in party.client(name).take()]


def test_a_member_that_subscribes_again_is_there_once_and_at_once() -> None:
    """A member would get two turns, or wait to be looked at although it has just spoken."""
    party = three()
    make_slow(party, "b")
    assert ["a", "c"] == [chosen(party, 1) for _ in range(2)]
    party.client("b").connect(V5)
    party.subscribe("b", b"t", 0, share=b"g")

    assert ["a", "c", "b", "a", "c", "b"] == [chosen(party, 1) for _ in range(6)]
    party.unsubscribe("b", b"$share/g/t")
    assert ["a", "c", "a"] == [chosen(party, 1) for _ in range(3)]


@pytest.mark.parametrize("trouble", ["slow", "away"])
def test_a_few_quick_members_among_many_others_are_found(trouble: str) -> None:
    """A large group would drop messages or let them wait while some of its members are quick."""
    party = Party()
    count = 3 * CHECKS
    for number in range(count):
        party.client(f"{number}", expiry=60)
        party.subscribe(f"{number}", b"t", share=b"g")
    for number in range(count):
        if trouble == "slow":
            make_slow(party, f"{number}")
        else:
            party.client(f"{number}").session.detach()
    for _ in range(4):
        chosen(party, 1)  # nobody is quick: they are sorted out
    for name in ("7", "100"):
        party.client(name).connect(V5)

    turns = [chosen(party, 0) for _ in range(count)]

    assert {"7", "100"} == set(turns[-count // 2 :])
    assert abs(turns[-count // 2 :].count("7") - count // 4) <= 1


def test_a_member_that_takes_qos_0_only_does_not_wait() -> None:
    """A message would be put where it is dropped, though another member would keep it."""
    party = Party()
    for name, qos in (("a", 0), ("b", 1), ("c", 0)):
        party.subscribe(name, b"t", qos, share=b"g")
        make_slow(party, name)

    assert ["b", "b"] == [chosen(party, 2) for _ in range(2)]


def test_members_that_leave_one_by_one_leave_the_rest_in_turn() -> None:
    """The order of turns would break at the member that left, or its client be held in memory."""
    party = Party()
    for number in range(6):
        party.subscribe(f"{number}", b"t", share=b"g")
    make_slow(party, "1")
    assert ["0", "2", "3"] == [chosen(party, 1) for _ in range(3)]
    for name in ("4", "1", "0"):  # whose turn it is, a slow one, and the one before
        party.unsubscribe(name, b"$share/g/t")

    assert ["5", "2", "3", "5"] == [chosen(party, 1) for _ in range(4)]
    assert 3 == len(group(party))


def test_a_full_window_does_not_matter_to_who_takes_qos_0() -> None:
    """A member that is sent everything at QoS 0 would be passed over for a window that it does not need."""
    party = three()
    fill_window(party, "a")
    party.subscribe("a", b"t", 0, share=b"g")
    make_slow(party, "b")

    assert {"a", "c"} == {chosen(party, 1) for _ in range(2)}


@pytest.mark.parametrize("trouble", ["slow", "away"])
def test_whoever_is_back_is_found_at_once_when_nobody_else_is_there(trouble: str) -> None:
    """A message would be dropped although a member is there for it."""
    party = Party()
    names = [f"{number}" for number in range(5 * FEW_CHECKS)]
    for name in names:
        party.client(name, expiry=60)
        party.subscribe(name, b"t", share=b"g")

    def leave(name: str) -> None:
        if trouble == "slow":
            make_slow(party, name)
        else:
            party.client(name).session.detach()

    for name in names:
        leave(name)
    assert chosen(party, 0) is None
    for name in names:
        party.client(name).connect(V5)
        assert name == chosen(party, 0)
        leave(name)


def test_a_member_that_subscribes_again_does_not_wait_to_be_looked_at() -> None:
    """A member that is back in a large group would get nothing for a while, though it has just spoken."""
    party = Party()
    party.subscribe("quick", b"t", share=b"g")
    names = [f"{number}" for number in range(10 * FEW_CHECKS)]
    for name in names:
        party.subscribe(name, b"t", share=b"g")
        make_slow(party, name)
    chosen(party, 1)
    for name in names:
        party.client(name).connect(V5)
        party.subscribe(name, b"t", share=b"g")
        assert {"quick", name} == {chosen(party, 1) for _ in range(2)}
        make_slow(party, name)


@pytest.mark.parametrize("left", range(2 * FEW_CHECKS))
def test_slow_members_are_looked_at_whoever_leaves(left: int) -> None:
    """A member that was slow would get nothing for ever, because the one that was to be looked at next has left."""
    party = Party()
    party.subscribe("quick", b"t", share=b"g")
    names = [f"{number}" for number in range(2 * FEW_CHECKS)]
    for name in names:
        party.subscribe(name, b"t", share=b"g")
        make_slow(party, name)
    chosen(party, 1)
    chosen(party, 1)
    for name in names:
        if name != f"{left}":
            party.unsubscribe(name, b"$share/g/t")
    party.client(f"{left}").connect(V5)

    assert f"{left}" in [chosen(party, 1) for _ in range(4)]
