# Messages fill the memory that they may have: whoever holds most of them lets go.
from collections.abc import Callable

from broker.config.schema import Config, Limits
from broker.mqtt.packets import V5, Ack, Publish
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from broker.reasons import CloseReason, DropReason
from broker.session.queue import INFLIGHT, MESSAGE
from tests.inprocess import Broker, Client
from tests.protocol.talk import closed, dropped, messages, payloads, subscribe

Brokers = Callable[..., Broker]

BUDGET = 400_000
NO_QUEUES = Limits(queue_budget=BUDGET, queue=0)


def takers(broker: Broker, count: int, **properties: int) -> list[Client]:
    """Clients that acknowledge nothing, each sent what it may have in flight."""
    publisher = broker.connect("publisher")
    clients = []
    for number in range(count):
        client = broker.connect(f"taker{number}", V5, properties={SESSION_EXPIRY_INTERVAL: 100})
        subscribe(client, f"to/{number}", qos=1)
        publisher.send(*(Publish(b"to/%d" % number, bytes(999), 1, packet_id=i + 1) for i in range(30)))
        client.receive()
        publisher.receive()
        clients.append(client)
    return clients


def test_who_acknowledges_nothing_lets_go_and_others_get_their_messages(brokers: Brokers) -> None:
    """Clients that ping and never acknowledge would hold the memory for ever, and others be sent nothing."""
    broker = brokers(Config(limits=NO_QUEUES))
    reader, publisher = broker.connect("reader", V5), broker.connect("sender")
    subscribe(reader, "t", qos=1)
    takers(broker, 40)
    assert broker.queue_budget.used > broker.queue_budget.high

    broker.shed()

    assert broker.queue_budget.used <= broker.queue_budget.high
    assert closed(broker)[CloseReason.MESSAGE_BUDGET] >= 1
    assert DropReason.MESSAGE_BUDGET in dropped(broker)
    publisher.send(*(Publish(b"t", bytes(999), 1, packet_id=i + 1) for i in range(3)))
    assert 3 == len(messages(reader.receive()))


def test_who_holds_little_keeps_it(brokers: Brokers) -> None:
    """The memory would be taken from those who came last, and not from those who hold it."""
    broker = brokers(Config(limits=NO_QUEUES))
    small = broker.connect("small", V5)
    subscribe(small, "t", qos=1)
    broker.connect("sender").send(Publish(b"t", b"kept", 1, packet_id=1))
    (kept,) = messages(small.receive())
    clients = takers(broker, 40)

    broker.shed()
    held = broker.queue_budget.used
    small.send(Ack(4, kept.packet_id))
    small.receive()

    assert not small.closed
    assert held - broker.queue_budget.used == MESSAGE + INFLIGHT + len(b"t" + b"kept")
    gone = [client for client in clients if client.closed]
    assert gone == clients[: len(gone)] and len(gone) < len(clients)  # the first had the largest share


def test_who_holds_nothing_stays(brokers: Brokers) -> None:
    """Publishers and readers would be closed when those who hold messages have not let go of enough."""
    broker = brokers(Config(limits=Limits(queue_budget=BUDGET)))
    idle = broker.connect("idle", V5)
    publisher = broker.connect("publisher")
    for name in ("one", "two", "three"):
        away = broker.connect(name, V5, properties={SESSION_EXPIRY_INTERVAL: 100})
        subscribe(away, name, qos=1)
        away.drop()
    for number in range(300):
        for topic in (b"one", b"two", b"three"):
            publisher.send(Publish(topic, bytes(999), 1, packet_id=number + 1))
        publisher.receive()
    broker.queue_budget.high = 0  # too little to come down to
    broker.queue_budget.low = 0

    broker.shed()

    assert broker.queue_budget.used > 0
    assert CloseReason.MESSAGE_BUDGET not in closed(broker)
    assert not idle.closed and not publisher.closed


def test_a_session_that_let_go_gets_what_comes_later(brokers: Brokers) -> None:
    """It would be sent again what it lost, or nothing any more."""
    broker = brokers(Config(limits=NO_QUEUES))
    takers(broker, 40)
    broker.shed()

    back = broker.connect("taker0", V5, clean_start=False)
    assert (True, []) == (back.connack.session_present, messages(back.receive()))
    broker.connect("sender").send(Publish(b"to/0", b"later", 1, packet_id=1))

    assert [b"later"] == payloads(back.receive())


def test_below_the_mark_nobody_lets_go(brokers: Brokers) -> None:
    """A client that is slow to acknowledge would lose its messages although there is room for them."""
    broker = brokers(Config(limits=NO_QUEUES))
    clients = takers(broker, 3)
    held = broker.queue_budget.used

    broker.shed()

    assert held == broker.queue_budget.used
    assert not any(client.closed for client in clients)


def test_what_waits_goes_before_what_is_in_flight(brokers: Brokers) -> None:
    """A session that is away would lose its newest messages, or all of them."""
    broker = brokers(Config(limits=Limits(queue_budget=BUDGET)))
    publisher = broker.connect("publisher")
    for name in map(str, range(12)):
        client = broker.connect(name, V5, properties={SESSION_EXPIRY_INTERVAL: 100})
        subscribe(client, name, qos=1)
        client.drop()
        publisher.send(*(Publish(name.encode(), b"%03d" % i + bytes(996), 1, packet_id=i + 1) for i in range(90)))
        publisher.receive()
    held = [session.waiting() for session in broker.sessions() if session.client_id == "0"]

    broker.shed()

    assert broker.queue_budget.used <= broker.queue_budget.low
    assert {DropReason.MESSAGE_BUDGET, DropReason.QUEUE_FULL} == set(dropped(broker))
    (kept,) = [session.waiting() for session in broker.sessions() if session.client_id == "0"]
    assert 0 < kept <= held[0] // 2
    received = payloads(broker.connect("0", V5, clean_start=False).receive())
    assert b"%03d" % (90 - kept) == received[0][:3]
