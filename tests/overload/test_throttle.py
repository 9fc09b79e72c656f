# Clients that are paused: for what, until when, and what becomes of those that leave meanwhile.
import pytest

from broker.config.schema import Overload, Quotas, QuotaScope
from broker.config.values import KIB
from broker.mqtt.packets import V5, V311
from broker.overload.admit import ACCEPT, CLOSE, DROP, NOT_WAITING, PAUSE, REFUSE
from broker.overload.client import ENDLESS, ProtectedClient
from broker.overload.gate import EACH, Gate
from broker.reasons import PauseReason
from tests.overload.protected import Protected

FLOOR = 2
SMALL = Overload(gate_floor=FLOOR, wait=1.0)


def full(protected: Protected) -> Gate:
    """A gate without room."""
    gate = protected.gate()
    gate.take(FLOOR, 10, protected.now)
    return gate


def held(protected: Protected) -> dict[str, int]:
    return protected.pauses.paused()


def test_a_client_waits_for_its_gate_and_goes_on_when_it_opens() -> None:
    """A resource that is full would be given more, or a client be paused for ever."""
    protected = Protected(SMALL)
    gate, client = full(protected), protected.client("client")
    verdict = protected.publish(client, gate)
    assert (PAUSE, PauseReason.GATE, gate) == (verdict.kind, verdict.reason, verdict.gate)
    assert not protected.reading(client)
    assert (1, {"gate": 1}) == (protected.throttle.waiting(), held(protected))
    protected.advance(0.1)
    assert not protected.reading(client)
    gate.done(FLOOR, 10, 0.1, protected.now)
    protected.throttle.opened(gate, protected.now)
    protected.throttle.tick(protected.now)

    assert protected.reading(client)
    assert {} == held(protected)
    assert ACCEPT == protected.publish(client, gate).kind
    assert (0, NOT_WAITING) == (protected.throttle.waiting(), client.waits_since)


@pytest.mark.parametrize(("qos", "version", "kind"), [(0, V5, DROP), (1, V5, REFUSE), (1, V311, CLOSE)])
def test_a_wait_at_a_gate_ends(qos: int, version: int, kind: int) -> None:
    """A store that hangs would hold its publishers for ever."""
    protected = Protected(SMALL)
    gate, client = full(protected), protected.client("client", version)
    protected.publish(client, gate, qos=qos)
    protected.advance(1.1)
    assert protected.reading(client)  # to be judged again

    assert kind == protected.publish(client, gate, qos=qos).kind
    assert 0 == protected.throttle.waiting()


def test_the_time_of_a_wait_counts_from_its_first_verdict() -> None:
    """A client whose publish is judged again and again would wait for ever."""
    protected = Protected(SMALL)
    gate, client = full(protected), protected.client("client")
    protected.publish(client, gate)
    protected.advance(0.5)
    protected.throttle.remove_gate(gate, protected.now)  # the client is resumed, and needs another gate now
    other = full(protected)
    assert PAUSE == protected.publish(client, other).kind
    assert 1 == protected.throttle.waiting()
    protected.advance(0.6)

    assert CLOSE == protected.publish(client, other).kind
    assert 0 == protected.throttle.waiting()


def test_a_gate_that_is_removed_releases_its_clients() -> None:
    """Publishers would wait for a worker that is dead."""
    protected = Protected(SMALL)
    gate = full(protected)
    clients = [protected.client(f"{number}") for number in range(3)]
    for client in clients:
        protected.publish(client, gate)
    protected.throttle.remove_gate(gate, protected.now)

    assert all(protected.reading(client) for client in clients)
    assert {} == held(protected)
    assert "store" not in protected.protection.signals.values()


@pytest.mark.parametrize("leaves", [True, False])
def test_a_client_that_leaves_is_not_resumed(leaves: bool) -> None:
    """A closed connection would be read; or, if none left, this test would show nothing."""
    protected = Protected(SMALL)
    gate, client = full(protected), protected.client("client")
    protected.publish(client, gate)
    if leaves:
        protected.protection.leave(client, protected.now)
    gate.done(FLOOR, 10, 0.1, protected.now)
    protected.advance(1.5)

    assert leaves != protected.reading(client)
    assert {} == held(protected)
    assert 0 == protected.throttle.waiting()


def test_woken_clients_share_the_room_of_the_gate() -> None:
    """A client that floods would take all the room, and the others wait until it pauses."""
    protected = Protected(Overload(gate_floor=4))
    gate = protected.gate()
    gate.take(4, 10, protected.now)
    clients = [protected.client(f"{number}") for number in range(2)]
    for client in clients:
        protected.publish(client, gate)
    gate.done(4, 10, 0.1, protected.now)
    protected.throttle.opened(gate, protected.now)
    protected.throttle.tick(protected.now)

    assert [2 * EACH] * 2 == [client.turn for client in clients]
    assert [ACCEPT, ACCEPT, PAUSE] == [protected.publish(clients[0], gate).kind for _ in range(3)]
    assert [ACCEPT, ACCEPT] == [protected.publish(clients[1], gate).kind for _ in range(2)]


def test_a_client_alone_may_fill_the_gate() -> None:
    """A resource would idle for a share that nobody takes."""
    protected = Protected(SMALL)
    gate, client = full(protected), protected.client("client")
    protected.publish(client, gate)
    gate.done(FLOOR, 10, 0.1, protected.now)
    protected.throttle.opened(gate, protected.now)
    protected.throttle.tick(protected.now)

    assert not gate.in_turns
    assert gate.room() * EACH == client.turn < ENDLESS


def test_a_turn_is_bytes() -> None:
    """A client with short publishes would get a hundredth of what clients with long ones get beside it."""
    long = 64 * KIB
    protected = Protected(Overload(gate_floor=100, gate_bytes=4 * long))
    gate = protected.gate()
    gate.take(4, 4 * long, protected.now)
    one, other = protected.client("long"), protected.client("short")
    assert [PAUSE] * 2 == [protected.publish(one, gate, size=long).kind, protected.publish(other, gate, size=1000).kind]
    gate.done(2, 2 * long, 0.01, protected.now)
    protected.throttle.opened(gate, protected.now)
    protected.throttle.tick(protected.now)

    assert [ACCEPT, PAUSE] == [protected.publish(one, gate, size=long).kind for _ in range(2)]
    assert [ACCEPT] * 40 == [protected.publish(other, gate, size=1000).kind for _ in range(40)]


def test_only_clients_whose_bytes_fit_are_woken() -> None:
    """All others would be judged in vain, and go back to the end of the queue."""
    long = 64 * KIB
    protected = Protected(Overload(gate_floor=100, gate_bytes=4 * long))
    gate = protected.gate()
    gate.take(4, 4 * long, protected.now)
    clients = [protected.client(f"{number}") for number in range(5)]
    for client in clients:
        protected.publish(client, gate, size=long)
    gate.done(2, 2 * long, 0.01, protected.now)
    protected.throttle.opened(gate, protected.now)
    protected.throttle.tick(protected.now)

    assert [True, True, False, False, False] == [protected.reading(client) for client in clients]


def test_a_client_waits_for_its_quota_by_the_clock() -> None:
    """A client of MQTT 3 would be paused for ever by a quota, or not at all."""
    protected = Protected(quotas=Quotas(session=QuotaScope(incoming_messages="1:1"), reserve=0.0))
    client = protected.client("client")
    assert [ACCEPT, PAUSE] == [protected.publish(client).kind for _ in range(2)]
    assert protected.looks  # otherwise nobody would look when the time has come
    protected.advance(0.9)
    assert not protected.reading(client)
    protected.advance(0.2)

    assert protected.reading(client)
    assert ACCEPT == protected.publish(client).kind


def test_a_wait_for_a_quota_is_no_back_pressure() -> None:
    """A tenant at its quota would look like an overloaded broker, and raise the alert about throttled clients."""
    protected = Protected(quotas=Quotas(session=QuotaScope(incoming_messages="1:1"), reserve=0.0))
    client = protected.client("client")
    assert [ACCEPT, PAUSE] == [protected.publish(client).kind for _ in range(2)]

    assert {"quota_session_messages": 1} == held(protected)
    assert 0 == protected.throttle.waiting()
    assert 0 == protected.monitor.figures(protected.now).throttled


def test_the_time_at_a_gate_counts_from_the_end_of_a_wait_for_a_quota() -> None:
    """A client of MQTT 3 that waited for its quota would be closed at once by the first gate that it meets."""
    protected = Protected(SMALL, Quotas(session=QuotaScope(incoming_messages="1:2"), reserve=0.0))
    gate, client = full(protected), protected.client("client")
    assert [ACCEPT, PAUSE] == [protected.publish(client).kind for _ in range(2)]
    protected.advance(2.1)  # longer than the wait at a gate

    assert PauseReason.GATE == protected.publish(client, gate).reason
    protected.advance(1.1)
    assert CLOSE == protected.publish(client, gate).kind


def test_a_packet_that_was_put_off_is_judged_even_if_all_is_calm_then() -> None:
    """The end of its wait would go unnoticed: a publish years later would count as one that waits since then."""
    protected = Protected(SMALL)
    gate, client = full(protected), protected.client("client")
    assert not client.judging
    protected.publish(client, gate)
    protected.throttle.remove_gate(gate, protected.now)
    assert client.judging
    assert ACCEPT == protected.publish(client).kind

    assert not client.judging
    protected.advance(2.0)
    assert PAUSE == protected.publish(client, full(protected)).kind


def test_a_subscribe_over_the_quota_waits_and_mqtt_5_is_told() -> None:
    """MQTT 5 would wait although it can be told, or MQTT 3 subscribe as fast as it likes."""
    protected = Protected(quotas=Quotas(session=QuotaScope(subscriptions="1:1"), reserve=0.0))
    old, new = protected.client("old", V311), protected.client("new", V5)
    for client in (old, new):
        assert client.quota is not None
        client.quota.take_filters(1, protected.now)

    assert protected.protection.defers(old, 1, protected.now)
    assert not protected.protection.defers(new, 1, protected.now)
    assert (False, True) == (protected.reading(old), protected.reading(new))


def passing(protected: Protected, client: ProtectedClient, gate: Gate) -> bool:
    return protected.publish(client, gate, cost=10_000).kind == ACCEPT


@pytest.mark.parametrize(("qos", "version", "kind"), [(0, 4, DROP), (0, 5, DROP), (1, 5, REFUSE)])
def test_over_the_quota_a_publish_does_not_wait_for_a_shut_gate(qos: int, version: int, kind: int) -> None:
    """QoS 0 over the quota would keep its connection unread for half a minute, and be dropped all the same."""
    protected = Protected(quotas=Quotas(session=QuotaScope(incoming_messages="1:60")))
    client, gate = protected.client("client", version), protected.gate()
    assert ACCEPT == protected.publish(client, gate, qos=qos).kind
    gate.block()

    assert kind == protected.publish(client, gate, qos=qos).kind
    assert protected.reading(client)


def test_a_refused_publish_costs_credits() -> None:
    """A client could have any number of publishes refused for nothing, and be the richest when it gets tight."""
    protected = Protected(quotas=Quotas(session=QuotaScope(incoming_messages="1:60")))
    client = protected.client("client", 5)
    protected.publish(client, qos=1, size=1280, cost=15)
    refused = [protected.publish(client, qos=qos, size=1280, cost=500).kind for qos in (0, 1, 2)]

    assert [DROP, REFUSE, REFUSE] == refused
    assert 15 + 3 * (10 + 1280 // 128) == client.account.spent  # without the receivers, which it does not reach


def test_a_client_without_credits_waits_only_while_its_gate_is_busy() -> None:
    """A client would be held back although nothing is gained by it."""
    protected = Protected(Overload(gate_floor=1, gate_idle=0.001, cap=1000))
    gate, client, other = protected.gate(), protected.client("client"), protected.client("other")
    client.account.zero = protected.protection.ledger.granted(protected.now)  # it has no credits
    assert passing(protected, client, gate)
    gate.done(1, 100, 0.001, protected.now)
    gate.take(1, 100, protected.now)
    gate.done(1, 100, 0.1, protected.now + 0.1)  # the gate learns: two publishes in 100 ms and no idle room for one
    client.account.zero = protected.protection.ledger.granted(protected.now) + 100_000
    gate.take(1, 100, protected.now)

    assert not passing(protected, client, gate)
    assert protected.reading(other)


def test_only_gates_in_use_are_looked_at() -> None:
    """A worker has three gates for each other one of the cluster: an idle one of 200 nodes would look at thousands."""
    protected = Protected()
    throttle, signals = protected.throttle, protected.protection.signals
    gates = [protected.gate(f"far/{number}") for number in range(100)]
    protected.advance(1.0)
    assert (0, 0) == (len(throttle.busy), sum(len(kind.raised) for kind in signals.kinds))

    gates[7].take(1, 100, protected.now)
    protected.advance(0.2)
    assert [gates[7]] == list(throttle.busy)
    assert {"far/7"} == {signal.name for kind in signals.kinds for signal in kind.raised}
    gates[7].done(1, 100, 0.2, protected.now)
    protected.advance(1.0)

    assert (0, 0) == (len(throttle.busy), sum(len(kind.raised) for kind in signals.kinds))
    assert 0.0 == signals.value("far/7")
    assert len(gates) + len(signals.telling()) == len(signals.values())


def test_a_gate_that_is_gone_may_be_taken_once_more() -> None:
    """A publish that was judged before its receiver's worker died would end this one."""
    protected = Protected()
    gate = protected.gate("far/1")
    protected.throttle.remove_gate(gate, protected.now)
    gate.take(1, 100, protected.now)
    protected.advance(0.2)

    assert [] == list(protected.throttle.busy)
    assert "far/1" not in protected.protection.signals.values()


def test_a_gate_that_nobody_waits_for_any_more_is_left_alone() -> None:
    """Each look at those who wait, a hundred a second, would go by all gates."""
    protected = Protected(Overload(gate_floor=1))
    gates = [protected.gate(f"far/{number}") for number in range(3)]
    client = protected.client("client")
    gates[1].take(1, 100, protected.now)
    assert PAUSE == protected.publish(client, gates[1]).kind
    assert [gates[1]] == list(protected.throttle._crowded)
    gates[1].done(1, 100, 0.01, protected.now)
    protected.throttle.opened(gates[1], protected.now)
    protected.advance(0.1)

    assert protected.reading(client)
    assert [] == list(protected.throttle._crowded)
