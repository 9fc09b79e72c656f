# Clients that are sent to other nodes: all of a node that is drained, or the surplus of one that has too many.
#
# While a node is drained, each CONNECT is refused with 0x9C (3.x: 3), and connected clients are disconnected with 0x9C
# at a pace that follows the level of the other nodes: they have to let these clients in, and their own come first. A
# client of MQTT 5 is told the node with most room. What the broker has acknowledged stays with the session, which the
# next node takes from this worker, as it does with any client that connects elsewhere. When no client is left, sessions
# that nobody has come for are offered to workers of other nodes at the same pace, so that the node can end without
# them.
#
# Clients leave in no particular order. Those that have connected one after another are often alike, such as all devices
# of a kind and then the services that read from them: in that order all of one kind would be at another node than the
# other half of the way, and each of their messages would have to cross between nodes.
#
# Why not close all at once, as when the node stops? Everybody would connect at the same moment, and the other nodes
# would throttle their own clients for that.
import random
from collections.abc import Callable
from typing import Any, Final, cast

from broker.cluster.peer import Peer
from broker.cluster.peers import Peers
from broker.cluster.takeovers import Takeovers
from broker.config.drain import Drain
from broker.log import Log
from broker.net.reactor import Reactor
from broker.overload.connects import Connects
from broker.overload.level import HIGHEST
from broker.overload.placement import DrainPace, Placement
from broker.overload.reports import Reports
from broker.protocol.connection import Connection
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.protocol.session_lifecycle import SessionLifecycle
from broker.reasons import CloseReason
from broker.session.session import Session
from broker.store.sessions import SessionStore

IDLE: Final = 0.1  # seconds between two looks while nobody has to move
EVENLY: Final = 0.02  # and while clients move: with 0.1, what 50 clients at once cost a node would delay its others
MOVING: Final = 100  # sessions on their way to other nodes
GRACE: Final = (
    3.0  # seconds for a client to come for its session itself: a worker that is offered it might be behind it
)
AGAIN: Final = 2.0  # seconds until sessions that no other worker has taken are offered again
LOGGED: Final = 1.0  # seconds between two lines about the pace


class ClientMoves:
    def __init__(
        self,
        lifecycle: ConnectionLifecycle,
        store: SessionStore,
        sessions: SessionLifecycle,
        reactor: Reactor,
        takeovers: Takeovers,
        peers: Peers,
        placement: Placement,
        reports: Reports,
        connects: Connects,
        settings: Drain,
        workers: int,
        log: Log,
        clock: Callable[[], float],
    ) -> None:
        """*settings* are those of a node of so many *workers*, each of which has an equal part of its pace."""
        self._lifecycle = lifecycle
        self._store = store
        self._sessions = sessions
        self._reactor = reactor
        self._takeovers = takeovers
        self._peers = peers
        self._placement = placement
        self._reports = reports
        self._connects = connects
        self._pace = DrainPace(settings.fastest / workers, settings.slowest / workers)
        self._log = log
        self._clock = clock
        self._forced = False
        self._surplus = 0  # clients that are still to move, while the node is not drained
        self._moved = 0  # clients that were disconnected since the drain or the rebalancing began
        self._offered = 0  # sessions, since the drain began
        self._left: list[Connection] = []  # to be disconnected
        self._resting: list[Session] = []  # to be offered
        self._offer_at = 0.0
        self._level = -1.0  # the level that the pace follows; -1: clients stay, as there is no other node
        self._logged_at = 0.0
        self._logged = -2  # the level in the last line about the pace

    def drain(self, on: bool, forced: bool) -> None:
        """Begin to drain the node, or end it: its clients stay, and new ones come in.

        *forced*: also if there is no other node.
        """
        now = self._clock()
        self._forced = forced
        if on == self._lifecycle.draining:
            return
        self._lifecycle.draining = on
        self._surplus = 0
        self._left, self._resting = [], []
        if on:
            self._begin(now)
            self._lifecycle.refuse_attempts(CloseReason.DRAINING, now)
            self._reactor.wake()

    def rebalance(self) -> int:
        """Have the surplus of clients use other nodes, at the pace of a drain; returns how many these are here."""
        now = self._clock()
        if self._lifecycle.draining:
            return 0
        self._surplus = self._placement.surplus(self._lifecycle.connected, now)
        if self._surplus:
            self._begin(now)
        return self._surplus

    def _begin(self, now: float) -> None:
        self._pace.begin(now)
        self._moved = self._offered = 0
        self._offer_at = now
        self._level = -1.0
        self._logged = -2
        self._left = []

    def run(self) -> float:
        """Disconnect the clients that may leave now; return the seconds until this is to be called again."""
        now = self._clock()
        reports = self._reports
        reports.clients, reports.connect_wait = self._lifecycle.connected, self._connects.ahead()
        if not self._lifecycle.draining and not self._surplus:
            return IDLE
        level = self._level_of_others(now)
        self._level = level
        self._log_pace(now)
        if level < 0.0:
            self._pace.begin(now)
            return IDLE
        moved = False
        for _ in range(self._pace.take(level, self._placement.strain(now), now)):
            if not self._move_one(now):
                break
            moved = True
        if moved:
            self._reactor.wake()
        return EVENLY if self._lifecycle.connected or self._resting else IDLE

    def _level_of_others(self, now: float) -> float:
        """The level that the pace follows; -1: clients stay."""
        if self._placement.others(now):
            return self._placement.load(now)
        if self._lifecycle.draining and self._forced:
            return 0.0  # there is nobody to take care of
        return -1.0

    def _move_one(self, now: float) -> bool:
        """Disconnect a client, or offer a session; false: there is none to move now."""
        if self._lifecycle.draining:
            return self._disconnect_one(CloseReason.DRAINING, now) or self._offer_one(now)
        if self._surplus and self._disconnect_one(CloseReason.REBALANCED, now):
            self._surplus -= 1
            if self._surplus:
                return True
        self._surplus = 0
        self._log.info("rebalanced", clients=self._moved)
        return False

    def _disconnect_one(self, reason: CloseReason, now: float) -> bool:
        if not self._left and self._lifecycle.connected:
            self._left = [cast(Connection, stream) for stream in self._reactor.streams()]
        while self._left:
            connection = self._any_left()
            if connection.session is None or connection.ended():
                continue
            room = self._placement.send(now)
            reference = "" if room is None else room.reference
            self._lifecycle.close(connection, reason, now, f"use {reference}" if reference else "", reference)
            self._moved += 1
            return True
        return False

    def _any_left(self) -> Connection:
        left = self._left
        place = int(random.random() * len(left))
        left[place], left[-1] = left[-1], left[place]
        return left.pop()

    def _offer_one(self, now: float) -> bool:
        """Offer a session without a client to a worker of another node."""
        if self._takeovers.leaving() >= MOVING:
            return False
        if not self._resting:
            if now < self._offer_at:
                return False
            self._offer_at = now + AGAIN
            self._resting = list(self._store.sessions())
        peers = self._open_peers(now)
        while self._resting and peers:
            session = self._resting.pop()
            if self._rests(session, now):
                self._offered += 1
                self._takeovers.offer_to(session, peers[self._offered % len(peers)])
                return True
        return False

    def _rests(self, session: Session, now: float) -> bool:
        """Whether *session* has had no client for a while."""
        if session.outbox is not None or session.ended or not session.expiry_timer:
            return False
        return session.expiry - (self._sessions.expires(session) - now) >= GRACE

    def _open_peers(self, now: float) -> list[Peer]:
        """The workers of other nodes that take clients."""
        names = {room.name for room in self._placement.others(now)}
        return [peer for peer in self._peers.all if peer.worker.node in names]

    def _log_pace(self, now: float) -> None:
        """Log how quickly clients leave, if that has changed."""
        shown = int(-(-self._level // 1))
        if shown == self._logged or now - self._logged_at < LOGGED:
            return
        self._logged, self._logged_at = shown, now
        self._log.info(
            "drain_paced",
            clients=self._lifecycle.connected,
            clients_per_second=self._per_second(),
            level_of_others=None if self._level < 0.0 else shown,
        )

    def _per_second(self) -> float:
        return 0.0 if self._level < 0.0 else round(self._pace.rate(min(HIGHEST, self._level)), 1)

    def statistics(self) -> dict[str, Any]:
        """How far it is; `level`: None while clients stay, as no other node takes any."""
        return {
            "draining": self._lifecycle.draining,
            "clients": self._lifecycle.connected,
            "sessions": self._store.count_here(),
            "sessions_in_memory": self._store.count_in_memory(),
            "surplus": self._surplus,
            "moved": self._moved,
            "offered": self._offered,
            "clients_per_second": self._per_second(),
            "level": None if self._level < 0.0 else round(self._level, 3),
        }
