import pytest

from broker.config.schema import Overload
from broker.mqtt.packets import V5, Publish
from broker.mqtt.properties import SUBSCRIPTION_IDENTIFIER
from broker.overload.gate import Gate
from broker.protocol.message_expiry import MessageExpiry
from broker.reasons import DropReason
from broker.routing.fanout import SHARED_PAGE
from broker.routing.neighbour import Neighbour
from broker.routing.shared import CHECKS, FEW_CHECKS, SharedGroup
from broker.session.message import NEVER, Message
from broker.session.queue import MESSAGE, QUEUED
from broker.version import form
from broker.worker_id import WorkerId
from tests.routing.party import Party
from tests.session.receiver import NOW, Receiver, message


def group(party: Party) -> SharedGroup:
    (shared,) = party.routes.find(b"t").shared
    return shared


def chosen(party: Party, qos: int) -> str | None:
    """The client that the next message goes to; None if it waits or is dropped."""
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


def waiting(party: Party) -> int:
    """How many messages wait for the group."""
    return group(party).waiting()


def give(party: Party, *payloads: bytes, qos: int = 1, expires: float = NEVER) -> None:
    """Publish to the group, and let it deliver what waits as far as it can."""
    for payload in payloads:
        assert group(party).deliver(Message(b"t", payload, qos, False, b"", expires), NOW)
    party.settle()


def three(*, expiry: int = 0, **limits: int) -> Party:
    party = Party(**limits)  # type: ignore[arg-type]  # the authoriser is none of them
    for name in "abc":
        party.client(name, expiry=expiry)
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


def test_a_message_waits_only_where_all_windows_are_full() -> None:
    """A member that does not acknowledge would hold messages that another could have."""
    party = three()
    fill_window(party, "a")
    fill_window(party, "b")
    assert ["c", "c"] == [chosen(party, 1) for _ in range(2)]

    fill_window(party, "c")

    assert [None, None] == [chosen(party, 1) for _ in range(2)]
    assert 2 == waiting(party)


def test_qos_0_needs_no_place_in_a_window() -> None:
    """A member that could take a message at once would be passed over, and the message dropped."""
    party = three()
    for name in "abc":
        fill_window(party, name)

    assert ["a", "b", "c"] == [chosen(party, 0) for _ in range(3)]


@pytest.mark.parametrize("name", ["a", "b", "c"])
@pytest.mark.parametrize("how", ["acknowledges", "reads", "returns"])
def test_what_waits_goes_to_the_first_that_becomes_writable(name: str, how: str) -> None:
    """A message would wait for one member although another is free."""
    party = three(expiry=60)
    for each in "abc":
        if how == "acknowledges":
            fill_window(party, each)
        elif how == "reads":
            make_slow(party, each)
        else:
            party.client(each).session.detach()
    give(party, b"1", b"2", b"3")
    assert 3 == waiting(party)

    client = party.client(name)
    if how == "returns":
        client.connect(V5)
    else:
        client.acknowledge()
    party.settle()
    received = client.acknowledge()
    while waiting(party):
        party.settle()
        received += client.acknowledge()

    assert [b"1", b"2", b"3"] == received
    for each in "abc":
        party.client(each).acknowledge()
    assert (0, 0, 0) == (party.budget.used, party.budget.messages, party.backlog.lists)


def test_a_new_member_gets_what_waits_at_its_own_qos() -> None:
    """A message would be bound to the options of a member that never got it [MQTT-4.8.2-3]."""
    party = three(expiry=60)
    for name in "abc":
        party.client(name).session.detach()
    give(party, b"1", qos=2)

    party.subscribe("d", b"t", 1, share=b"g", identifier=7)
    party.settle()

    assert [Publish(b"t", b"1", 1, False, False, 1, {SUBSCRIPTION_IDENTIFIER: [7]})] == party.client("d").take()


def test_no_message_overtakes_those_that_wait() -> None:
    """The messages of a publisher would be written in another order, as a member is free before the list is empty."""
    party = three()
    for name in "abc":
        fill_window(party, name)
    give(party, b"1")
    party.client("b").connect(V5)

    assert group(party).deliver(message(b"2", 1), NOW)
    party.settle()

    assert [b"1", b"2"] == [payload for payload in party.client("b").payloads() if payload]


def test_a_member_takes_no_more_than_its_window() -> None:
    """A list would be bound to the first member that comes, however many it can take."""
    party = three(expiry=60)
    for name in "abc":
        party.client(name).session.detach()
    give(party, *[b"%d" % n for n in range(9)])

    party.client("a").connect(V5, window=4)
    party.settle()
    party.client("b").connect(V5, window=2)
    party.settle()

    assert ([b"0", b"1", b"2", b"3"], [b"4", b"5"]) == (party.client("a").payloads(), party.client("b").payloads())
    assert 3 == waiting(party)


def test_a_long_list_is_delivered_in_pages() -> None:
    """A list of thousands of messages would hold the worker when a member comes."""
    party = three(expiry=60)
    for name in "abc":
        party.client(name).session.detach()
    give(party, *[b"%d" % n for n in range(3 * SHARED_PAGE)])
    party.client("a").connect(V5)
    left = []
    while party.deliveries.work(NOW):
        left.append(waiting(party))

    assert [2 * SHARED_PAGE, SHARED_PAGE, 0] == sorted(set(left) - {3 * SHARED_PAGE}, reverse=True)
    assert 3 * SHARED_PAGE == len(party.client("a").payloads())


@pytest.mark.parametrize("limits", [{"queue": 2}, {"queue_bytes": 4}, {"budget": 2 * (MESSAGE + QUEUED + 2) + 200}])
def test_a_full_list_drops_the_oldest_and_says_so(limits: dict[str, int]) -> None:
    """A group of which no member comes back would fill the memory of the worker."""
    party = three(expiry=60, **limits)
    for name in "abc":
        party.client(name).session.detach()
    give(party, b"1", b"2", b"3", b"4", b"5")

    assert 3 == party.counters.dropped_by_reason[DropReason.SHARED_FULL.label]
    assert [(b"g", b"t")] == party.full
    assert 3 == sum((party.client(name).session.drops or {}).get("shared_full", 0) for name in "abc")
    party.client("a").connect(V5)
    party.settle()
    assert [b"4", b"5"] == party.client("a").payloads()


def test_a_message_that_expired_while_it_waited_is_dropped() -> None:
    """A member would get what its publisher did not want to be delivered any more [MQTT-3.3.2-5]."""
    party = three(expiry=60)
    for name in "abc":
        party.client(name).session.detach()
    group(party).deliver(message(b"1", 1, expires=NOW - 1), NOW - 2)
    give(party, b"2")

    party.client("a").connect(V5)
    party.settle()

    assert [b"2"] == party.client("a").payloads()
    assert 1 == party.counters.dropped_by_reason[DropReason.EXPIRED.label]


def test_a_list_that_nobody_fetches_loses_what_has_ended() -> None:
    """The messages of a group whose members do not come back would take memory until it ends."""
    party = three(expiry=60)
    for name in "abc":
        party.client(name).session.detach()
    for number in range(4):
        group(party).deliver(message(b"%d" % number, 1, expires=NOW + 5 if number % 2 else NEVER), NOW)
    MessageExpiry(party.budget).run(NOW + 6.1)
    assert (2, 2) == (waiting(party), party.counters.dropped_by_reason[DropReason.EXPIRED.label])
    MessageExpiry(party.budget).run(NOW + party.budget.expiry.ttl + 2)
    assert (0, 4) == (waiting(party), party.counters.dropped_by_reason[DropReason.EXPIRED.label])
    assert (0, 0, 0) == (party.budget.used, party.backlog.lists, len(party.budget.expiry))

    give(party, b"new")
    party.client("a").connect(V5)
    party.settle()
    assert [b"new"] == party.client("a").payloads()


def test_what_waits_ends_with_the_last_member() -> None:
    """A group that is gone would keep its messages, or give them to members of a later group (4.8.2)."""
    party = three(expiry=60)
    for name in "abc":
        party.client(name).session.detach()
    give(party, b"1", b"2")
    for name in "abc":
        assert 2 == waiting(party)
        party.unsubscribe(name, b"$share/g/t")
    party.subscribe("d", b"t", share=b"g")
    party.settle()

    assert [] == party.client("d").payloads()
    assert 2 == party.counters.dropped_by_reason[DropReason.NO_SHARED_MEMBER.label]
    assert (0, 0, 0) == (party.budget.used, party.budget.messages, party.backlog.lists)


@pytest.mark.parametrize("others", [0, 3])
def test_a_member_of_many_groups_takes_what_waits_for_each(others: int) -> None:
    """An acknowledgement would free the window for one group, and another would wait for ever."""
    party = Party()
    for share in (b"g", b"h"):
        party.subscribe("a", b"t", share=share)
    for number in range(others):
        party.subscribe("a", b"other/%d" % number)
    fill_window(party, "a")
    for shared in party.routes.find(b"t").shared:
        shared.deliver(message(shared.share, 1), NOW)
    party.settle()
    received = party.client("a").acknowledge()
    while party.backlog.lists:
        party.settle()
        received += party.client("a").acknowledge()

    assert [b"", b"g", b"h"] == sorted(received)


def test_a_connected_member_is_preferred_to_one_that_is_away() -> None:
    """Messages would wait for days although somebody is there."""
    party = three(expiry=60)
    for name in "ac":
        party.client(name).session.detach()

    assert ["b", "b"] == [chosen(party, 1) for _ in range(2)]


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
    for name in "ac":
        party.subscribe(name, b"t", 0, share=b"g")
        make_slow(party, name)
    assert not group(party).deliver(message(b"", 2), NOW)

    party.subscribe("b", b"t", 1, share=b"g")
    make_slow(party, "b")

    assert group(party).deliver(message(b"", 2), NOW)
    assert 1 == waiting(party)


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


# Members at other workers. An interpreted class cannot extend the compiled one, hence the marks.


class Elsewhere(Neighbour if form() == "interpreted" else object):  # type: ignore[misc]
    """Another worker, which keeps what it is offered."""

    def __init__(self, shard: int) -> None:
        super().__init__(WorkerId("node", shard, 1), Gate(Overload(), f"worker {shard}", 1 << shard, NOW), False)
        self.offered: list[Message] = []

    def offer_shared(self, share: bytes, filter: bytes, message: Message, hop: int, now: float) -> None:
        assert 1 == hop
        self.offered.append(message)


@pytest.mark.interpreted
def test_workers_take_turns_by_their_ready_members() -> None:
    """The members of one worker would do the work of all others."""
    party, other = three(), Elsewhere(1)
    group(party).set_remote_members(other, 7, 6)

    here = [chosen(party, 0) for _ in range(9)]

    assert 6 == len(other.offered)
    assert ["a", "b", "c"] == [name for name in here if name]


@pytest.mark.interpreted
def test_the_first_report_of_members_and_the_last_are_told_from_others() -> None:
    """A worker with members would not become a receiver of the route, or stay one without any."""
    shared, other = group(three()), Elsewhere(1)

    assert [True, False, True, False] == [shared.set_remote_members(other, count, 0) for count in (2, 1, 0, 0)]


@pytest.mark.interpreted
def test_nobody_waits_for_a_worker_that_has_ended() -> None:
    """Publishes to a group would wait at the gate of a worker that is gone."""
    party, other = three(), Elsewhere(1)
    shared = group(party)
    shared.set_remote_members(other, 1, 1)
    for name in "abc":
        party.unsubscribe(name, b"$share/g/t")
    other.gate.block()
    assert other.gate is shared.closed_gate()
    other.gone = True

    assert shared.closed_gate() is None
