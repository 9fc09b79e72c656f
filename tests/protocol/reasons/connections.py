# How connections end: by the client, by what it sent, by a limit, by us, by the network.
from functools import partial
from typing import Final

from broker.auth.bans import Ban
from broker.auth.check_queue import WAITING
from broker.config.schema import Config, Delivery, Limits, Overload
from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, ConnAck, Connect, Disconnect, PingReq, Publish, Subscribe, Wanted, Will
from broker.mqtt.properties import AUTHENTICATION_METHOD, SESSION_EXPIRY_INTERVAL, TOPIC_ALIAS, USER_PROPERTY
from broker.net.transports.handshakes import UNDER_WAY
from broker.overload.placement import FEW, Place
from broker.overload.reports import Report
from broker.reasons import CloseReason
from broker.worker_id import WorkerId
from tests.inprocess import Broker, Client
from tests.insight.operators import Operator
from tests.net.tls import Authority, Later, TlsSocket, shake, transport
from tests.protocol.reasons.stage import SCENARIOS, Seen, Stage, happens, heard
from tests.protocol.talk import narrow, subscribe
from tests.tools.fuzz.key_updates import key_updates

NARROW: Final = Limits(
    topic_levels=3, topic_bytes=20, packet_bytes=1024, qos=1, retain=False, client_id_bytes=23, receive_maximum=1
)


def says(config: Config, sent: bytes, stage: Stage) -> Seen:
    """A client that is connected sends what it may not."""
    broker = stage.brokers(config)
    client = broker.connect("phone", V5)
    client.send_bytes(sent)
    return Seen([broker], "phone", heard(client))


def knocks(config: Config, connect: Connect, stage: Stage) -> Seen:
    """A CONNECT is refused for what it says."""
    broker = stage.brokers(config)
    client = broker.open(V5)
    client.send(connect)
    return Seen([broker], connect.client_id, heard(client))


def opens(sent: bytes, stage: Stage) -> Seen:
    """A connection that never says who it is."""
    broker = stage.brokers()
    client = broker.open(V5)
    client.send_bytes(sent)
    return Seen([broker], "", heard(client))


STRICT: Final = Config(limits=NARROW)
MANY: Final = [(f"{number}", "") for number in range(10_000)]
TWICE: Final = b"".join(encode(Publish(b"t", b"", 2, packet_id=number), V5) for number in (1, 2))

SAID: Final = {
    CloseReason.CLIENT_DISCONNECTED: (Config(), encode(Disconnect(), V5)),
    CloseReason.MALFORMED_PACKET: (Config(), b"\x00\x00"),
    CloseReason.PROTOCOL_ERROR: (Config(), encode(ConnAck(False), V5)),
    CloseReason.TOPIC_FILTER_INVALID: (Config(), encode(Subscribe(1, [Wanted(b"")]), V5)),
    CloseReason.TOPIC_NAME_INVALID: (Config(), encode(Publish(b"a/+", b""), V5)),
    CloseReason.TOPIC_LEVELS: (STRICT, encode(Publish(b"a/b/c/d", b""), V5)),
    CloseReason.TOPIC_BYTES: (STRICT, encode(Publish(b"x" * 21, b""), V5)),
    CloseReason.TOPIC_ALIAS_INVALID: (Config(), encode(Publish(b"t", b"", properties={TOPIC_ALIAS: 1000}), V5)),
    CloseReason.PACKET_TOO_LARGE: (STRICT, encode(Publish(b"t", bytes(2000)), V5)),
    CloseReason.RETAIN_NOT_SUPPORTED: (STRICT, encode(Publish(b"t", b"", retain=True), V5)),
    CloseReason.QOS_NOT_SUPPORTED: (STRICT, encode(Publish(b"t", b"", 2, packet_id=1), V5)),
    CloseReason.RECEIVE_MAXIMUM_EXCEEDED: (Config(limits=Limits(receive_maximum=1)), TWICE),
    CloseReason.QUOTA_EXCEEDED: (Config(), encode(Publish(b"t", b"", properties={USER_PROPERTY: MANY}), V5)),
}
for reason, (config, sent) in SAID.items():
    SCENARIOS[reason] = partial(says, config, sent)

KNOCKED: Final = {
    CloseReason.CLIENT_ID_INVALID: Connect(V5, "phone" * 5),
    CloseReason.BAD_AUTHENTICATION_METHOD: Connect(V5, "phone", properties={AUTHENTICATION_METHOD: "x"}),
    CloseReason.NOT_AUTHORIZED: Connect(V5, "phone", will=Will(b"$SYS/forged", b"")),
}
KNOCKED_ON_FEW: Final = {
    CloseReason.WILL_BYTES: Limits(will_bytes=100),
    CloseReason.WILL_BUDGET: Limits(will_budget=300),
}
for reason, limits in KNOCKED_ON_FEW.items():
    SCENARIOS[reason] = partial(knocks, Config(limits=limits), Connect(V5, "phone", will=Will(b"w", bytes(150))))
for reason, connect in KNOCKED.items():
    SCENARIOS[reason] = partial(knocks, STRICT, connect)

SCENARIOS[CloseReason.NOT_MQTT] = partial(opens, encode(PingReq(), V5))
SCENARIOS[CloseReason.UNSUPPORTED_VERSION] = partial(opens, b"\x10\x0e\x00\x04MQTT\x09\x02\x00\x00\x00\x02me")


@happens(CloseReason.PEER_CLOSED)
def closed_by_itself(stage: Stage) -> Seen:
    broker = stage.brokers()
    broker.connect("phone", V5).drop()
    return Seen([broker], "phone", [])


@happens(CloseReason.PEER_RESET)
def reset(stage: Stage) -> Seen:
    broker = stage.brokers()
    client = broker.connect("phone", V5)
    subscribe(client, "t")
    client.reading = False
    broker.connect("publisher").send(Publish(b"t", b"x"))  # closed with this unread, a socket resets
    broker.settle()
    client.drop()
    return Seen([broker], "phone", [])


@happens(CloseReason.CONNECT_TIMEOUT)
def silent(stage: Stage) -> Seen:
    broker = stage.brokers(Config(limits=Limits(connect_timeout=1.0)))
    client = broker.open(V5)
    broker.advance(2.0)
    return Seen([broker], "", heard(client))


@happens(CloseReason.KEEP_ALIVE_TIMEOUT)
def not_alive(stage: Stage) -> Seen:
    broker = stage.brokers()
    client = broker.connect("phone", V5, keep_alive=1)
    broker.advance(2.0)
    return Seen([broker], "phone", heard(client))


@happens(CloseReason.SESSION_TAKEN_OVER)
def taken_over(stage: Stage) -> Seen:
    broker = stage.brokers()
    client = broker.connect("phone", V5)
    broker.connect("phone", V5)
    return Seen([broker], "phone", heard(client))


@happens(CloseReason.KICKED)
def kicked(stage: Stage) -> Seen:
    broker = stage.brokers()
    client = broker.connect("phone", V5)
    broker.lifecycle.close(stream_of(broker, "phone"), CloseReason.KICKED, broker.clock.now)
    return Seen([broker], "phone", heard(client))


@happens(CloseReason.SESSION_DROPPED)
def dropped(stage: Stage) -> Seen:
    broker = stage.brokers()
    client = broker.connect("phone", V5)
    Operator(broker).ask("session_drop", {"client": "phone"})
    return Seen([broker], "phone", heard(client))


@happens(CloseReason.SHUTTING_DOWN)
def stopped(stage: Stage) -> Seen:
    broker = stage.brokers()
    client = broker.connect("phone", V5)
    broker.lifecycle.stop(broker.clock.now)
    return Seen([broker], "phone", heard(client))


@happens(CloseReason.DRAINING)
def drained(stage: Stage) -> Seen:
    broker = stage.brokers()
    client = broker.connect("phone", V5)
    other_node(broker)
    broker.worker.cluster.moves.drain(True, False)
    broker.clock.now += 0.5
    broker.worker.cluster.moves.run()
    return Seen([broker], "phone", heard(client))


@happens(CloseReason.REBALANCED)
def surplus(stage: Stage) -> Seen:
    broker = stage.brokers()
    clients = {f"client-{number}": broker.connect(f"client-{number}", V5) for number in range(2 * FEW + 1)}
    broker.worker.cluster.moves.run()  # it counts its clients
    other_node(broker)
    assert FEW == broker.worker.cluster.moves.rebalance()
    broker.clock.now += 0.5
    broker.worker.cluster.moves.run()
    broker.settle()
    left = [name for name, client in clients.items() if client.closed]
    assert FEW == len(left)
    return Seen([broker], left[0], heard(clients[left[0]]))


@happens(CloseReason.OTHER_NODE_CALMER)
def sent_to_a_calmer_node(stage: Stage) -> Seen:
    broker = stage.brokers(Config(overload=Overload(connects_per_second=1, connect_burst=1)))
    for number in range(8):
        broker.open(V5).send(Connect(V5, f"{number}"))
    broker.settle()
    broker.worker.cluster.moves.run()  # it sees how many wait
    other_node(broker)
    return _refused(broker)


def other_node(broker: Broker) -> None:
    """There is another node, which is calm and has no clients."""
    broker.worker.protocol.placement.set([Place("other", "other.example.com:1883")])
    report = Report(WorkerId("other", 0, 1), 1, 0.0, "", 0.0, ())
    assert broker.protection.reports.hear(report.encode(), broker.clock.now)


@happens(CloseReason.INTERNAL_ERROR)
def our_mistake(stage: Stage) -> Seen:
    broker = stage.brokers()
    client = broker.connect("phone", V5)
    subscribe(broker.connect("other"), "t")
    broker.routes._epochs.clear()  # what no packet can do: the next topic is an IndexError
    client.send(Publish(b"t", b"x", 1, packet_id=1))
    return Seen([broker], "phone", heard(client))


# Limits.


@happens(CloseReason.CONNECTION_LIMIT)
def too_many_connections(stage: Stage) -> Seen:
    broker = stage.brokers(connections=1)
    broker.connect("first")
    return _refused(broker)


@happens(CloseReason.CONNECTIONS_PER_ADDRESS)
def too_many_from_its_address(stage: Stage) -> Seen:
    broker = stage.brokers(Config(limits=Limits(connections_per_address=1)))
    broker.connect("first")
    return _refused(broker)


@happens(CloseReason.CONNECT_RATE)
def too_often_from_its_address(stage: Stage) -> Seen:
    broker = stage.brokers(Config(limits=Limits(connects_per_second=1, connect_burst=1)))
    broker.connect("first")
    return _refused(broker)


@happens(CloseReason.SESSION_LIMIT)
def too_many_sessions(stage: Stage) -> Seen:
    broker = stage.brokers(Config(limits=Limits(sessions=1)))
    broker.connect("first")
    return _refused(broker)


def _refused(broker: Broker) -> Seen:
    client = broker.open(V5)
    client.send(Connect(V5, "phone"))
    return Seen([broker], "phone", heard(client))


@happens(CloseReason.CONNECT_DISPLACED)
def displaced(stage: Stage) -> Seen:
    broker, clients = _storm(stage, speaking=False)
    return Seen([broker], "phone", heard(clients[0]))


@happens(CloseReason.CONNECTS_WAITING)
def no_room_to_wait(stage: Stage) -> Seen:
    broker, clients = _storm(stage, speaking=True)
    return Seen([broker], "newcomer", heard(clients[1]))


def _storm(stage: Stage, speaking: bool) -> tuple[Broker, list[Client]]:
    """One waits for its turn, and no more may; a newcomer comes."""
    broker = stage.brokers(Config(overload=Overload(connects_per_second=1, connect_burst=1, connects_waiting=1)))
    broker.connect("early")
    clients = [broker.open(V5), broker.open(V5)]
    clients[0].send(Connect(V5, "phone"), *([PingReq()] if speaking else []))
    broker.settle()
    clients[1].send(Connect(V5, "newcomer"))
    broker.settle()
    return broker, clients


@happens(CloseReason.CLIENT_ID_RULE)
def an_id_of_another_user(stage: Stage) -> Seen:
    broker = stage.house("%u-*")
    client = broker.open(V5)
    client.send(Connect(V5, "phone", user_name="alice", password=b"alice"))
    return Seen([broker], "phone", heard(client))


@happens(CloseReason.CLIENT_ID_OF_OTHER_USER)
def a_session_of_another_user(stage: Stage) -> Seen:
    broker = stage.house()
    broker.connect("phone", V5, user="alice", password=b"alice")
    thief = broker.open(V5)
    thief.send(Connect(V5, "phone", user_name="bob", password=b"bob"))
    return Seen([broker], "", heard(thief))


@happens(CloseReason.BAD_CREDENTIALS)
def a_wrong_password(stage: Stage) -> Seen:
    broker = stage.house()
    client = broker.open(V5)
    client.send(Connect(V5, "phone", user_name="alice", password=b"wrong"))
    broker.advance(5.0)
    return Seen([broker], "phone", heard(client))


@happens(CloseReason.GUESSES_OF_USER)
def too_many_guesses_for_one_user(stage: Stage) -> Seen:
    return _guessed(stage, ["alice"] * 20)


@happens(CloseReason.GUESSES_OF_ADDRESS)
def too_many_guesses_from_one_address(stage: Stage) -> Seen:
    return _guessed(stage, [f"user-{number}" for number in range(50)])


def _guessed(stage: Stage, users: list[str]) -> Seen:
    """Wrong passwords for *users*, then the right one of alice."""
    broker = stage.house()
    for number, user in enumerate(users):
        broker.open(V5).send(Connect(V5, f"{number}", user_name=user, password=b"wrong"))
        broker.settle()
    client = broker.open(V5)
    client.send(Connect(V5, "phone", user_name="alice", password=b"alice"))
    return Seen([broker], "phone", heard(client))


@happens(CloseReason.BANNED)
def a_banned_client(stage: Stage) -> Seen:
    broker = stage.brokers()
    _ban(broker)
    return _refused(broker)


@happens(CloseReason.BANNED_WHILE_CONNECTED)
def a_client_that_is_banned(stage: Stage) -> Seen:
    broker = stage.brokers()
    client = broker.connect("phone", V5)
    _ban(broker)
    broker.settle()
    return Seen([broker], "phone", heard(client))


def _ban(broker: Broker) -> None:
    until = broker.clock.now + 60.0
    one = Ban("client", "phone", until, seconds=60.0, by="jo", reason="test", made=0.0)
    broker.worker.protocol.bans.change([{**one.described(), "until": until}], [])


@happens(CloseReason.SERVER_UNAVAILABLE)
def a_session_that_nobody_can_look_for(stage: Stage) -> Seen:
    broker = stage.with_redis(Config())
    stage.stop_redis(broker)
    client = broker.open(V5)
    client.send(Connect(V5, "phone", properties={SESSION_EXPIRY_INTERVAL: 1000}))
    broker.advance(5.0)
    return Seen([broker], "phone", heard(client))


@happens(CloseReason.SERVER_BUSY)
def too_many_passwords(stage: Stage) -> Seen:
    broker = stage.house()
    broker.threads.stopped = True
    for number in range(WAITING + 1):  # one is hashed
        broker.open(V5).send(Connect(V5, f"{number}", user_name="alice", password=b"alice"))
    broker.settle()
    client = broker.open(V5)
    client.send(Connect(V5, "phone", user_name="alice", password=b"alice"))
    return Seen([broker], "phone", heard(client))


# Memory.


@happens(CloseReason.SLOW_CONSUMER)
def not_reading(stage: Stage) -> Seen:
    delivery = Delivery(high_watermark=16 * 1024, low_watermark=1, slow_consumer_timeout=2.0)
    broker = _unread(stage, delivery)
    broker.advance(4.0)
    return Seen([broker], "phone", [])


@happens(CloseReason.OUTBOUND_BUDGET)
def owed_too_much(stage: Stage) -> Seen:
    delivery = Delivery(high_watermark=64 * 1024, low_watermark=32 * 1024, outbound_budget=128 * 1024)
    broker = stage.brokers(Config(delivery=delivery))
    readers = [broker.connect(name, V5) for name in ("phone", *map(str, range(10)))]
    subscribe(readers[0], "large")
    for reader in readers:
        subscribe(reader, "t")
    narrow(broker)
    for reader in readers:
        reader.reading = False
    publisher = broker.connect("publisher")
    for publish in (Publish(b"large", bytes(50_000)), Publish(b"t", bytes(20_000))):
        publisher.send(publish)
        broker.settle()
    return Seen([broker], "phone", [])


@happens(CloseReason.INPUT_BUDGET)
def too_much_unfinished(stage: Stage) -> Seen:
    broker = stage.brokers()
    broker.reactor.input.limit = 40_000
    broker.reactor.input.most = 50_000
    client = broker.connect("phone", V5)
    client.send_bytes(encode(Publish(b"t", bytes(80_000)), V5)[:70_000])
    return Seen([broker], "phone", heard(client))


def _unread(stage: Stage, delivery: Delivery) -> Broker:
    """A broker with a reader that does not read what it is sent."""
    broker = stage.brokers(Config(delivery=delivery))
    reader = broker.connect("phone", V5)
    subscribe(reader, "t")
    narrow(broker)
    reader.reading = False
    publisher = broker.connect("publisher")
    for _ in range(60):
        publisher.send(Publish(b"t", bytes(1000)))
        broker.settle()
    return broker


# TLS.


@happens(CloseReason.TLS_HANDSHAKE_FAILED)
def no_handshake(stage: Stage) -> Seen:
    broker = stage.brokers()
    client = broker.open(V5, transport(broker, Authority(stage.folder).server()))
    client.send_bytes(encode(Connect(V5, "phone"), V5))
    broker.settle()
    return Seen([broker], "", [])


@happens(CloseReason.TLS_RECORD_INVALID)
def a_forged_record(stage: Stage) -> Seen:
    broker = stage.brokers()
    authority = Authority(stage.folder)
    client = broker.open(V5, transport(broker, authority.server()))
    tls = shake(client, authority.trusted_by())
    client.send(Connect(V5, "phone"))
    client.receive()
    tls.raw.send(b"\x17\x03\x03\x00\x20" + bytes(32))
    broker.settle()
    return Seen([broker], "phone", [])


@happens(CloseReason.TLS_KEY_UPDATES)
def a_flood_of_key_updates(stage: Stage) -> Seen:
    broker = stage.brokers()
    authority = Authority(stage.folder)
    client = broker.open(V5, transport(broker, authority.server()))
    tls = shake(client, authority.trusted_by())
    client.send(Connect(V5, "phone"))
    client.receive()
    client.reading = False
    tls.raw.send(key_updates(tls.tls, tls._outgoing, 100))
    broker.settle()
    return Seen([broker], "phone", [])


@happens(CloseReason.TLS_HANDSHAKES_WAITING)
def more_handshakes_than_may_wait(stage: Stage) -> Seen:
    broker = stage.brokers()
    authority = Authority(stage.folder)
    through = transport(broker, authority.server(), Later(), most=1)
    for _ in range(UNDER_WAY + 2):
        client = broker.open(V5, through)
        client.reading = False
        TlsSocket(client.socket, authority.trusted_by()).shake()
        broker.settle()
    return Seen([broker], "", [])


def stream_of(broker: Broker, client_id: str):  # type: ignore[no-untyped-def]  # a Connection, as it is one of a client
    session = broker.session(client_id)
    assert session is not None and session.outbox is not None
    return broker.stream_of(session.outbox)
