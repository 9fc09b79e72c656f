# A whole worker in the test process, without trio and with a clock that only tests move.
#
# Clients are socket pairs that speak through the project's own encoder and decoder. `settle()` turns the loop
# until nothing is left to do, so that after it every consequence of what was sent is there to be read.
import contextlib
import select
import socket
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial

import trio

from broker.auth.authenticator import Authenticator
from broker.cluster.mesh import Mesh
from broker.cluster.orphaned_wills import OrphanedWills
from broker.cluster.overload_reports import OverloadReports
from broker.cluster.peers import Peers
from broker.cluster.registry_client import RegistryClient
from broker.cluster.session_claims import SessionClaims
from broker.cluster.takeover import TakeoverRequests
from broker.cluster.takeovers import Takeovers
from broker.config.schema import Config, Tcp
from broker.delivery.egress_quota import EgressQuota
from broker.delivery.outbox import OutboundBudget, Outbox
from broker.insight.client_diagnostics import ClientDiagnostics
from broker.insight.overload_snapshot import OverloadSnapshot
from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.interval import IntervalMetrics
from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, V311, ConnAck, Connect, Packet, Properties, Will
from broker.mqtt.stream import PacketReader
from broker.net.listeners import listen
from broker.net.loop import Loop
from broker.net.offload import Offload
from broker.net.reactor import Reactor
from broker.net.stream import Stream
from broker.net.transports.transport import TCP, Transport
from broker.overload.monitor import OverloadMonitor
from broker.overload.protection import Protection
from broker.overload.quotas.client_overrides import ClientOverrides
from broker.protocol.hub import Hub
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.protocol.publishing import Publishing
from broker.protocol.session_lifecycle import PublishWill, SessionLifecycle
from broker.protocol.session_transfer import SessionTransfer
from broker.routing.retained import Retained
from broker.routing.routes import Routes
from broker.routing.shared_backlog import SharedBacklog
from broker.session.queue import MessageBudget
from broker.session.session import Session
from broker.store.redis.address import RedisAddress
from broker.store.sessions import Claims, SessionStore
from broker.store.trace_file import TraceFile
from broker.worker import Worker
from broker.worker_id import WorkerId

LARGEST = 1 << 28
PATIENCE = 3  # times that the broker may settle without reading what a client sends
MOST_LOOKS = 1_000_000  # at the clock in one slice: more mean an endless loop


class Clock:
    """Seconds, which pass when a test says so, and by `step` with each look at the clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.step = 0.0
        self.looks = 0  # at the clock in the current slice

    def __call__(self) -> float:
        self.now += self.step
        self.looks += 1
        assert self.looks < MOST_LOOKS, "the broker is in an endless loop"
        return self.now


class Kernel:
    """The epoll of a worker, which never waits: whoever would send something meanwhile has its turn in this thread."""

    def __init__(self, epoll: select.epoll) -> None:
        self.waits: list[float] = []  # that were asked for, in seconds each
        self.waited: Callable[[], None] = lambda: None  # happens in each of them
        self._epoll = epoll

    def __getattr__(self, name: str) -> object:
        return getattr(self._epoll, name)

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        if timeout:
            self.waits.append(timeout)
            self.waited()
        return self._epoll.poll(0, most)


class AtOnce(Executor):
    """No threads: what is submitted is done, and what follows from it comes with the loop's next turn."""

    def __init__(self) -> None:
        self.stopped = False  # true: it runs nothing until `go_on()`
        self.fail: Exception | None = None  # raised by everything that it runs
        self._waiting: list[tuple[Future[object], Callable[[], object]]] = []

    def submit(self, work, /, *args, **kwargs):  # type: ignore[no-untyped-def]  # as Executor's
        done: Future[object] = Future()
        self._waiting.append((done, partial(work, *args, **kwargs)))
        if not self.stopped:
            self.go_on()
        return done

    def go_on(self) -> None:
        self.stopped = False
        waiting, self._waiting = self._waiting, []
        for done, work in waiting:
            try:
                if self.fail is not None:
                    raise self.fail
                done.set_result(work())
            except Exception as error:
                done.set_exception(error.with_traceback(None))  # whose frames hold it


class Probe:
    """What a test may ask of a worker, and the one place in the tests that knows where the worker keeps it."""

    worker: Worker

    # What the worker holds.

    @property
    def identity(self) -> WorkerId:
        return self.worker.base.worker

    @property
    def shard(self) -> int:
        return self.worker.base.worker.shard

    @property
    def config(self) -> Config:
        return self.worker.base.config

    @property
    def counters(self) -> Counters:
        return self.worker.base.counters

    @property
    def connected(self) -> int:
        """Connections that have a session."""
        return self.worker.protocol.lifecycle.connected

    @property
    def sessions_expired(self) -> int:
        return self.worker.base.counters.sessions_expired

    @property
    def outbound_budget(self) -> OutboundBudget:
        return self.worker.outbound_budget

    @property
    def backlog(self) -> SharedBacklog:
        return self.worker.routes.backlog

    @property
    def queue_budget(self) -> MessageBudget:
        return self.worker.queue_budget

    def ledger(self) -> dict[str, tuple[int, int]]:
        """(bytes used, their limit) of each account of memory that clients fill."""
        worker, retained = self.worker, self.retained.statistics()
        subscriptions = worker.protocol.subscribing._budget
        wills = worker.protocol.sessions.wills
        return {
            "input": (worker.reactor.input.used, worker.reactor.input.most),
            "outbound": (worker.outbound_budget.used, worker.outbound_budget.limit),
            "messages": (worker.queue_budget.used, worker.queue_budget.limit),
            "wills": (wills.used, wills.limit),
            "subscriptions": (subscriptions.used()[0], subscriptions._subscriptions),
            "filters": (subscriptions.used()[1], subscriptions._filters),
            "retained": (worker.retained.held() + retained.tombstone_bytes, worker.retained.most_bytes),
            "routes": (worker.routes._size, worker.routes._limit),
        }

    def shed(self) -> None:
        """What the worker does ten times a second: the largest sessions let go if messages fill the memory."""
        self.worker.protocol.shedding.run()

    def look_at_gaps(self) -> None:
        """What the worker does ten times a second: clients are told of what they lost."""
        self.worker.protocol.gaps.run()
        self.worker.loop.turn()

    def sessions(self) -> list[Session]:
        return list(self.worker.links.store.sessions())

    def session_count(self) -> int:
        return self.worker.links.store.count()

    def sessions_here(self) -> int:
        """Sessions that no other worker has whole yet."""
        return self.worker.hand_over.sessions_here()

    def streams(self) -> list[Stream]:
        """The connections of clients that are not closed."""
        return self.worker.reactor.streams()

    def stream_of(self, outbox: Outbox) -> Stream | None:
        return self.worker.reactor.stream_of(outbox)

    # What a test has the worker do.

    def gauges(self) -> Gauges:
        return self.worker.metrics.gauges()

    def record(self, wall: float) -> None:
        """End the interval of the metrics record at *wall*, Unix time."""
        self.worker.metrics.close_interval(wall)

    def reload(self) -> str:
        """Read the files of the configuration again; "", or what is wrong with them."""
        return self.worker.reload.run()

    def claim_from(self, claims: Claims) -> None:
        """Ask *claims* for the session of each CONNECT from now on."""
        self.worker.attempts.claims = claims

    def publish_wills_with(self, publish: PublishWill) -> None:
        """Publish wills by *publish* from now on."""
        self.worker.protocol.sessions._publish_will = publish

    def receive_reports_with(self, receive: Callable[[bytes, float], None]) -> None:
        """Hand the overload reports of other workers to *receive* from now on."""
        self.worker.report_receiver.receive = receive

    # Parts of the worker, for tests of a part within the whole.

    @property
    def reactor(self) -> Reactor:
        return self.worker.reactor

    @property
    def loop(self) -> Loop:
        return self.worker.loop

    @property
    def store(self) -> SessionStore:
        return self.worker.links.store

    @property
    def lifecycle(self) -> ConnectionLifecycle:
        return self.worker.protocol.lifecycle

    @property
    def session_lifecycle(self) -> SessionLifecycle:
        return self.worker.protocol.sessions

    @property
    def hub(self) -> Hub:
        return self.worker.hub

    @property
    def publishing(self) -> Publishing:
        return self.worker.protocol.publishing

    @property
    def transfer(self) -> SessionTransfer:
        return self.worker.protocol.transfer

    @property
    def authenticator(self) -> Authenticator:
        return self.worker.authenticator

    @property
    def routes(self) -> Routes:
        return self.worker.routes

    @property
    def retained(self) -> Retained:
        return self.worker.retained

    @property
    def mesh(self) -> Mesh:
        return self.worker.cluster.mesh

    @property
    def peers(self) -> Peers:
        return self.worker.links.peers

    @property
    def takeovers(self) -> Takeovers:
        return self.worker.cluster.takeovers

    @property
    def claims(self) -> SessionClaims:
        """The claims of a worker that has Redis."""
        assert self.worker.cluster.session_claims is not None
        return self.worker.cluster.session_claims

    @property
    def orphaned_wills(self) -> OrphanedWills:
        """The wills of dead workers, at a worker that has Redis."""
        assert self.worker.cluster.orphaned_wills is not None
        return self.worker.cluster.orphaned_wills

    @property
    def registry_client(self) -> RegistryClient | None:
        return self.worker.links.registry_client

    @property
    def reports(self) -> OverloadReports:
        return self.worker.reports

    @property
    def protection(self) -> Protection:
        return self.worker.protection

    @property
    def overload_monitor(self) -> OverloadMonitor:
        return self.worker.overload_monitor

    @property
    def egress_quota(self) -> EgressQuota:
        return self.worker.protocol.egress_quota

    @property
    def trace_file(self) -> TraceFile | None:
        return self.worker.trace_file

    @property
    def client_overrides(self) -> ClientOverrides:
        return self.worker.client_overrides

    @property
    def interval_metrics(self) -> IntervalMetrics:
        return self.worker.interval_metrics

    @property
    def overload_snapshot(self) -> OverloadSnapshot:
        return self.worker.overload_snapshot

    @property
    def diagnostics(self) -> ClientDiagnostics:
        return self.worker.diagnostics

    @property
    def offload(self) -> Offload:
        return self.worker.offload


class Broker(Probe):
    """A worker with its clients, and a clock that stands still between calls of `advance()`."""

    def __init__(
        self,
        config: Config | None = None,
        connections: int = 1000,
        redis: RedisAddress | None = None,
        identity: WorkerId | None = None,
        alone: bool = False,
        neighbours: TakeoverRequests | None = None,
        clock: Clock | None = None,
        wall: Callable[[], float] = time.time,
        trace: str = "",
        workers: int = 1,
    ) -> None:
        self.clock = clock or Clock()
        self.threads = AtOnce()
        self.worker = Worker(
            config or Config(),
            connections,
            self.clock,
            self.threads,
            redis=redis,
            identity=identity,
            alone=alone,
            neighbours=neighbours,
            wall=wall,
            trace=trace,
            workers=workers,
        )
        self.kernel = Kernel(self.worker.reactor.epoll)
        self.worker.reactor.epoll = self.kernel  # type: ignore[assignment]  # it has all methods of the other one
        self.node: list[Broker] = [self]  # the workers that settle together
        self.stopped = False  # true: its loop is not turned
        self.answered = False  # true: it has settled only when Redis has answered everything
        self.number = self.shard  # among all workers of the test
        self._clients: list[Client] = []

    def open(self, version: int = V311, transport: Transport = TCP, address: str = "test:0") -> "Client":
        """A connection that has not sent anything yet."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.setblocking(False)
        self.worker.loop.adopt(theirs, address, self.clock.now, transport)
        client = Client(self, ours, version)
        self._clients.append(client)
        return client

    def listen(self) -> tuple[str, int]:
        """Have the broker listen on a free TCP port; its address."""
        (listener,) = listen(Tcp(host=("127.0.0.1",), port=0), self.worker.base.config.delivery)
        self.worker.loop.listen(listener)
        host, port = listener.getsockname()
        return host, port

    def dial(self, address: tuple[str, int], version: int = V311, receive_buffer: int = 0) -> "Client":
        """A connection over TCP to *address*, where the broker listens. *receive_buffer*: in bytes; 0: the kernel's."""
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)  # before it connects, or it is late
        try:
            sock.connect(address)
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        client = Client(self, sock, version)
        self._clients.append(client)
        return client

    def connect(
        self,
        client_id: str,
        version: int = V311,
        *,
        clean_start: bool = True,
        keep_alive: int = 0,
        will: Will | None = None,
        properties: Properties | None = None,
        user: str | None = None,
        password: bytes | None = None,
    ) -> "Client":
        """A client that is connected; its CONNACK is in `connack`."""
        client = self.open(version)
        client.send(Connect(version, client_id, clean_start, keep_alive, user, password, will, properties or {}))
        answer = client.receive()
        assert isinstance(answer[0], ConnAck), answer
        client.connack = answer[0]
        client.inbox.extend(answer[1:])
        return client

    def settle(self) -> None:
        """Let the broker do all there is to do now."""
        for _ in range(10_000):
            running = [broker for broker in self.node if not broker.stopped]
            busy = [broker.turn() for broker in running]
            if any(busy) or (len(running) > 1 and any(broker.has_events() for broker in running)):
                continue
            if not any(broker.waits_for_redis() for broker in running):
                return
        raise AssertionError("the broker does not settle")

    def turn(self) -> bool:
        """One slice; false if the broker had nothing to do and no client anything to read."""
        self.clock.looks = 0
        before = sum(client.pull() for client in self._clients)
        self.worker.reactor.wake()
        wait = self.worker.loop.turn()
        self.worker.client_log.write_held()
        return wait <= 0.0 or before > 0 or any(client.pull() for client in self._clients)

    def session(self, client_id: str) -> Session | None:
        """The session of *client_id*, which is read if it is in Redis alone."""
        cold = self.worker.protocol.cold
        if cold is not None and cold.warm(client_id, _ignore):
            self.settle()
        return self.worker.links.store.find(client_id)

    def waits_for_redis(self) -> bool:
        """Whether an answer of Redis is still to come; gives Redis a moment."""
        registry_client, durable = self.worker.links.registry_client, self.worker.links.durable_store
        waits = registry_client is not None and registry_client.commands.statistics.waiting > 0
        if not self.answered or not (waits or (durable is not None and durable.waits())):
            return False
        select.select([self.worker.loop], [], [], 0.01)
        return True

    def has_events(self) -> bool:
        """Another worker has sent something since its last slice."""
        readable, _, _ = select.select([self.worker.loop], [], [], 0)
        return bool(readable)

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass, a tenth at a time."""
        for _ in range(round(seconds * 10)):
            self.clock.now += 0.1
            self.settle()

    def close(self) -> None:
        for client in self._clients:
            client.socket.close()
        if self.worker.links.node_lanes is not None:
            self.worker.links.node_lanes.stop(self.clock.now)
        self.worker.loop.shut_down()


def _ignore(warm: bool) -> None:
    pass


class Client:
    """One connection to the broker; what it was sent is read by `receive()`."""

    def __init__(self, broker: Broker, sock: socket.socket, version: int) -> None:
        self.broker = broker
        self.socket = sock
        self.version = version
        self.connack = ConnAck(False)
        self.inbox: list[Packet] = []
        self.closed = False  # by the broker
        self.reading = True  # false: a client that does not read
        self._reader = PacketReader(version, LARGEST)
        self._posted = b""

    def send(self, *packets: Packet) -> None:
        """Send without waiting for anything."""
        self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        """Send *data*, letting the broker read when the socket is full."""
        settled = 0
        while data:
            try:
                data = data[self.socket.send(data) :]
                settled = 0
            except BlockingIOError:
                assert settled < PATIENCE, "the broker does not read"
                self.broker.settle()
                settled += 1
            except (BrokenPipeError, ConnectionResetError):
                return

    def post(self, *packets: Packet) -> None:
        """Send as the broker reads, which may be later, or never."""
        self._posted += b"".join(encode(packet, self.version) for packet in packets)

    def receive(self) -> list[Packet]:
        """Let the broker settle; everything that came since the last call."""
        self.broker.settle()
        received, self.inbox = self.inbox, []
        return received

    def pull(self) -> int:
        """Read what is there, and send what was posted; how many bytes."""
        if self.closed or not self.reading:
            return 0
        total = 0
        if self._posted:
            with contextlib.suppress(BlockingIOError):
                total = self.socket.send(self._posted)
                self._posted = self._posted[total:]
        while True:
            try:
                data = self.socket.recv(65536)
            except BlockingIOError:
                return total
            except OSError:
                data = b""
            if not data:
                self.closed = True
                return total
            total += len(data)
            self.inbox.extend(self._reader.feed(data))

    def take(self, most: int) -> list[Packet]:
        """Of a client that does not read by itself: read at most *most* bytes; the packets that are whole now."""
        try:
            data = self.socket.recv(most)
        except BlockingIOError:
            return []
        assert data, "the broker has closed the connection"
        return list(self._reader.feed(data))

    def drop(self) -> None:
        """Close the socket without a DISCONNECT."""
        self.socket.close()
        self.closed = True
        self.broker.settle()


async def serve(worker: Worker, stopping: trio.Event) -> None:
    """Serve until *stopping*, as a process does that hands its sessions to nobody."""
    await worker.tasks.run(stopping, lambda: False)


__all__ = ["V5", "V311", "Broker", "Client", "Clock", "serve"]
