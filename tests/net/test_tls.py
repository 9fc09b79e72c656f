# TLS between a stream and its socket: the same broker behind it.
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.config.schema import Config, Limits, Overload
from broker.mqtt.packets import V5, ConnAck, Connect, Disconnect, PingReq, PingResp, Publish, Subscribe, Wanted
from broker.net.transports.certificates import CertificateError, make_context
from broker.net.transports.handshakes import UNDER_WAY
from broker.net.transports.tls import READ_AT_ONCE, RECORD_COST, TlsTransport
from broker.reasons import CloseReason
from tests.inprocess import Broker, Client
from tests.net.tls import Authority, Later, TlsSocket, shake, transport
from tests.tools.fuzz.key_updates import key_updates

Brokers = Callable[..., Broker]
LARGE = bytes(range(256)) * 3000  # 768 000 bytes: more than a socket holds, less than a reader may be owed


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def broker(brokers: Brokers) -> Broker:
    return brokers()


def dial(broker: Broker, authority: Authority, client_id: str) -> Client:
    """A 5.0 client that is connected over TLS."""
    client = broker.open(V5, transport(broker, authority.server()))
    shake(client, authority.trusted_by())
    client.send(Connect(V5, client_id, True, 0))
    (client.connack,) = client.receive()  # type: ignore[assignment]
    return client


def closed(broker: Broker, reason: CloseReason) -> int:
    return broker.counters.closed_by_reason[reason.label]


def test_packets_pass_both_ways(broker: Broker, authority: Authority) -> None:
    """Nothing would work over TLS."""
    client = dial(broker, authority, "c")
    client.send(Subscribe(1, [Wanted(b"t", 0)]), Publish(b"t", b"x"), PingReq())
    _suback, *rest = client.receive()

    assert {Publish, PingResp} == {type(packet) for packet in rest}


def test_a_client_that_closes_while_its_connect_waits_is_dropped(brokers: Brokers, authority: Authority) -> None:
    """Over TLS, clients that gave up would take the turns of clients that still wait."""
    broker = brokers(Config(overload=Overload(connects_per_second=1, connect_burst=1)))
    dial(broker, authority, "early")
    client = broker.open(V5, transport(broker, authority.server()))
    tls = shake(client, authority.trusted_by())
    client.send(Connect(V5, "late", True, 0))
    broker.settle()
    assert 1 == broker.gauges().connects_waiting
    tls.raw.shutdown(socket.SHUT_WR)
    broker.settle()

    assert 0 == broker.gauges().connects_waiting
    assert 1 == closed(broker, CloseReason.PEER_CLOSED)


def test_a_packet_of_many_records_arrives_whole(broker: Broker, authority: Authority) -> None:
    """A packet in several records would be cut, or its rest wait for ever in OpenSSL's buffers."""
    client = dial(broker, authority, "c")
    client.send(Subscribe(1, [Wanted(b"t", 0)]))
    client.receive()
    client.send(Publish(b"t", LARGE))

    (got,) = client.receive()
    assert isinstance(got, Publish) and LARGE == got.payload


def test_a_slow_reader_gets_every_byte_once(broker: Broker, authority: Authority) -> None:
    """What the kernel did not take of a record would be lost, or encrypted and sent again."""
    slow, fast = dial(broker, authority, "slow"), broker.connect("fast", V5)
    slow.send(Subscribe(1, [Wanted(b"t", 0)]))
    slow.receive()
    slow.reading = False
    for n in range(4):
        fast.send(Publish(b"t", LARGE[n:]))
        broker.settle()
    slow.reading = True

    payloads = [packet.payload for packet in slow.receive() if isinstance(packet, Publish)]
    assert payloads == [LARGE[n:] for n in range(len(payloads))] and len(payloads) >= 2


def test_bytes_one_at_a_time_are_put_together(broker: Broker, authority: Authority) -> None:
    """A record that comes in pieces would be an error, or never be looked at again."""
    client = broker.open(V5, transport(broker, authority.server()))
    client.socket = trickling = Trickling(client)  # type: ignore[assignment]
    shake(client, authority.trusted_by())
    client.send(Connect(V5, "c", True, 0))

    assert 1 == broker.connected
    assert trickling.bytes > 100


class Trickling:
    """A socket that sends one byte, and lets the broker look at it before the next."""

    def __init__(self, client: Client) -> None:
        self.bytes = 0
        self._client = client
        self._below = client.socket

    def send(self, data: bytes) -> int:
        reading = self._client.reading
        self._client.reading = False  # TLS is not done with sending
        for byte in data:
            self._below.send(bytes((byte,)))
            self._client.broker.settle()
            self.bytes += 1
        self._client.reading = reading
        return len(data)

    def recv(self, size: int) -> bytes:
        return self._below.recv(size)

    def close(self) -> None:
        self._below.close()


def test_bytes_that_are_not_a_handshake_are_refused(broker: Broker, authority: Authority) -> None:
    """MQTT without TLS on the port of TLS would hold a connection, or go unexplained."""
    client = broker.open(V5, transport(broker, authority.server()))
    client.reading = False
    client.send(Connect(V5, "c", True, 0))
    broker.settle()

    assert 1 == closed(broker, CloseReason.TLS_HANDSHAKE_FAILED)
    assert b"" == client.socket.recv(100)


def test_a_forged_record_ends_the_connection(broker: Broker, authority: Authority) -> None:
    """Forged bytes would be served as MQTT, or end the worker."""
    client = dial(broker, authority, "c")
    raw: socket.socket = client.socket.raw  # type: ignore[attr-defined]
    raw.send(b"\x17\x03\x03\x00\x20" + bytes(32))
    broker.settle()

    assert 1 == closed(broker, CloseReason.TLS_RECORD_INVALID)
    assert 0 == broker.connected


def test_a_close_notify_behind_data_is_read(broker: Broker, authority: Authority) -> None:
    """A client that sends close_notify and leaves the socket open would stay until its keep alive ends."""
    client = dial(broker, authority, "c")
    sock = client.socket
    assert isinstance(sock, TlsSocket)
    data = sock.encrypt(b"\xc0\x00")
    with pytest.raises(ssl.SSLWantReadError):
        sock.tls.unwrap()
    sock.raw.send(data + sock._outgoing.read())
    client.reading = False
    broker.settle()

    assert 1 == closed(broker, CloseReason.PEER_CLOSED)


def test_a_stalled_handshake_ends_at_the_deadline(brokers: Brokers, authority: Authority) -> None:
    """Half a handshake would hold a connection for ever."""
    broker = brokers(Config(limits=Limits(connect_timeout=2.0)))
    client = broker.open(V5, transport(broker, authority.server()))
    client.reading = False
    TlsSocket(client.socket, authority.trusted_by()).shake()
    broker.advance(4.0)

    assert 1 == closed(broker, CloseReason.CONNECT_TIMEOUT)


def test_the_last_packet_and_the_close_notify_arrive(broker: Broker, authority: Authority) -> None:
    """A client would see a broken connection instead of why it was closed."""
    client = dial(broker, authority, "c")
    broker.connect("c", V5)

    (last,) = client.receive()
    assert isinstance(last, Disconnect) and 0x8E == last.code
    assert client.closed  # by close_notify: without it, TlsSocket.recv() raises
    assert client.socket.tls.read(1) == b""  # type: ignore[attr-defined]


def test_nothing_is_read_while_the_offload_works(broker: Broker, authority: Authority) -> None:
    """Two threads would be in OpenSSL with the same buffers."""
    threads = Later()
    client = broker.open(V5, transport(broker, authority.server(), threads))
    client.reading = False
    TlsSocket(client.socket, authority.trusted_by()).shake()
    broker.settle()
    client.socket.send(b"no record")
    broker.settle()
    (stream,) = broker.streams()

    assert 1 == len(threads.waiting) and stream.paused
    while threads.waiting:
        threads.go()
        broker.settle()
    assert 1 == closed(broker, CloseReason.TLS_HANDSHAKE_FAILED)  # as that is no record


@pytest.mark.parametrize("how", ["deadline", "reset"])
def test_a_connection_may_end_while_the_offload_works(broker: Broker, authority: Authority, how: str) -> None:
    """The result of a handshake step for a connection that is gone would be an internal error."""
    threads = Later()
    client = broker.open(V5, transport(broker, authority.server(), threads))
    client.reading = False
    TlsSocket(client.socket, authority.trusted_by()).shake()
    broker.settle()
    if how == "deadline":
        broker.advance(7.0)
    else:
        client.drop()
    assert [] == broker.streams()
    threads.go()
    broker.settle()

    assert 0 == broker.counters.internal_errors


def test_new_connections_get_the_new_certificate(broker: Broker, authority: Authority, tmp_path: Path) -> None:
    """A certificate that was renewed would need a restart."""
    tls = transport(broker, authority.server())
    other = Authority(tmp_path)
    first = broker.open(V5, tls)
    shake(first, authority.trusted_by())
    tls.context = transport(broker, other.server()).context
    second = broker.open(V5, tls)

    shake(second, other.trusted_by())
    first.send(Connect(V5, "first", True, 0))
    assert first.receive()


def test_a_verified_client_certificate_names_the_client(broker: Broker, authority: Authority) -> None:
    """A client with a verified certificate would be anonymous."""
    client = broker.open(V5, transport(broker, authority.server(client_certificate="required")))
    shake(client, authority.trusted_by(authority.issue("device", common_name="device-7")))
    (stream,) = broker.streams()

    assert stream.layer is not None and "device-7" == stream.layer.identity


def test_a_client_without_the_required_certificate_is_refused(broker: Broker, authority: Authority) -> None:
    """A client without a certificate could connect."""
    client = broker.open(V5, transport(broker, authority.server(client_certificate="required")))
    shake(client, authority.trusted_by())

    assert 1 == closed(broker, CloseReason.TLS_HANDSHAKE_FAILED)


def test_a_blank_name_in_a_certificate_names_nobody(broker: Broker, authority: Authority) -> None:
    """All clients with such certificates would be one user, whose name is a blank."""
    client = broker.open(V5, transport(broker, authority.server(client_certificate="required")))
    shake(client, authority.trusted_by(authority.issue("device", common_name=" ")))
    (stream,) = broker.streams()

    assert stream.layer is not None and "" == stream.layer.identity


def test_a_revoked_certificate_is_refused(broker: Broker, authority: Authority) -> None:
    """A stolen device could connect until its certificate expires."""
    stolen, honest = authority.issue("stolen"), authority.issue("honest")
    settings = authority.server(client_certificate="required", client_crl=authority.revoke(stolen))
    served = transport(broker, settings)
    shake(broker.open(V5, served), authority.trusted_by(stolen))
    assert 1 == closed(broker, CloseReason.TLS_HANDSHAKE_FAILED)
    client = broker.open(V5, served)
    shake(client, authority.trusted_by(honest))
    client.send(Connect(V5, "honest", True, 0))

    assert client.receive()
    assert 1 == closed(broker, CloseReason.TLS_HANDSHAKE_FAILED)


def test_a_file_without_a_revocation_list_is_refused(authority: Authority) -> None:
    """The broker would run without the list that the operator named."""
    with pytest.raises(CertificateError, match="holds no PEM revocation lists"):
        make_context(authority.server(client_crl=authority.file))


def test_a_flood_of_key_updates_ends_the_connection(broker: Broker, authority: Authority) -> None:
    """64 KiB of them would keep a worker busy for 62 ms, again and again, and cost the client nothing."""
    client = dial(broker, authority, "c")
    sock = client.socket
    assert isinstance(sock, TlsSocket)
    sock.raw.send(key_updates(sock.tls, sock._outgoing, 500))
    client.reading = False
    broker.settle()

    assert 1 == closed(broker, CloseReason.TLS_KEY_UPDATES)


def test_a_key_update_now_and_then_is_legal(broker: Broker, authority: Authority) -> None:
    """A client that sends terabytes would be disconnected for what RFC 8446 asks of it."""
    client = dial(broker, authority, "c")
    sock = client.socket
    assert isinstance(sock, TlsSocket)
    for _ in range(40):
        sock.raw.send(key_updates(sock.tls, sock._outgoing, 1))
        client.send(PingReq())
        broker.advance(1.0)

    assert [PingResp] * 40 == [type(packet) for packet in client.receive()]


def test_many_small_records_are_read_in_several_rounds(broker: Broker, authority: Authority) -> None:
    """2 849 records of a byte each would be decrypted in one piece, while everybody else waits."""
    client = dial(broker, authority, "c")
    sock = client.socket
    assert isinstance(sock, TlsSocket)
    (stream,) = broker.streams()
    layer = stream.layer
    assert layer is not None
    sock.raw.send(b"".join([sock.encrypt(byte) for byte in [b"\xc0", b"\x00"] * 500]))
    read = layer.recv(64 * 1024)

    assert (READ_AT_ONCE, True) == (len(read), layer.more)
    assert layer.cost >= RECORD_COST * (READ_AT_ONCE - 1)


def test_a_full_queue_refuses_the_oldest_handshake(broker: Broker, authority: Authority) -> None:
    """A flood of handshakes would take memory without end."""
    threads = Later()
    through = transport(broker, authority.server(), threads, most=2)
    for _ in range(UNDER_WAY + 3):
        greet(broker, authority, through)

    assert 1 == closed(broker, CloseReason.TLS_HANDSHAKES_WAITING)


def test_a_handshake_whose_client_is_gone_is_not_done(broker: Broker, authority: Authority) -> None:
    """Clients that gave up would cost a millisecond each, before those that still wait."""
    threads = Later()
    through = transport(broker, authority.server(), threads)
    clients = [greet(broker, authority, through) for _ in range(UNDER_WAY + 3)]
    for client in clients[UNDER_WAY:]:
        client.socket.shutdown(socket.SHUT_WR)
    broker.settle()

    assert 3 == closed(broker, CloseReason.PEER_CLOSED)
    threads.go()
    broker.settle()
    assert [] == threads.waiting


def test_a_connection_beyond_the_rate_of_its_address_gets_no_handshake(brokers: Brokers, authority: Authority) -> None:
    """An address could have the broker do any number of handshakes, a millisecond each, and never send a CONNECT."""
    broker = brokers(Config(limits=Limits(connects_per_second=1, connect_burst=2)))
    threads = Later()
    through = transport(broker, authority.server(), threads)
    for _ in range(2):
        greet(broker, authority, through)
    refused = broker.open(V5, through)
    broker.settle()

    assert refused.closed
    assert 1 == closed(broker, CloseReason.CONNECT_RATE)
    assert 2 == len(threads.waiting) == len(broker.streams())


def test_an_address_has_one_rate_on_all_transports(brokers: Brokers, authority: Authority) -> None:
    """A connection would be charged at its handshake and again at its CONNECT, or a flood over TLS not at all."""
    broker = brokers(Config(limits=Limits(connects_per_second=1, connect_burst=3)))
    dial(broker, authority, "tls")
    broker.open(V5, transport(broker, authority.server()))  # says nothing
    assert isinstance(broker.connect("tcp", V5), Client)
    late = broker.open(V5)
    late.send(Connect(V5, "late", True, 0))

    (connack,) = late.receive()
    assert isinstance(connack, ConnAck) and CloseReason.CONNECT_RATE.code == connack.code
    broker.advance(1.0)
    assert 0 == dial(broker, authority, "later").connack.code


def test_a_client_gets_its_session_back_over_tls_from_a_full_address(brokers: Brokers, authority: Authority) -> None:
    """A client whose connection died unnoticed would be refused at once, although it is within the rate."""
    broker = brokers(Config(limits=Limits(connections_per_address=1, connects_per_second=1, connect_burst=2)))
    dial(broker, authority, "me")

    assert 0 == dial(broker, authority, "me").connack.code


def greet(broker: Broker, authority: Authority, through: TlsTransport) -> Client:
    """A client that has sent the first message of its handshake, and waits."""
    client = broker.open(V5, through)
    client.reading = False
    TlsSocket(client.socket, authority.trusted_by()).shake()
    broker.settle()
    return client
