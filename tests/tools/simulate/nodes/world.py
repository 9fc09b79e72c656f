# A cluster of many nodes in one process and in no time: one worker is whole, and all others are on paper.
#
# The whole worker is what a process of it is, with mesh, lanes, gates and level. So what is counted is what it does,
# and the rest of the cluster costs nothing that is counted. All workers are alike, so a node costs as much as its
# workers. Redis is on paper, too: it passes on what is published. Everything follows from a seed.
import heapq
from collections.abc import Callable
from random import Random
from typing import Final, cast

from hiredis import Reader

from broker.cluster.incoming_sessions import IncomingSessions
from broker.cluster.node_lanes import NodeLanes
from broker.cluster.outgoing_sessions import OutgoingSessions
from broker.cluster.owner import Owner
from broker.cluster.seal import Seal
from broker.cluster.session_claims import SessionClaims
from broker.cluster.takeovers import RegisteredTakeovers
from broker.mqtt.packets import V311, Connect
from broker.protocol.background import Background
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import READY, RedisConnection
from broker.store.redis.keys import Keys
from broker.worker_id import WorkerId
from tests.inprocess import Broker, Client
from tests.store.loop import Lines as LogLines
from tests.tools.simulate.nodes.counting import Lines
from tests.tools.simulate.nodes.paper import PaperWorker

HERE: Final = "n0"
DELAY: Final = (0.0003, 0.002)  # seconds from a worker to the next one
QUANTUM: Final = 1 << 20
PREFIX: Final = "weir"


class PaperLine:
    """The byte stream of a connection of the whole worker to Redis."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._reader = Reader()
        self.connection: RedisConnection | None = None

    def open(self, address: RedisAddress, connection: RedisConnection) -> str:
        self.connection = connection
        return ""

    def write(self, data: bytes) -> None:
        self._reader.feed(data)
        while (words := self._reader.gets()) is not False:
            self._world.asked(self, words)

    def unread(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def bring(self, data: bytes, now: float) -> None:
        assert self.connection is not None
        self.connection.receive(data, QUANTUM, now)


class WithLanes(Background):
    """The work of the whole worker for others, with lanes to other nodes."""

    def __init__(self, background: Background, lanes: NodeLanes) -> None:
        self._background = background
        self._lanes = lanes

    def tick(self, now: float) -> float:
        due = self._background.tick(now)
        return min(due, self._lanes.tick(now))

    def busy(self) -> bool:
        return self._background.busy()

    def work(self, until: float) -> bool:
        return self._background.work(until)


class NoClaims:
    """There is no registry of sessions: nobody takes one from the whole worker."""

    when_decided: Callable[[str], None]


class World:
    def __init__(self, nodes: int, workers: int, seed: int) -> None:
        """*nodes* with as many *workers* each, the node of the whole worker included; its other workers are missing."""
        self.random = Random(seed)
        self.counted = Lines()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._latest: dict[object, float] = {}
        here = WorkerId(HERE, 0, self.incarnation())
        self.broker = broker = Broker(identity=here)
        self.clock = broker.clock
        self.lines = PaperLine(self), PaperLine(self)
        self.papers: dict[bytes, PaperWorker] = {}  # by their channels
        self.log = LogLines()
        self.lanes = NodeLanes(
            broker.reactor,
            *self.lines,
            RedisAddress(host="127.0.0.1", port=1),
            PREFIX,
            here,
            broker.counters,
            self.log,
            Seal(b"", broker.counters, self.log),
            lambda: 1_700_000_000.0 + self.clock.now,
            broker.mesh.restarted,
        )
        mesh = broker.mesh
        mesh.connect_nodes(self.lanes)
        protocol = broker.worker.protocol
        abandon = protocol.lifecycle.abandon
        self.incoming = IncomingSessions(here, broker.peers, protocol.transfer, self.clock, self._failed, 0, None)
        links = broker.worker.links
        claims = cast(SessionClaims, NoClaims())
        outgoing = OutgoingSessions(here, broker.peers, links.barriers, protocol.transfer, claims, self.clock, abandon)
        takeovers = RegisteredTakeovers(here, broker.peers, self.incoming, outgoing, claims, None)
        mesh._takeovers = mesh._silent_peers._takeovers = takeovers
        broker.hub._background = WithLanes(broker.hub._background, self.lanes)
        self.lanes.start(self.clock.now)
        for node in range(1, nodes):
            for shard in range(workers):
                self.add(WorkerId(f"n{node}", shard, self.incarnation()))

    def incarnation(self) -> int:
        return self.random.getrandbits(62) + 1

    def _failed(self, error: Exception) -> None:
        raise error

    def add(self, worker: WorkerId) -> PaperWorker:
        """A worker of another node, which is not joined yet."""
        channel = Keys(PREFIX).lane(0, worker.incarnation_text)
        paper = self.papers[channel] = PaperWorker(worker, self._sent)
        return paper

    def close(self) -> None:
        self.lanes.stop(self.clock.now)
        self.broker.close()

    # Time.

    def at(self, when: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, event))

    def later(self, channel: object) -> float:
        """A moment after all that came before over *channel*."""
        when = max(self.clock.now + self.random.uniform(*DELAY), self._latest.get(channel, 0.0))
        self._latest[channel] = when
        return when

    def run(self, until: float) -> None:
        """Let time pass until *until*."""
        clock, events = self.clock, self._events
        while True:
            clock.looks = 0
            with self.counted.counted():
                wait = self.broker.worker.loop.turn()
            for client in self.broker._clients:
                client.pull()
            if wait <= 0.0 or self.broker.has_events():
                continue
            due = min(until, clock.now + wait, events[0][0] if events else until)
            if due >= until:
                clock.now = until
                return
            clock.now = max(clock.now, due)
            while events and events[0][0] <= clock.now:
                heapq.heappop(events)[2]()

    def run_for(self, seconds: float) -> None:
        self.run(self.clock.now + seconds)

    # Redis.

    def asked(self, line: PaperLine, words: list[bytes]) -> None:
        if words[0] != b"PUBLISH":
            pong = words[0] == b"PING" and self._subscribed() and line is self.lines[1]
            self._bring(line, b"*2\r\n$4\r\npong\r\n$0\r\n\r\n" if pong else b"+OK\r\n")
            return
        paper = self.papers.get(words[1])
        self._bring(line, b":%d\r\n" % (paper is not None))
        if paper is not None:
            self.at(self.later(paper), lambda: self._reach(paper, words[2]))

    def _reach(self, paper: PaperWorker, message: bytes) -> None:
        paper.receive(message, self.clock.now)
        self._wake(paper)

    def _wake(self, paper: PaperWorker) -> None:
        """Have *paper* do what is due, when it is."""
        due = paper.tick(self.clock.now)
        if due < self.clock.now + 3600.0:
            self.at(max(due, self.clock.now + 1e-4), lambda: self._wake_again(paper, due))

    def _wake_again(self, paper: PaperWorker, due: float) -> None:
        if paper.pair.due() <= self.clock.now:
            self._wake(paper)

    def _sent(self, paper: PaperWorker, message: bytes) -> None:
        """*paper* has published *message* for the whole worker."""
        subscribed = self._subscribed()
        if subscribed:
            data = b"*3\r\n$7\r\nmessage\r\n$7\r\nchannel\r\n$%d\r\n%b\r\n" % (len(message), message)
            self._bring(self.lines[1], data)
        pair = paper.pair
        self.at(self.later(("reply", paper)), lambda: pair.published(int(subscribed), self.clock.now))

    def _subscribed(self) -> bool:
        connection = self.lines[1].connection
        return connection is not None and connection.state == READY

    def _bring(self, line: PaperLine, data: bytes) -> None:
        self.at(self.later(line), lambda: self._receive(line, data))

    def _receive(self, line: PaperLine, data: bytes) -> None:
        with self.counted.counted():
            line.bring(data, self.clock.now)

    # What happens in the cluster.

    def join_all(self) -> None:
        """All workers of other nodes are listed."""
        for paper in list(self.papers.values()):
            self.join(paper)

    def join(self, paper: PaperWorker) -> None:
        with self.counted.counted():
            self.broker.mesh.join_distant(paper.worker)
        paper.connected(self.clock.now)
        self._wake(paper)

    def leave(self, paper: PaperWorker) -> None:
        """The node of *paper* has ended, or its lease has."""
        del self.papers[Keys(PREFIX).lane(0, paper.worker.incarnation_text)]
        with self.counted.counted():
            self.broker.mesh.leave(paper.worker)

    def any(self) -> PaperWorker:
        return self.random.choice(list(self.papers.values()))

    def client(self, name: str) -> Client:
        """A client of the whole worker."""
        client = self.broker.open(V311)
        client.post(Connect(V311, name, True, 0, None, None, None, {}))
        self.run_for(0.1)
        client.inbox.clear()
        return client

    def take_over(self, paper: PaperWorker, number: int, answers: list[object]) -> None:
        """A client has come here whose session *paper* had; what becomes of that is added to *answers*."""
        with self.counted.counted():
            self.incoming.take_over(f"client-{number}", Owner(1, paper.worker, ""), 2, "", True, answers.append)
