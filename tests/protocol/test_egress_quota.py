# Quotas of what a client is sent: who is over one is to everybody what a slow reader is, until there is room.
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from broker.config.schema import ClusterQuota, Config, Limits, Quotas, QuotaScope
from broker.mqtt.packets import PUBACK, V5, V31, V311, Ack, Publish, Subscribe, Wanted
from broker.overload.admit import PAUSE
from broker.reasons import DropReason, PauseReason
from broker.session.run import PART_BYTES, PART_MESSAGES
from tests.inprocess import Broker, Client
from tests.protocol.talk import dropped, messages, narrow, payloads, subscribe

Brokers = Callable[..., Broker]

OVER = DropReason.QUOTA_SESSION_OUTGOING
THREE = QuotaScope(outgoing_messages="3:3")  # at once, and then one a second


def limited(session: QuotaScope = THREE, **others: Any) -> Config:
    return Config(quotas=Quotas(reserve=0.0, session=session, **others))


def numbered(*numbers: int, qos: int = 0) -> list[Publish]:
    """One message each, to topics of their own: no two are a run."""
    return [Publish(b"t/%d" % n, b"%d" % n, qos, packet_id=n + 1 if qos else 0) for n in numbers]


def numbers(client: Client) -> list[int]:
    """Which of those have come."""
    return [int(payload) for payload in payloads(client.receive())]


def pauses(broker: Broker, reason: PauseReason) -> tuple[int, int]:
    """(how many, their ms)."""
    broker.gauges()
    counters = broker.counters
    return counters.pauses_by_reason[reason.label], counters.paused_ms_by_reason[reason.label]


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_qos_0_over_the_quota_is_dropped_with_its_reason(brokers: Brokers, version: int) -> None:
    """A client would be sent more than it may, or what it was not sent be nobody's."""
    broker = brokers(limited())
    reader, writer = broker.connect("reader", version), broker.connect("writer")
    subscribe(reader, "t/#")
    writer.send(*numbered(*range(5)))

    assert [0, 1, 2] == numbers(reader)
    assert {OVER: 2} == dropped(broker)
    broker.advance(1.1)
    writer.send(*numbered(5, 6))
    assert [5] == numbers(reader)
    assert {OVER: 3} == dropped(broker)


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize("qos", [1, 2])
def test_qos_1_and_2_wait_and_come_at_their_rate(brokers: Brokers, version: int, qos: int) -> None:
    """What was promised would be lost, overtaken, or sent all at once when there is room for one."""
    broker = brokers(limited())
    reader, writer = broker.connect("reader", version), broker.connect("writer")
    subscribe(reader, "t/#", qos=qos)
    writer.send(*numbered(*range(7), qos=qos))
    found = [numbers(reader)]
    for _ in range(4):
        broker.advance(1.1)
        found.append(numbers(reader))

    assert [[0, 1, 2], [3], [4], [5], [6]] == found
    assert {} == dropped(broker)


def test_the_answers_to_a_client_are_no_messages(brokers: Brokers) -> None:
    """A subscriber that also publishes would be sent the less, the more of it is acknowledged."""
    broker = brokers(limited())
    client, writer = broker.connect("client"), broker.connect("writer")
    subscribe(client, "t/#")
    client.send(*[Publish(b"else", b"", 1, packet_id=n + 1) for n in range(20)])
    assert 20 == len([packet for packet in client.receive() if isinstance(packet, Ack)])
    writer.send(*numbered(*range(5)))

    assert [0, 1, 2] == numbers(client)


def test_a_batch_that_has_begun_is_finished_and_then_paid_for(brokers: Brokers) -> None:
    """A run would be cut to pieces for each of its receivers; or what is owed never be paid."""
    broker = brokers(limited())
    reader, writer = broker.connect("reader"), broker.connect("writer")
    subscribe(reader, "t/#")
    writer.send(*[Publish(b"t/run", b"%d" % n) for n in range(5)])

    assert [0, 1, 2, 3, 4] == numbers(reader)
    writer.send(*numbered(5))
    broker.advance(2.8)  # two are owed, and the next one is to have room
    assert [] == numbers(reader)
    broker.advance(0.3)
    writer.send(*numbered(6))
    assert [6] == numbers(reader)
    assert {OVER: 1} == dropped(broker)


@pytest.mark.parametrize("version", [V311, V5])
def test_a_long_run_exceeds_the_quota_by_a_part_at_most(brokers: Brokers, version: int) -> None:
    """A burst would pass whatever the quota says, and the reader be sent nothing for minutes to pay for it."""
    broker = brokers(limited(QuotaScope(outgoing_messages="100:100")))
    reader, writer = broker.connect("reader", version), broker.connect("writer")
    subscribe(reader, "t/run")
    writer.send(*[Publish(b"t/run", b"%d" % n) for n in range(2000)])
    first = numbers(reader)

    assert list(range(len(first))) == first
    assert 100 <= len(first) <= 100 + PART_MESSAGES
    assert {OVER: 2000 - len(first)} == dropped(broker)
    broker.advance(PART_MESSAGES + 1.1)
    writer.send(Publish(b"t/run", b"7"))
    assert [7] == numbers(reader)


def test_a_run_of_large_messages_exceeds_a_quota_of_bytes_by_a_part_at_most(brokers: Brokers) -> None:
    """A few packets of the largest size would pass a quota of kilobytes."""
    broker = brokers(limited(QuotaScope(outgoing_bytes="10000:1")))
    reader, writer = broker.connect("reader"), broker.connect("writer")
    subscribe(reader, "t/run")
    writer.send(*[Publish(b"t/run", bytes(3000)) for _ in range(20)])
    passed = len(messages(reader.receive()))

    assert 10_000 <= passed * 3000 <= 10_000 + PART_BYTES
    assert {OVER: 20 - passed} == dropped(broker)


def test_bytes_have_a_quota_too(brokers: Brokers) -> None:
    """Few large messages would pass where many small ones do not."""
    broker = brokers(limited(QuotaScope(outgoing_bytes="100:1")))
    reader, writer = broker.connect("reader"), broker.connect("writer")
    subscribe(reader, "t")
    for _ in range(4):
        writer.send(Publish(b"t", bytes(45)))  # packets of 50 bytes
        reader.broker.settle()

    assert 2 == len(messages(reader.receive()))
    assert {OVER: 2} == dropped(broker)


def test_a_shared_subscription_takes_the_next_member(brokers: Brokers) -> None:
    """Messages would go to who may not have them, beside one who may."""
    broker = brokers(limited(QuotaScope(outgoing_messages="3:60")))
    spent, fresh, writer = broker.connect("spent"), broker.connect("fresh"), broker.connect("writer")
    subscribe(spent, "before", "$share/g/t/#", qos=1)
    subscribe(fresh, "$share/g/t/#", qos=1)
    for _ in range(3):
        writer.send(Publish(b"before", b"0"))
        broker.settle()
    spent.receive()
    writer.send(*numbered(0, 2), *numbered(1, qos=1))

    assert ([], [0, 2, 1]) == (numbers(spent), numbers(fresh))
    assert {} == dropped(broker)


def test_all_of_a_tenant_share_and_everybody_has_a_turn(brokers: Brokers) -> None:
    """The first of those who wait would have all there is, each time, until it wants no more."""
    broker = brokers(limited(QuotaScope(), tenant_of="client-prefix:-", tenant=QuotaScope(outgoing_messages="4:4")))
    readers = [broker.connect(f"acme-{n}") for n in range(2)]
    other, writer = broker.connect("else-1"), broker.connect("writer")
    for reader in (*readers, other):
        subscribe(reader, "t/#", qos=1)
    writer.send(*numbered(*range(20), qos=1))
    first = [numbers(reader) for reader in (*readers, other)]
    broker.advance(6.0)
    then = [numbers(reader) for reader in readers]

    assert 4 == len(first[0]) + len(first[1]) == len(first[2])
    assert 5 <= len(then[0]) + len(then[1]) <= 6
    assert abs(len(then[0]) - len(then[1])) <= 1
    assert {} == dropped(broker)


def test_the_total_of_the_cluster_takes_from_both_directions(brokers: Brokers) -> None:
    """Each message would count once, however many it becomes."""
    broker = brokers(limited(QuotaScope(), cluster=ClusterQuota(total_messages="5:5")))
    reader, writer = broker.connect("reader"), broker.connect("writer")
    subscribe(reader, "t/#")
    for publish in numbered(*range(4)):
        writer.send(publish)
        broker.settle()

    assert [0, 1] == numbers(reader)  # two came, two went; the third came, and there was no room for it to go
    assert {DropReason.QUOTA_CLUSTER_TOTAL: 2} == dropped(broker)


def test_retained_messages_come_as_there_is_room(brokers: Brokers) -> None:
    """A new subscription would lose those that it could not be sent at once."""
    broker = brokers(limited())
    writer, reader = broker.connect("writer"), broker.connect("reader")
    for publish in numbered(*range(6)):
        publish.retain = True
        writer.send(publish)
    writer.receive()
    reader.send(Subscribe(1, [Wanted(b"t/#")]))
    first = numbers(reader)
    broker.advance(3.5)

    assert 3 == len(first)
    assert [0, 1, 2, 3, 4, 5] == sorted(first + numbers(reader))
    assert {} == dropped(broker)


def test_what_is_sent_again_is_held_to_the_quota(brokers: Brokers) -> None:
    """Who comes back would be sent all that was not acknowledged at once, again and again."""
    broker = brokers(limited(QuotaScope(outgoing_messages="4:4")))
    reader, writer = broker.connect("reader", clean_start=False), broker.connect("writer")
    subscribe(reader, "t/#", qos=1)
    writer.send(*numbered(*range(4), qos=1))
    assert [0, 1, 2, 3] == numbers(reader)
    reader.drop()
    writer.send(*numbered(4, 5, qos=1))
    back = broker.connect("reader", clean_start=False)
    found = [numbers(back)]
    for _ in range(6):
        broker.advance(1.1)
        found.append(numbers(back))

    assert [[], [0], [1], [2], [3], [4], [5]] == found


def test_within_its_quota_a_client_needs_no_place_to_wait(brokers: Brokers) -> None:
    """Where nothing may wait for a slow reader, one with a quota would get no QoS 1 at all."""
    config = limited()
    broker = brokers(Config(quotas=config.quotas, limits=Limits(pending=0)))
    reader, writer = broker.connect("reader"), broker.connect("writer")
    subscribe(reader, "t/#", qos=1)
    writer.send(*numbered(*range(4), qos=1))

    assert [0, 1, 2] == numbers(reader)
    assert {DropReason.PENDING_FULL: 1} == dropped(broker)


def test_acknowledgements_do_not_bring_more_than_the_quota(brokers: Brokers) -> None:
    """Each PUBACK would have the next message sent, whatever the quota says."""
    broker = brokers(Config(quotas=limited().quotas, limits=Limits(inflight=1)))
    reader, writer = broker.connect("reader"), broker.connect("writer")
    subscribe(reader, "t/#", qos=1)
    writer.send(*numbered(*range(5), qos=1))
    found = []
    for _ in range(5):
        got = messages(reader.receive())
        found.append([int(message.payload) for message in got])
        reader.send(*[Ack(PUBACK, message.packet_id) for message in got])
    assert [[0], [1], [2], [], []] == found

    broker.advance(1.1)
    assert [3] == numbers(reader)


def test_a_slow_reader_with_a_quota_is_one_that_is_slow(brokers: Brokers) -> None:
    """It would be written to without end, or wait for ever once it has drained."""
    broker = brokers(limited(QuotaScope(outgoing_messages="1000000:1")))
    reader, writer = broker.connect("reader"), broker.connect("writer")
    subscribe(reader, "t", "t/#", qos=1)
    narrow(broker)
    reader.reading = False
    for _ in range(5):
        writer.send_bytes((b"\x30\xff\x7f\x00\x01t" + bytes(16380)) * 30)
        broker.settle()
    writer.send(*numbered(7, qos=1))
    broker.settle()
    assert {DropReason.NOT_WRITABLE} == dropped(broker).keys()
    assert 1 == broker.gauges().non_writable

    reader.reading = True
    assert b"7" == payloads(reader.receive())[-1]
    assert 0 == broker.gauges().non_writable


def test_who_is_over_it_is_told_of_as_held_back(brokers: Brokers) -> None:
    """Nobody could see why a subscriber gets less than is published."""
    broker = brokers(limited())
    reader, writer = broker.connect("reader"), broker.connect("writer")
    subscribe(reader, "t/#", qos=1)
    writer.send(*numbered(*range(4), qos=1))
    broker.settle()
    broker.advance(1.1)

    count, milliseconds = pauses(broker, PauseReason.QUOTA_SESSION_OUTGOING)
    assert 1 == count and 1000 <= milliseconds <= 1100
    session = broker.session("reader")
    assert session is not None and session.decisions is not None
    (decision,) = session.decisions.latest
    assert (PAUSE, "quota_session_outgoing") == (decision.kind, decision.reason)


def test_who_goes_while_it_waits_is_forgotten(brokers: Brokers) -> None:
    """A connection that is gone would be sent to when there is room, or be held back for ever in the figures."""
    broker = brokers(limited())
    reader, writer = broker.connect("reader"), broker.connect("writer")
    subscribe(reader, "t/#", qos=1)
    writer.send(*numbered(*range(5), qos=1))
    broker.settle()
    assert inf != broker.egress_quota.tick(broker.clock.now)
    reader.drop()
    held = pauses(broker, PauseReason.QUOTA_SESSION_OUTGOING)
    broker.advance(0.1)  # its time would be in a second
    assert held == pauses(broker, PauseReason.QUOTA_SESSION_OUTGOING)
    assert inf == broker.egress_quota.tick(broker.clock.now)  # it has nothing to do any more
    assert 0 == broker.counters.internal_errors


def test_who_has_no_quota_for_it_is_not_asked(brokers: Brokers) -> None:
    """Each delivery would pay for a limit of something else."""
    broker = brokers(limited(QuotaScope(incoming_messages="100:1", subscriptions="10:1")))
    broker.connect("reader")
    session = broker.session("reader")

    assert session is not None and session.outbox is not None
    assert session.outbox.egress_limit is None and session.outbox.writable
