# TLS of a worker's own connections to Redis, on the reactor.
import gc
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from broker.net.dialling import Dialler
from broker.reasons import StoreFailure
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import DISCONNECTED, HANDSHAKE, READY, packed
from broker.store.redis.pipeline import CallbackCommand, CommandPipeline
from tests.inprocess import Broker
from tests.net.tls import Authority
from tests.redis_servers import HOST, PATIENCE, RunningRedis, free_port, server_with_tls, tls_lines
from tests.store.loop import Lines
from tests.tools.fuzz.key_updates import REQUESTED, key_updates

pytestmark = pytest.mark.system  # real sockets, threads and servers

Brokers = Callable[..., Broker]
Serve = Callable[[socket.socket], None]
GREETED: Final = b"+OK\r\n+PONG\r\n"  # the replies to CLIENT SETNAME and PING


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


class Peer:
    """A server in a thread: *serve* has each connection in turn, and ends it by returning."""

    def __init__(self, serve: Serve) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.served = 0
        self._serve = serve
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(PATIENCE)
            try:
                with connection:
                    self._serve(connection)
            except OSError:
                pass  # what the worker says counts
            self.served += 1


@pytest.fixture
def listen() -> Iterator[Callable[[Serve], Peer]]:
    """A function that starts a `Peer`; it is ended after the test."""
    made: list[Peer] = []

    def start(serve: Serve) -> Peer:
        made.append(Peer(serve))
        return made[-1]

    yield start
    for one in made:
        one.end()


def over_tls(certificate: tuple[str, str], talk: Callable[[ssl.SSLSocket], None]) -> Serve:
    """Does the handshake with *certificate*, and has *talk* do the rest."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            talk(secured)

    return serve


def until_closed(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


class Asking:
    """A connection to Redis on the reactor of *broker*."""

    def __init__(self, broker: Broker, port: int, ca: str, name: str = "localhost") -> None:
        self.broker = broker
        self.log = Lines()
        self.failures: list[Exception] = []
        self.replies: list[object] = []
        address = RedisAddress(host=HOST, port=port, tls=True, name=name, ca=ca)
        dialler = Dialler(broker.reactor, self.failures.append)
        self.commands = CommandPipeline(dialler, address, "test", self.log, most_bytes=8 << 20)
        self.commands.start(broker.clock.now)

    def ask(self, *words: str | bytes | int) -> None:
        question = CallbackCommand(packed(*words), 5.0, lambda reply, failure: self.replies.append(failure or reply))
        self.commands.submit(question, self.broker.clock.now)

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, self.log.events
            self.broker.clock.looks = 0
            self.commands.tick(self.broker.clock.now)
            if self.broker.loop.turn() > 0.0:
                select.select([self.broker.loop], [], [], 0.05)
                self.broker.clock.now += 0.05

    def outages(self) -> list[tuple[object, object]]:
        """What the log has: (reason, detail)."""
        return [(facts["reason"], facts["detail"]) for facts in self.log.named("redis_unavailable")]

    def failed(self, peer: Peer, times: int = 3) -> tuple[object, object]:
        """The only line of the log about an outage in which the connection is tried several times."""
        self.until(lambda: peer.served >= times and self.commands.state == DISCONNECTED)
        assert 0 == self.commands.times_ready
        assert 1 == len(self.outages()), self.outages()
        return self.outages()[0]


@pytest.fixture
def start_tls(start_redis: Callable[..., RunningRedis], authority: Authority) -> Callable[..., int]:
    """A function that starts a real server with TLS; it returns the port."""

    def start(clients: str = "no") -> int:
        server = server_with_tls()
        if server is None:
            pytest.skip("there is no redis-server with TLS")
        port = free_port()
        start_redis(server, tls_lines(port, authority.issue("localhost"), authority.file, clients))
        return port

    return start


def test_commands_are_answered_over_tls(brokers: Brokers, authority: Authority, start_tls: Callable[..., int]) -> None:
    """A worker could not use a Redis with TLS."""
    asking = Asking(brokers(), start_tls(), authority.file)
    for number in range(100):
        asking.ask("ECHO", str(number))
    asking.until(lambda: len(asking.replies) == 100)

    assert [str(number).encode() for number in range(100)] == asking.replies
    assert ([], []) == (asking.failures, asking.outages())


def test_large_commands_and_replies_span_records(
    brokers: Brokers, authority: Authority, start_redis: Callable[..., RunningRedis]
) -> None:
    """Bytes behind the first record, or behind a full socket, would be lost or come twice."""
    kind, port = server_with_tls(), free_port()
    if kind is None:
        pytest.skip("there is no redis-server with TLS")
    server = start_redis(kind, tls_lines(port, authority.issue("localhost"), authority.file))
    asking = Asking(brokers(), port, authority.file)
    asking.until(lambda: asking.commands.state == READY)
    server.pause()
    large = [bytes([number]) * (1_900_000 + number) for number in range(4)]
    for value in large:
        asking.ask("ECHO", value)
    asking.broker.settle()
    server.go_on()
    asking.until(lambda: len(asking.replies) == 4)

    assert large == asking.replies


def test_a_server_that_wants_a_certificate_says_so(
    brokers: Brokers, authority: Authority, start_tls: Callable[..., int]
) -> None:
    """Redis asks clients for a certificate unless `tls-auth-clients` is no: the log would only say that it is away."""
    asking = Asking(brokers(), start_tls("yes"), authority.file)
    asking.until(lambda: len(asking.outages()) > 0)
    ((reason, detail),) = asking.outages()

    assert StoreFailure.TLS_FAILED.label == reason, detail
    assert "certificate required" in str(detail)


def test_a_certificate_of_a_foreign_authority_is_refused(
    brokers: Brokers, authority: Authority, listen: Callable[[Serve], Peer], tmp_path: Path
) -> None:
    """Anybody between the worker and Redis could read the password."""
    received: list[bytes] = []
    foreign = Authority(tmp_path).issue("localhost")
    peer = listen(over_tls(foreign, lambda connection: received.append(connection.recv(1000))))
    reason, detail = Asking(brokers(), peer.port, authority.file).failed(peer)

    assert StoreFailure.CERTIFICATE_REFUSED.label == reason
    assert "unable to get local issuer certificate" in str(detail)
    assert [] == [data for data in received if data]


def test_an_expired_certificate_is_refused(
    brokers: Brokers, authority: Authority, listen: Callable[[Serve], Peer]
) -> None:
    """A certificate whose key was given up long ago would be trusted."""
    peer = listen(over_tls(authority.issue("localhost", expired=True), until_closed))

    assert (StoreFailure.CERTIFICATE_REFUSED.label, "certificate has expired") == Asking(
        brokers(), peer.port, authority.file
    ).failed(peer)


def test_a_certificate_for_another_name_is_refused(
    brokers: Brokers, authority: Authority, listen: Callable[[Serve], Peer]
) -> None:
    """Each server of the same authority could pass for Redis."""
    peer = listen(over_tls(authority.issue("other.example"), until_closed))
    reason, detail = Asking(brokers(), peer.port, authority.file).failed(peer)

    assert StoreFailure.CERTIFICATE_REFUSED.label == reason
    assert "certificate is not valid for 'localhost'" in str(detail)


def test_a_server_without_tls_is_named(brokers: Brokers, authority: Authority, listen: Callable[[Serve], Peer]) -> None:
    """The port without TLS would look like a server that is away."""

    def refuse(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"-ERR unknown command\r\n")
        until_closed(connection)

    peer = listen(refuse)
    reason, detail = Asking(brokers(), peer.port, authority.file).failed(peer)

    assert (StoreFailure.TLS_FAILED.label, "wrong version number") == (reason, detail)


def test_a_server_that_closes_in_the_handshake_is_named(
    brokers: Brokers, authority: Authority, listen: Callable[[Serve], Peer]
) -> None:
    """The log would not say that TLS is what fails."""

    def leave(connection: socket.socket) -> None:
        connection.recv(1000)

    peer = listen(leave)

    assert (StoreFailure.TLS_FAILED.label, "the server closed the connection during the handshake") == Asking(
        brokers(), peer.port, authority.file
    ).failed(peer)


def test_a_handshake_that_hangs_ends_and_costs_no_turns(
    brokers: Brokers, authority: Authority, listen: Callable[[Serve], Peer]
) -> None:
    """The worker would wait for ever, or try to send the first commands again and again meanwhile."""
    peer = listen(until_closed)
    asking = Asking(brokers(), peer.port, authority.file)
    assert HANDSHAKE == asking.commands.state
    asking.broker.settle()
    turns = asking.broker.loop.statistics.slices
    asking.broker.settle()

    assert 3 > asking.broker.loop.statistics.slices - turns
    assert StoreFailure.TIMEOUT.label == asking.failed(peer, 2)[0]


def test_a_connection_that_is_closed_in_the_handshake_leaves_nothing(
    brokers: Brokers, authority: Authority, listen: Callable[[Serve], Peer], garbage: list[object]
) -> None:
    """A worker that stops would leave a connection behind, or a cycle for the garbage collector."""
    peer = listen(until_closed)
    broker = brokers()
    gc.collect()
    garbage.clear()
    asking = Asking(broker, peer.port, authority.file)
    broker.settle()
    asking.commands.stop(broker.clock.now)
    broker.settle()
    gc.collect()

    assert [] == [one for one in garbage if type(one).__name__ in ("Stream", "TlsClientLayer")]
    assert [] == [stream for stream in broker.reactor.table if stream is not None and stream.layer is not None]
    assert [] == asking.failures


def test_replies_before_the_end_are_taken(
    brokers: Brokers, authority: Authority, listen: Callable[[Serve], Peer]
) -> None:
    """What Redis answered before it ended would be lost, as it is read together with the end."""

    def greet_and_end(connection: ssl.SSLSocket) -> None:
        connection.recv(1000)
        connection.sendall(GREETED)
        connection.unwrap()

    peer = listen(over_tls(authority.issue("localhost"), greet_and_end))
    asking = Asking(brokers(), peer.port, authority.file)
    asking.until(lambda: len(asking.outages()) > 0)

    assert 1 <= asking.commands.times_ready
    assert (StoreFailure.LOST.label, "peer_closed") == asking.outages()[0]


def test_key_updates_are_answered(brokers: Brokers, authority: Authority, listen: Callable[[Serve], Peer]) -> None:
    """A server that renews its keys (RFC 8446, 4.6.3) would lose its connections."""
    times = 40

    def update(connection: ssl.SSLSocket) -> None:
        connection.recv(1000)
        connection.sendall(GREETED)
        for _ in range(times):
            connection.recv(1000)
            key_updates(connection, ssl.MemoryBIO(), 1, REQUESTED)
            connection.sendall(b"+x\r\n")
        until_closed(connection)

    asking = Asking(brokers(), listen(over_tls(authority.issue("localhost"), update)).port, authority.file)
    asking.until(lambda: asking.commands.state == READY)
    for number in range(times):
        asking.ask("PING")
        asking.until(lambda expected=number: len(asking.replies) > expected)  # type: ignore[misc]
    asking.commands.stop(asking.broker.clock.now)

    assert [b"x"] * times == asking.replies
    assert [] == asking.outages()


def test_a_broken_record_ends_the_connection(
    brokers: Brokers, authority: Authority, listen: Callable[[Serve], Peer]
) -> None:
    """Bytes that somebody changed would be taken for replies."""

    def spoil(connection: ssl.SSLSocket) -> None:
        connection.recv(1000)
        connection.sendall(GREETED)
        with socket.socket(fileno=connection.detach()) as raw:
            raw.sendall(b"\x17\x03\x03\x00\x20" + b"?" * 32)
            until_closed(raw)

    peer = listen(over_tls(authority.issue("localhost"), spoil))
    asking = Asking(brokers(), peer.port, authority.file)
    asking.until(lambda: len(asking.outages()) > 0)

    assert 1 == asking.commands.times_ready
    assert (StoreFailure.TLS_FAILED.label, "decryption failed or bad record mac") == asking.outages()[0]


def test_a_server_that_is_fixed_is_used(
    brokers: Brokers, authority: Authority, listen: Callable[[Serve], Peer]
) -> None:
    """A wrong certificate would have to be followed by a restart of the node."""
    certificates = [authority.issue("other.example"), authority.issue("localhost")]

    def greet(connection: ssl.SSLSocket) -> None:
        connection.recv(1000)
        connection.sendall(GREETED)
        until_closed(connection)

    def serve(connection: socket.socket) -> None:
        over_tls(certificates.pop(0) if len(certificates) > 1 else certificates[0], greet)(connection)

    asking = Asking(brokers(), listen(serve).port, authority.file)
    asking.until(lambda: asking.commands.state == READY)
    asking.commands.stop(asking.broker.clock.now)

    assert [StoreFailure.CERTIFICATE_REFUSED.label] == [reason for reason, _ in asking.outages()]
    assert 1 == len(asking.log.named("redis_connected"))


def test_a_missing_file_of_authorities_is_named(brokers: Brokers, tmp_path: Path) -> None:
    """The worker would end, or use the authorities of the system without a word."""
    asking = Asking(brokers(), 1, str(tmp_path / "none.pem"))

    assert [(StoreFailure.UNREACHABLE.label, f"{tmp_path}/none.pem: No such file or directory")] == asking.outages()
