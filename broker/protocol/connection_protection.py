# Overload protection, egress quota and pace of connections: what joins broker/overload to sockets and sessions.
from typing import cast

from broker.delivery.catching_up import Paces
from broker.delivery.egress_quota import EgressQuota
from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.overload.client import ProtectedClient
from broker.overload.credits import Account
from broker.overload.monitor import OverloadMonitor
from broker.overload.protection import Protection
from broker.overload.store_rate import StoreRate
from broker.protocol.connection import Connection
from broker.session.session import Session
from broker.store.sessions import SessionStore


class ProtectedConnection(ProtectedClient):
    def __init__(
        self, connection: Connection, session: Session, account: Account, reactor: Reactor, reads_ahead: bool
    ) -> None:
        super().__init__(session.client_id, connection.user, connection.version, account)
        self._connection = connection
        self._session = session
        self._reactor = reactor
        self._reads_ahead = reads_ahead

    def pause(self) -> None:
        if self._reads_ahead:
            self._reactor.pause_reading_ahead(self._connection, Pause.OVERLOAD)
        else:
            self._reactor.pause(self._connection, Pause.OVERLOAD)

    def resume(self) -> None:
        self._reactor.resume(self._connection, Pause.OVERLOAD)

    def writable(self, now: float) -> None:
        self._reactor.report_drained(self._connection)

    def note(self, kind: int, reason: str, now: float) -> bool:
        return self._session.note(kind, reason, now)

    def take_replayed(self) -> int:
        """Messages that were replayed to the client and are not charged yet; they count as charged from now on."""
        session = self._session
        count, session.replayed = session.replayed, 0
        return count


class ConnectionProtection:
    def __init__(
        self,
        protection: Protection,
        monitor: OverloadMonitor,
        egress: EgressQuota,
        paces: Paces,
        store_rate: StoreRate | None,
        store: SessionStore,
        reactor: Reactor,
    ) -> None:
        self._protection = protection
        self._monitor = monitor
        self._egress = egress
        self._paces = paces
        self._store_rate = store_rate
        self._store = store
        self._reactor = reactor

    def arrive(self, connection: Connection, session: Session, now: float) -> None:
        """*connection* has *session* from now on."""
        protection = self._protection
        account = protection.accounts.arrive(protection.owners.owner(session.client_id, connection.user), now)
        client = ProtectedConnection(connection, session, account, self._reactor, protection.honour)
        connection.client = client
        protection.arrive(client, now)
        self._egress.arrive(client, connection.outbox)
        if session.waiting() or session.inflight():
            self._paces.arrive(client, connection.outbox)

    def limit_again(self, session: Session, now: float) -> None:
        """The configured limits have changed: apply those of *session* to its connection, if it has one."""
        outbox = session.outbox
        client = self.find(session.client_id)
        if client is None or outbox is None:
            return
        self._egress.leave(outbox, now)
        self._protection.limit_again(client, now)
        self._egress.arrive(client, outbox)
        self._paces.change(client, outbox)
        client.writable(now)

    def leave(self, connection: Connection, now: float) -> None:
        """*connection*, which had a session, has ended."""
        client = connection.client
        if client is not None:
            self.charge_replays(client)
            connection.client = None  # the client has the connection: the two would be a cycle
            self._egress.leave(connection.outbox, now)
            self._paces.leave(connection.outbox)
            self._protection.leave(client, now)

    def find(self, client_id: str) -> ProtectedClient | None:
        """The client *client_id*, if it is connected to this worker."""
        session = self._store.find(client_id)
        if session is None or session.outbox is None:
            return None
        stream = self._reactor.stream_of(session.outbox)
        return None if stream is None else cast(Connection, stream).client

    def charge_replays(self, client: ProtectedClient) -> None:
        """Charge what was replayed to *client* since the last call."""
        assert isinstance(client, ProtectedConnection)
        client.account.spent += self._protection.prices.replayed(client.take_replayed())

    def charge_visits(self, client: ProtectedClient, visits: int) -> None:
        """Charge *client* for *visits* of tree levels and receivers."""
        client.account.spent += self._protection.prices.visited(visits)

    def honours_silence(self) -> bool:
        """Whether a client that is throttled stays connected, however long it is not read."""
        return self._protection.honour

    def causes_silence(self, connection: Connection) -> bool:
        """Whether *connection* is silent because it is not read, and is not closed for that.

        With `overload.keepalive_while_throttled = "strict"` a client that overload protection does not read is closed.
        """
        return bool(connection.paused if self._protection.honour else connection.paused & ~Pause.OVERLOAD)

    def defers(self, connection: Connection, filters: int, now: float) -> bool:
        """Whether a SUBSCRIBE with so many *filters* has to wait; if so, *connection* is paused."""
        client = connection.client
        return client is not None and client.quota is not None and self._protection.defers(client, filters, now)

    def tick(self, now: float) -> float:
        """Do what is due; return the time of the next thing."""
        rate = self._store_rate
        due = self._monitor.tick(now) if rate is None else min(self._monitor.tick(now), rate.tick(now))
        due = min(due, self._protection.throttle.tick(now))
        return min(due, self._egress.tick(now), self._paces.tick(now))
