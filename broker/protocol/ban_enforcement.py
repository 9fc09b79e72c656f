# The bans of the node (broker/auth/bans.py), applied to this worker.
#
# A CONNECT is compared with the bans twice: at once, so that a banned client costs no password check, and again when
# its user is known, as a certificate may name another user and a ban may be new. A new ban also ends connections. They
# are looked through in pages, because a worker may have tens of thousands.
from collections.abc import Callable
from typing import Any, Final, cast

from broker.auth.bans import Ban, Bans, ban_from
from broker.log import Log
from broker.net.reactor import Reactor
from broker.protocol.connection import Connection
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.reasons import CloseReason

PAGE: Final = 500  # connections that are compared in one go
ENDED: Final = 50  # of them that are ended in one go: a few milliseconds


class BanEnforcement:
    def __init__(self, lifecycle: ConnectionLifecycle, reactor: Reactor, log: Log, clock: Callable[[], float]) -> None:
        self.bans = Bans()
        self._lifecycle = lifecycle
        self._reactor = reactor
        self._log = log
        self._clock = clock
        self._left: list[Connection] = []  # to be compared
        self._ended = 0  # connections, by the bans that are being enforced

    def change(self, holding: list[dict[str, Any]], over: list[list[str]]) -> None:
        """Apply the bans *holding*, each as `Ban.described()` and with `until`, and end those *over* (kind, value)."""
        for kind, value in over:
            self.bans.drop(kind, value)
        for facts in holding:
            self.bans.set(ban_from(facts, cast(float, facts["until"])))
        if not holding:
            return
        under_way = bool(self._left)
        self._left = [cast(Connection, stream) for stream in self._reactor.streams()]
        if self._left and not under_way:
            self._reactor.call(self._next_page)

    def _next_page(self) -> None:
        """Compare connections with the bans, and end those that are banned."""
        now = self._clock()
        ended = 0
        for _ in range(min(PAGE, len(self._left))):
            if self._end_if_banned(self._left.pop(), now):
                ended += 1
                if ended == ENDED:
                    break
        self._ended += ended
        if self._left:
            self._reactor.call(self._next_page)
        elif self._ended:
            self._log.info("ban_enforced", clients=self._ended)
            self._ended = 0

    def _end_if_banned(self, connection: Connection, now: float) -> bool:
        if connection.ended():
            return False
        session, attempt = connection.session, connection.attempt
        if session is None and attempt is None:
            return False  # its CONNECT will be compared
        client_id = session.client_id if session is not None else attempt.named if attempt is not None else ""
        ban = self.bans.find(client_id, connection.user, connection.address, now)
        if ban is None:
            return False
        if session is None:
            self._lifecycle.refuse(connection, CloseReason.BANNED, words(ban), now)
        else:
            self._lifecycle.close(connection, CloseReason.BANNED_WHILE_CONNECTED, now, words(ban))
        return True


def words(ban: Ban) -> str:
    """What is banned, for the log, `weir why` and the client: not the value, which may concern others."""
    return f"by {ban.kind}"
