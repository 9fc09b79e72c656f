# What overload protection and quotas do to clients: the decisions of overload/, as a client sees them.
from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.config.schema import Config, Cost, Limits, Overload, Quotas, QuotaScope
from broker.mqtt.encode import encode
from broker.mqtt.packets import PUBACK, PUBREC, V5, V31, V311, Ack, PingReq, PingResp, Publish
from broker.mqtt.properties import REASON_STRING, REQUEST_PROBLEM_INFORMATION, USER_PROPERTY
from broker.net.pauses import Pause
from broker.net.stream import Stream
from broker.reasons import CloseReason, DropReason, PauseReason, PublishRefusal
from tests.inprocess import Broker, Client
from tests.protocol.talk import payloads, spent, subscribe

Brokers = Callable[..., Broker]

QUOTA = Config(quotas=Quotas(reserve=0.0, session=QuotaScope(incoming_messages="3:3")))
LATE = 1.0  # seconds: twenty times the target of lag


def answers(client: Client) -> list[tuple[int, int]]:
    """(packet id, code) of the acknowledgements that have come."""
    return [(packet.packet_id, packet.code) for packet in client.receive() if isinstance(packet, Ack)]


def stream_of(broker: Broker, client_id: str) -> Stream:
    session = broker.session(client_id)
    assert session is not None and session.outbox is not None
    stream = broker.stream_of(session.outbox)
    assert stream is not None
    return stream


def held(broker: Broker, client_id: str) -> bool:
    return stream_of(broker, client_id).paused != 0


def overload(broker: Broker, seconds: float = 3.0) -> None:
    """The worker is late, and has been for a while."""
    broker.overload_monitor.inject("lag", LATE, broker.clock.now + seconds)
    broker.advance(seconds / 2)


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_over_quota_qos_0_is_dropped(brokers: Brokers, version: int) -> None:
    """A client that promises nothing and wants nothing promised would be held back for it, or not at all."""
    broker = brokers(QUOTA)
    reader, client = broker.connect("reader"), broker.connect("client", version)
    subscribe(reader, "a")
    client.send(*[Publish(b"a", b"%d" % n) for n in range(5)])

    assert [b"0", b"1", b"2"] == payloads(reader.receive())
    assert 2 == broker.counters.dropped_by_reason[DropReason.QUOTA_SESSION_MESSAGES.label]
    assert not held(broker, "client")


@pytest.mark.parametrize("version", [V31, V311])
@pytest.mark.parametrize("qos", [1, 2])
def test_over_quota_3_waits_and_loses_nothing(brokers: Brokers, version: int, qos: int) -> None:
    """MQTT 3 has no word for no: what it sends would be acknowledged and lost, or the quota exceeded."""
    broker = brokers(QUOTA)
    reader, client = broker.connect("reader"), broker.connect("client", version)
    subscribe(reader, "a")
    client.send(*[Publish(b"a", b"%d" % n, qos, packet_id=n + 1) for n in range(5)])

    assert [(1, 0), (2, 0), (3, 0)] == answers(client)
    assert held(broker, "client")
    assert 1 == broker.counters.pauses_by_reason[PauseReason.QUOTA_SESSION_MESSAGES.label]
    broker.advance(3.0)
    assert [(4, 0), (5, 0)] == answers(client)
    assert [b"%d" % n for n in range(5)] == payloads(reader.receive())
    assert not held(broker, "client")


@pytest.mark.parametrize("qos", [1, 2])
def test_over_quota_5_is_told_when_to_come_again(brokers: Brokers, qos: int) -> None:
    """A client that could wait by itself would be held back, with all else that it has to say."""
    broker = brokers(QUOTA)
    client = broker.connect("client", V5)
    client.send(*[Publish(b"a", b"", qos, packet_id=n + 1) for n in range(4)])
    (refusal,) = [packet for packet in client.receive() if isinstance(packet, Ack) and packet.code == 0x97]

    assert (PUBACK if qos == 1 else PUBREC, 4) == (refusal.kind, refusal.packet_id)
    assert "3:3" in str(refusal.properties[REASON_STRING])
    assert [("retry-after-ms", "1001")] == refusal.properties[USER_PROPERTY]
    refused = broker.counters.publishes_refused_by_reason
    assert 1 == refused[PublishRefusal.QUOTA_SESSION_MESSAGES.label]
    broker.advance(1.1)
    client.send(Publish(b"a", b"", qos, packet_id=4))
    assert [(4, 0x10)] == answers(client)


@pytest.mark.parametrize(("credits_per", "least", "most"), [("client", 2.0, 4.0), ("tenant", 0.5, 1.5)])
def test_clients_of_a_tenant_share_their_credits_if_they_are_to(
    brokers: Brokers, credits_per: str, least: float, most: float
) -> None:
    """A tenant with many client ids would publish many times as much in an overload as one with a single one."""
    protection = Overload(credits_per=credits_per)
    broker = brokers(Config(overload=protection, quotas=Quotas(tenant_of="client-prefix:-")))
    clients = [broker.connect(name) for name in ("many-1", "many-2", "many-3", "single-1")]
    overload(broker, 30.0)
    passed = [0] * len(clients)
    for client in clients:
        client.send(*[Publish(b"a", bytes(20), 1, packet_id=1 + n) for n in range(200)])
    for _ in range(40):
        for at, client in enumerate(clients):
            passed[at] += len(answers(client))
        broker.advance(0.2)

    assert min(passed) > 0
    assert least < sum(passed[:3]) / passed[3] < most, passed


def test_who_wants_no_reasons_gets_the_code_alone(brokers: Brokers) -> None:
    """[MQTT-3.1.2-29]."""
    broker = brokers(QUOTA)
    client = broker.connect("client", V5, properties={REQUEST_PROBLEM_INFORMATION: 0})
    client.send(*[Publish(b"a", b"", 1, packet_id=n + 1) for n in range(4)])

    assert {} == [packet for packet in client.receive() if isinstance(packet, Ack)][-1].properties


def test_pings_and_acknowledgements_do_not_wait(brokers: Brokers) -> None:
    """A client that is held back would believe us dead, and we would wait for what it has said already."""
    broker = brokers(QUOTA)
    other, client = broker.connect("other"), broker.connect("client")
    subscribe(client, "to", qos=1)
    other.send(Publish(b"to", b"hello", 1, packet_id=1))
    (message,) = [packet for packet in client.receive() if isinstance(packet, Publish)]
    publishes = [Publish(b"a", b"", 1, packet_id=n + 1) for n in range(5)]
    client.send(*publishes[:4], PingReq(), Ack(PUBACK, message.packet_id), publishes[4], PingReq())
    received = client.receive()

    assert 2 == received.count(PingResp())
    session = broker.session("client")
    assert session is not None and 0 == session.inflight()
    broker.advance(3.0)
    assert [(4, 0), (5, 0)] == answers(client)


def test_what_is_said_while_it_is_held_back_does_not_wait_either(brokers: Brokers) -> None:
    """A client that pings would take us for dead, and close what we hold back for its own good."""
    broker = brokers(QUOTA)
    other, client = broker.connect("other"), broker.connect("client")
    subscribe(client, "to", qos=1)
    client.send(*[Publish(b"a", b"", 1, packet_id=n + 1) for n in range(4)])
    other.send(Publish(b"to", b"hello", 1, packet_id=1))
    (message,) = [packet for packet in client.receive() if isinstance(packet, Publish)]
    assert held(broker, "client")
    for n in range(5, 8):
        late = encode(Publish(b"a", b"late", 1, packet_id=n), V5)
        client.send_bytes(late[:3])
        client.send_bytes(late[3:] + encode(PingReq(), V5))
    client.send(Ack(PUBACK, message.packet_id))

    assert [PingResp()] * 3 == client.receive()
    session = broker.session("client")
    assert session is not None and 0 == session.inflight()
    broker.advance(10.0)
    assert [(n, 0) for n in range(4, 8)] == answers(client)


def test_what_is_held_back_is_read_no_further_than_one_read_goes(brokers: Brokers) -> None:
    """Each client that is held back could fill our memory, or be served by asking."""
    broker = brokers(QUOTA)
    client = broker.connect("client")
    client.send(*[Publish(b"a", b"", 1, packet_id=n + 1) for n in range(4)])
    for n in range(40):
        client.send(Publish(b"a", bytes(5000), 1, packet_id=n + 10))

    stream = stream_of(broker, "client")
    assert 64 * 1024 <= stream.left <= 64 * 1024 + 4096
    assert stream.unread


def test_a_client_whose_pings_are_not_to_be_answered_is_not_read(brokers: Brokers) -> None:
    """`strict` would not be what others document: who is held back for too long is closed, whatever it sends."""
    broker = brokers(replace(QUOTA, overload=Overload(keepalive_while_throttled="strict")))
    client = broker.connect("client", keep_alive=1)
    client.send(*[Publish(b"a", b"", 1, packet_id=n + 1) for n in range(4)])
    client.receive()
    client.send(PingReq())

    assert [] == client.receive()
    assert stream_of(broker, "client").unread


def test_who_was_heard_while_it_was_held_back_is_not_when_it_is_held_by_others(brokers: Brokers) -> None:
    """Who fills its own outbox by asking, and reads nothing, would be answered for ever."""
    broker = brokers(QUOTA)
    client = broker.connect("client")
    client.send(*[Publish(b"a", b"", 1, packet_id=n + 1) for n in range(4)])
    broker.advance(10.0)
    client.receive()
    stream = stream_of(broker, "client")
    assert not stream.paused
    broker.reactor.pause(stream, Pause.FANOUT)
    client.send(PingReq())

    assert [] == client.receive()
    broker.reactor.resume(stream, Pause.FANOUT)
    assert [PingResp()] == client.receive()


def test_who_is_held_back_and_goes_is_forgotten(brokers: Brokers) -> None:
    """A connection that is gone would be served when its time has come."""
    broker = brokers(QUOTA)
    client = broker.connect("client")
    client.send(*[Publish(b"a", b"", 1, packet_id=n + 1) for n in range(5)])
    client.receive()
    client.drop()
    broker.advance(3.0)

    assert 0 == broker.counters.internal_errors
    assert 0 == broker.overload_monitor.figures(broker.clock.now).throttled


def test_a_busy_client_is_held_back_and_a_modest_one_is_not(brokers: Brokers) -> None:
    """Everybody would wait for the one who causes it."""
    broker = brokers()
    busy, modest = broker.connect("busy"), broker.connect("modest")
    overload(broker)
    assert broker.protection.judging
    busy.post(*[Publish(b"a", b"", 1, packet_id=n + 1) for n in range(60_000)])
    broker.settle()
    assert held(broker, "busy")
    modest.send(Publish(b"b", b"", 1, packet_id=1))

    assert [(1, 0)] == answers(modest)
    assert 1 == broker.counters.pauses_by_reason[PauseReason.CREDITS.label]


@pytest.mark.slow
def test_who_is_held_back_goes_on_when_the_overload_is_over(brokers: Brokers) -> None:
    """It would be held back for ever, or lose what it had sent."""
    broker = brokers()
    busy = broker.connect("busy")
    overload(broker)
    busy.post(*[Publish(b"a", b"", 1, packet_id=n + 1) for n in range(60_000)])
    broker.settle()
    assert held(broker, "busy")
    broker.advance(20.0)

    assert not broker.protection.judging
    assert [(n + 1, 0) for n in range(60_000)] == answers(busy)


def test_a_run_is_held_back_whole(brokers: Brokers) -> None:
    """QoS 0 messages that go together would be lost, or come twice, when only some of them may pass."""
    broker = brokers()
    reader, busy = broker.connect("reader"), broker.connect("busy")
    subscribe(reader, "a")
    overload(broker, 2.0)
    sent = [b"%d" % n for n in range(10_000)]
    busy.post(*[Publish(b"a", payload) for payload in sent])
    broker.settle()
    assert held(broker, "busy")
    received = payloads(reader.receive())
    assert 0 < len(received) < len(sent)
    broker.reactor.resume(stream_of(broker, "busy"), Pause.OVERLOAD)
    assert [] == payloads(reader.receive())
    broker.advance(20.0)

    assert sent == received + payloads(reader.receive())


def test_switched_off_nobody_is_held_back(brokers: Brokers) -> None:
    """The one key that switches protection off would not."""
    broker = brokers(Config(overload=Overload(enabled=False)))
    busy = broker.connect("busy")
    overload(broker)
    busy.post(*[Publish(b"a", b"", 1, packet_id=n + 1) for n in range(60_000)])

    assert 60_000 == len(answers(busy))


@pytest.mark.parametrize("way", ["honour", "strict"])
def test_a_keep_alive_that_passes_while_it_is_held_back(brokers: Brokers, way: str) -> None:
    """A client would be closed for a silence that we caused; or not, where somebody wants it."""
    slow = Quotas(session=QuotaScope(incoming_messages="1:20"), reserve=0.0)
    broker = brokers(Config(quotas=slow, overload=Overload(keepalive_while_throttled=way)))
    client = broker.connect("client", keep_alive=2)
    client.send(Publish(b"a", b"", 1, packet_id=1), Publish(b"a", b"", 1, packet_id=2))
    broker.advance(5.0)

    closed = broker.counters.closed_by_reason[CloseReason.KEEP_ALIVE_TIMEOUT.label]
    assert (1 if way == "strict" else 0) == closed
    assert (way == "strict") == client.closed


@pytest.mark.parametrize(("way", "closed"), [("honour", False), ("strict", True)])
def test_a_client_that_is_judged_again_and_again_has_said_nothing(brokers: Brokers, way: str, closed: bool) -> None:
    """With `strict` a client would stay for ever: it is read every 100 ms, and nothing that it sent is accepted."""
    broker = brokers(Config(overload=Overload(keepalive_while_throttled=way, cost=Cost(publish=1_000_000), wait=1e6)))
    overload(broker, 60.0)
    client = broker.connect("client", keep_alive=2)
    client.send(*[Publish(b"a", b"", 1, packet_id=n + 1) for n in range(3)], PingReq())
    assert not client.closed
    broker.advance(10.0)

    assert (closed, not closed) == (client.closed, PingResp() in client.receive())


def test_retained_messages_for_a_new_subscription_cost_credits(brokers: Brokers) -> None:
    """A client could have a million retained messages sent again and again, and count as modest."""
    broker = brokers()
    writer, reader = broker.connect("writer"), broker.connect("reader")
    for n in range(5):
        writer.send(Publish(b"r/%d" % n, b"x", retain=True))
    writer.receive()
    for _ in range(2):
        assert 5 == len(subscribe(reader, "r/#"))
    reader.send(PingReq())
    reader.receive()

    assert 10 == spent(broker, "reader")


def test_messages_that_are_sent_again_cost_credits(brokers: Brokers) -> None:
    """A client that connects and resets its connection could have its whole queue sent each time for nothing."""
    broker = brokers()
    reader, writer = broker.connect("reader", clean_start=False), broker.connect("writer")
    subscribe(reader, "a", qos=1)
    reader.drop()
    writer.send(*[Publish(b"a", b"%d" % n, 1, packet_id=n + 1) for n in range(5)])
    writer.receive()
    costs = []
    for _ in range(3):
        back = broker.connect("reader", clean_start=False)
        assert 5 == len(payloads(back.receive()))
        back.drop()
        costs.append(spent(broker, "reader"))

    assert [0, 5, 10] == costs


def test_queued_messages_of_a_slow_subscriber_are_paid_for_by_their_publisher_alone(brokers: Brokers) -> None:
    """Each message that did not fit into the window of its receiver would be paid for twice."""
    broker = brokers(Config(limits=Limits(inflight=2)))
    reader, writer = broker.connect("reader"), broker.connect("writer")
    subscribe(reader, "a", qos=1)
    before = spent(broker, "reader")
    writer.send(*[Publish(b"a", b"%d" % n, 1, packet_id=n + 1) for n in range(6)])
    writer.receive()
    taken: list[bytes] = []
    while messages := [packet for packet in reader.receive() if isinstance(packet, Publish)]:
        taken += [message.payload for message in messages]
        reader.send(*[Ack(PUBACK, message.packet_id) for message in messages])

    assert [b"%d" % n for n in range(6)] == taken
    assert before == spent(broker, "reader")


@pytest.mark.parametrize("way", ["honour", "strict"])
def test_a_client_whose_turn_has_come_is_not_silent_before_it_is_served(brokers: Brokers, way: str) -> None:
    """A client would be closed for silence although its packet waits for the worker alone."""
    slow = Quotas(session=QuotaScope(incoming_messages="1:20"), reserve=0.0)
    broker = brokers(Config(quotas=slow, overload=Overload(keepalive_while_throttled=way)))
    client = broker.connect("client", keep_alive=2)
    client.send(Publish(b"a", b"", 1, packet_id=1), Publish(b"a", b"", 1, packet_id=2))
    assert [(1, 0)] == answers(client)
    stream = stream_of(broker, "client")
    assert stream.paused == Pause.OVERLOAD
    broker.reactor.resume(stream, Pause.OVERLOAD)  # queued, and not served yet
    broker.clock.now += 5.0
    broker.lifecycle.tick(broker.clock.now)

    assert 0 == broker.counters.closed_by_reason[CloseReason.KEEP_ALIVE_TIMEOUT.label]
