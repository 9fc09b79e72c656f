# What waited for a client that was away is delivered at a pace, and what comes meanwhile comes behind it.
from collections.abc import Callable

import pytest

from broker.config.overrides import ClientOverride
from broker.config.schema import Clients, Config, Delivery, Limits, Quotas, QuotaScope
from broker.mqtt.packets import PUBACK, V5, Ack, Properties, Publish
from broker.mqtt.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from broker.reasons import DropReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import dropped, narrow, payloads, subscribe

Brokers = Callable[..., Broker]

TEN = Config(delivery=Delivery(replay_messages=10))


def device(broker: Broker, window: int = 65535) -> Client:
    properties: Properties = {SESSION_EXPIRY_INTERVAL: 3600, RECEIVE_MAXIMUM: window}
    return broker.connect("device", V5, clean_start=False, properties=properties)


def away(broker: Broker, count: int, size: int = 0) -> Client:
    """A device that has missed *count* messages, whose numbers are followed by *size* bytes; the publisher of them."""
    reader = device(broker)
    subscribe(reader, "t", qos=1)
    reader.drop()
    publisher = broker.connect("publisher")
    publish(publisher, *range(count), size=size)
    return publisher


def publish(publisher: Client, *numbers: int, qos: int = 1, size: int = 0) -> None:
    for number in numbers:
        publisher.send(Publish(b"t", b"%d " % number + bytes(size), qos, packet_id=number + 1 if qos else 0))
    publisher.receive()


def numbers(client: Client) -> list[int]:
    """The numbers of the messages that have come, each of which is acknowledged."""
    found = [packet for packet in client.receive() if isinstance(packet, Publish)]
    client.send(*[Ack(PUBACK, packet.packet_id) for packet in found if packet.qos])
    return [int(packet.payload.split()[0]) for packet in found]


def over(broker: Broker, client: Client, seconds: float) -> list[int]:
    """What comes within *seconds*."""
    found = []
    for _ in range(round(seconds * 10)):
        broker.advance(0.1)
        found += numbers(client)
    return found


def test_what_waited_comes_at_its_pace_and_what_is_new_behind_it(brokers: Brokers) -> None:
    """A device that returns would be drowned; or be sent new messages before old ones; or be paced for ever."""
    broker = brokers(TEN)
    publisher = away(broker, 30)
    reader = device(broker)
    assert [0] == numbers(reader)
    assert list(range(1, 11)) == over(broker, reader, 1.0)
    publish(publisher, 30, 31)
    assert list(range(11, 32)) == over(broker, reader, 2.2)

    publish(publisher, *range(32, 82))
    assert list(range(32, 82)) == numbers(reader)
    outbox = broker.sessions()[0].outbox
    assert outbox is not None and (outbox.pace, outbox.writable) == (None, True)
    assert {} == dropped(broker)


def test_bytes_are_paced_too(brokers: Brokers) -> None:
    """A narrow line would be full of large messages, which are few."""
    broker = brokers(Config(delivery=Delivery(replay_bytes=10_000)))
    away(broker, 10, size=4_980)
    reader = device(broker)
    assert [0] == numbers(reader)

    assert [1, 2] == over(broker, reader, 1.05)
    assert [3, 4] == over(broker, reader, 1.0)


def test_without_the_setting_everything_comes_at_once(brokers: Brokers) -> None:
    """An upgrade would slow down every client that returns."""
    broker = brokers(Config())
    away(broker, 50)

    assert list(range(50)) == numbers(device(broker))


def test_a_pace_is_set_for_single_clients_and_changed_while_they_catch_up(brokers: Brokers) -> None:
    """One weak device would slow down the whole fleet; or an operator could not help one that is drowned."""
    table = ClientOverride(by="client", name="device", replay_messages=10)
    broker = brokers(Config(clients=Clients(overrides=(table,))))
    broker.worker.protocol.overrides.change([table.described()])
    away(broker, 30)
    reader = device(broker)
    assert [0] == numbers(reader)
    faster = ClientOverride(by="client", name="device", replay_messages=100)
    broker.worker.protocol.overrides.change([faster.described()])
    broker.settle()
    assert 1 <= len(over(broker, reader, 0.1)) <= 12
    broker.worker.protocol.overrides.change([])
    broker.settle()

    assert 29 == numbers(reader)[-1]


def test_qos_0_that_is_published_now_is_sent_now(brokers: Brokers) -> None:
    """A device would miss its live values, which are not kept, for as long as it catches up."""
    broker = brokers(TEN)
    publisher = away(broker, 5)
    reader = device(broker)
    numbers(reader)
    publish(publisher, 100, 101, qos=0)

    assert [100, 101] == numbers(reader)
    assert [1, 2, 3, 4] == over(broker, reader, 0.5)
    assert {} == dropped(broker)


def test_the_receive_maximum_holds_beside_the_pace(brokers: Brokers) -> None:
    """A client would be sent more than it can hold as soon as the pace has room."""
    broker = brokers(TEN)
    away(broker, 10)
    reader = device(broker, window=2)
    broker.advance(1.0)
    found = [packet.packet_id for packet in reader.receive() if isinstance(packet, Publish)]
    assert 2 == len(found)
    broker.advance(5.0)
    assert [] == reader.receive()
    reader.send(Ack(PUBACK, found[0]))

    assert 1 == len(payloads(reader.receive()))


@pytest.mark.parametrize(("quota", "pace"), [(5, 20), (20, 5)])
def test_the_slower_of_pace_and_outgoing_quota_holds(brokers: Brokers, quota: int, pace: int) -> None:
    """Either limit would end the other one."""
    session = QuotaScope(outgoing_messages=f"{quota}/s")
    config = Config(quotas=Quotas(reserve=0.0, session=session), delivery=Delivery(replay_messages=pace))
    broker = brokers(config)
    away(broker, 100)
    reader = device(broker)
    over(broker, reader, 2.0)  # the burst of the quota

    assert 19 <= len(over(broker, reader, 4.0)) <= 21


def test_a_client_that_leaves_while_it_catches_up_goes_on_at_its_pace(brokers: Brokers) -> None:
    """A pace would survive its connection, or a device that returns again and again get everything at once."""
    broker = brokers(TEN)
    away(broker, 30)
    found = []
    for _ in range(3):
        reader = device(broker)
        found += over(broker, reader, 0.5)
        reader.drop()
        broker.advance(10.0)

    assert 15 <= len(found) <= 18
    assert sorted(set(found)) == found
    assert 0 == broker.counters.internal_errors


def test_it_is_told_that_a_client_catches_up_and_how_much_is_left(brokers: Brokers) -> None:
    """Who asks why messages are late would be told that nothing is wrong, or that the client reads too slowly."""
    broker = brokers(TEN)
    away(broker, 30)
    reader = device(broker)
    numbers(reader)
    told = broker.diagnostics.facts("device")

    assert {"messages": 10, "bytes": 0, "left": 29} == told["pace"]
    assert told["reader"] is not None and told["reader"]["writable"]
    over(broker, reader, 3.0)
    assert None is broker.diagnostics.facts("device")["pace"]


# QoS 0 that waits, with `limits.queue_qos0`.


def sleeper(broker: Broker, qos: int = 0) -> Client:
    """A publisher, and the session of a device that is away."""
    reader = broker.connect("device", V5, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 3600})
    subscribe(reader, "t", qos=qos)
    reader.drop()
    return broker.connect("publisher")


def test_qos_0_waits_for_a_client_that_is_away_if_the_configuration_says_so(brokers: Brokers) -> None:
    """What came while a device slept would be lost, or be sent with a packet id that nobody acknowledges."""
    broker = brokers(Config(limits=Limits(queue_qos0=True)))
    publisher = sleeper(broker, qos=1)
    publisher.send(*[Publish(b"t", b"%d" % number) for number in range(3)])  # a run
    publish(publisher, 3)
    publisher.send(Publish(b"t", b"4", 0, True))
    broker.settle()
    found = [packet for packet in device(broker).receive() if isinstance(packet, Publish)]

    assert [0, 1, 2, 3, 4] == [int(packet.payload) for packet in found]
    assert [0, 0, 0, 1, 0] == [packet.qos for packet in found]
    assert {} == dropped(broker)
    assert 0 == broker.queue_budget.messages


def test_a_puback_does_not_wait_for_qos_0_that_is_kept(brokers: Brokers) -> None:
    """A publisher at QoS 1 would wait for a client that sleeps."""
    broker = brokers(Config(limits=Limits(queue_qos0=True)))
    publisher = sleeper(broker)
    publisher.send(Publish(b"t", b"1", 1, packet_id=1))

    assert [Ack(PUBACK, 1)] == publisher.receive()
    assert [b"1"] == payloads(device(broker).receive())


def test_new_qos_0_does_not_overtake_what_waits(brokers: Brokers) -> None:
    """The last value of a topic would be an old one [MQTT-4.6.0-6]."""
    broker = brokers(Config(limits=Limits(queue_qos0=True)))
    publisher = sleeper(broker, qos=1)
    publish(publisher, 0, 1)
    publish(publisher, 2, qos=0)
    reader = device(broker, window=1)
    first = [packet for packet in reader.receive() if isinstance(packet, Publish)]
    publish(publisher, 3, qos=0)
    publisher.send(*[Publish(b"t", b"%d" % number) for number in (4, 5)])  # a run
    assert [] == payloads(reader.receive())
    reader.send(Ack(PUBACK, first[0].packet_id))

    assert [1, 2, 3, 4, 5] == numbers(reader) + numbers(reader)
    publish(publisher, 6, qos=0)
    assert [6] == numbers(reader)
    outbox = broker.sessions()[0].outbox
    assert outbox is not None and outbox.writable


def test_qos_0_that_is_kept_has_the_limits_of_the_queue(brokers: Brokers) -> None:
    """A sensor that floods would fill the memory with what nobody promised to keep."""
    broker = brokers(Config(limits=Limits(queue=2, queue_qos0=True)))
    publisher = sleeper(broker)
    publisher.send(*[Publish(b"t", b"%d" % number) for number in range(5)])
    broker.settle()

    assert {DropReason.QUEUE_FULL: 3} == dropped(broker)
    assert [3, 4] == numbers(device(broker))


def test_qos_0_is_not_kept_for_a_slow_reader(brokers: Brokers) -> None:
    """A slow reader would cost the memory of all that it misses, which is what QoS 0 is to prevent."""
    broker = brokers(Config(limits=Limits(queue_qos0=True)))
    reader = device(broker)
    subscribe(reader, "t")
    narrow(broker)
    reader.reading = False
    publisher = broker.connect("publisher")
    for _ in range(40):
        publisher.send(Publish(b"t", bytes(60_000)))
        broker.settle()

    assert 0 == broker.sessions()[0].waiting()
    assert dropped(broker)[DropReason.NOT_WRITABLE] > 0


def test_a_fan_out_that_is_kept_is_kept_once(brokers: Brokers) -> None:
    """A message for a sleeping fleet would take its size for each device."""
    broker = brokers(Config(limits=Limits(queue_qos0=True)))
    for number in range(20):
        reader = broker.connect(f"device-{number}", clean_start=False)
        subscribe(reader, "t")
        reader.drop()
    before = broker.queue_budget.used
    broker.connect("publisher").send(Publish(b"t", bytes(10_000)))
    broker.settle()

    assert 20 == broker.queue_budget.messages
    assert broker.queue_budget.used - before < 12_000


def test_a_group_prefers_members_that_do_not_catch_up(brokers: Brokers) -> None:
    """Work for a group would wait behind the queue of one member, while another one is idle."""
    broker = brokers(TEN)
    publisher = away(broker, 30)
    member = broker.connect("member", V5)
    subscribe(member, "$share/group/work", qos=1)
    reader = device(broker)
    subscribe(reader, "$share/group/work", qos=1)
    publisher.send(*[Publish(b"work", b"%d" % number, 1, packet_id=number + 1) for number in range(6)])

    assert list(range(6)) == numbers(member)
    member.drop()
    publisher.send(Publish(b"work", b"1000", 1, packet_id=1))
    broker.settle()
    assert 1000 in over(broker, reader, 4.0)
