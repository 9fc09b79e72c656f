# Pending wills: wills of durable sessions that are published, and that some durable receiver does not have yet.
#
# The will of a durable session is stored with it (store/durable/record.py). Once published, it would be lost if its
# worker died before all durable receivers had stored it, some of them at other workers. So while its Completion is
# pending, the will has a record of its own, which is stored before the will is removed from the record of its session,
# or with that. The client may come back meanwhile, with another will, or move to another worker: that concerns the
# session, not the will that was published. The worker that adopts the record publishes the will again. So does this
# worker, if a receiver may have lost it (`CompletionListener.abandoned()`), and one to which the session was about to
# move, if this one dies before either is stored: it finds the will in the record of a session that has come without it.
# And so does one that has taken the session from this one, as it did not answer, if this one dies before it has told
# that it knows: until then the will waits there (`hold()`, cluster/forced_takeovers.py).
#
# Each will has a token (store/durable/tokens.py), which is stored with it from the beginning: so durable receivers take
# it once, at QoS 1 as well, however often it is published. Each token has an origin of its own: wills of several
# sessions, published again by several workers, come in no order. Receivers in memory, and a member of a shared
# subscription, may get it twice after a crash.
#
# In time a will that is published again may be behind what its client has retained since, in its next connection: it is
# retained again only if nothing was retained on its topic later than the will.
#
# The name of such a record is NUL, "w", the origin of the token in hexadecimal digits, and the client id.
#
# While Redis is full, too, a stored will gets its own record, as what removes it from that of its session is carried
# out then (store/durable/removals.py). One that is not stored yet waits in memory for both: it is lost with its worker.
#
# The road not taken: to leave the will in the record of its session until it is done. The next session of the client
# has the same record, and whoever writes the next will there would lose the one before.
from collections.abc import Callable
from typing import Final

from broker.delivery.completion import Completion, CompletionListener
from broker.delivery.outbox import Outbox
from broker.protocol.timers import PENDING_WILL, Timers
from broker.session.message import Message
from broker.session.principal import UNJUDGED, Principal
from broker.session.reserve import Reserve
from broker.session.session import Session
from broker.session.will import Will
from broker.store.durable.adoption import AdoptedSession, set_aside
from broker.store.durable.group_queue import PENDING
from broker.store.durable.record import SessionRecord
from broker.store.durable.store import DurableStore
from broker.store.durable.tokens import ORIGIN, new_token

RECORD: Final = 1000  # bytes of memory that one takes beside its will, about
FIRST: Final = 0.0  # in place of the time at which a will was published before

# Publishes a message for a client id and principal; its session, if it is here; Unix time at which it was published
# before, or FIRST; now.
Publish = Callable[[Message, str, Principal, Session | None, float, float], None]


class PendingWills:
    """Those of a worker."""

    def __init__(self, store: DurableStore, publish: Publish, timers: Timers, reserve: Reserve) -> None:
        """*reserve*: the account of wills, in which each counts until it is done."""
        self._store = store
        self._publish = publish
        self._timers = timers
        self._reserve = reserve
        self._wills: dict[bytes, PendingWill] = {}  # by name

    def publish(self, will: Will, session: Session, later: bool, now: float) -> None:
        """Publish *will* of *session*, which counts in the account of wills, or *later*: see `again()`.

        To be called before the store is told that the session has no will any more, or has ended.
        """
        pending = self._begin(will, session)
        if pending is None:
            return
        if not later:
            self._send(pending, session, now)
        if pending.done:
            return
        self._keep(pending, session)
        if later:
            self.again(pending, now)

    def hold(self, will: Will, session: Session) -> "PendingWill | None":
        """Keep *will* of *session*, as `publish()` does, until `again()` or `ended()` is called; None: it is kept."""
        pending = self._begin(will, session)
        if pending is not None:
            self._keep(pending, session)
        return pending

    def _begin(self, will: Will, session: Session) -> "PendingWill | None":
        if not will.token:  # it was stored by a worker that gave none
            will.token = new_token()
        name = b"%b%b%b" % (PENDING, will.token[:ORIGIN].hex().encode(), session.client_id.encode())
        if name in self._wills:  # it was read beside its session: a worker died between two transactions
            self._reserve.give_back(will.held)
            return None
        return PendingWill(self, name, session.client_id, session.principal, will)

    def _keep(self, pending: "PendingWill", session: Session) -> None:
        pending.published = self._store.wall()
        record = pending.record = self._store.begin(pending.name)
        record.store_head(0, session.principal.user, False)
        record.store_will(pending.will)
        if session.storage is not None and session.storage.has_stored_will():
            record.replace()
        self._wills[pending.name] = pending
        self._reserve.take(RECORD)

    def adopt(self, adopted: AdoptedSession, now: float) -> None:
        """Publish the will that was read, of a worker that has ended, as soon as all its receivers are known."""
        name, stored = adopted.client_id.encode(), adopted.stored
        will = stored.will
        if will is None or not will.token:
            set_aside(adopted.record, "it is no will")
            return
        client_id = name[len(PENDING) + 2 * ORIGIN :].decode()
        pending = PendingWill(self, name, client_id, Principal(client_id, stored.user, UNJUDGED), will)
        pending.record = adopted.record
        pending.published = stored.left
        self._wills[name] = pending
        self._reserve.take(will.held + RECORD)
        self.again(pending, now)

    def has(self, name: bytes) -> bool:
        """Whether the will *name* is here."""
        return name in self._wills

    def again(self, pending: "PendingWill", now: float) -> None:
        """Have *pending* published again, soon: with the timers, which are held until all receivers are known."""
        self._timers.set(now, PENDING_WILL, pending)

    def publish_again(self, pending: "PendingWill", now: float) -> None:
        """Publish *pending* again: a receiver may have lost it."""
        if not pending.done:
            self._send(pending, None, now)

    def _send(self, pending: "PendingWill", session: Session | None, now: float) -> None:
        message = pending.will.message(now)
        completion: Completion | None = None
        if message.qos:  # at QoS 0 nobody stores it, and nobody waits
            completion = message.hold()
            completion.token = pending.will.token
        self._publish(message, pending.client_id, pending.principal, session, pending.published, now)
        if completion is not None:
            completion.settle(now)
            if completion.pending:
                completion.queue = pending
                pending.completion = completion
                return
        self.ended(pending)

    def ended(self, pending: "PendingWill") -> None:
        """All receivers have *pending*, or nobody is to get it."""
        pending.done = True
        self._reserve.give_back(pending.will.held)
        if pending.record is not None:
            pending.record.end()
            del self._wills[pending.name]
            self._reserve.give_back(RECORD)


class PendingWill(CompletionListener):
    def __init__(self, wills: PendingWills, name: bytes, client_id: str, principal: Principal, will: Will) -> None:
        self.name = name
        self.client_id = client_id
        self.principal = principal
        self.will = will
        self.done = False
        self.published = FIRST  # Unix time in seconds
        self.record: SessionRecord | None = None
        self.completion: Completion | None = None  # of its publish that is under way
        self._wills = wills

    def advance(self, now: float) -> None:
        self.completion = None
        self._wills.ended(self)

    def abandoned(self, now: float) -> Outbox | None:
        if self.completion is not None:  # it may be settled all the same, by whoever does not have the receiver now
            self.completion.queue = None
            self.completion = None
        self._wills.again(self, now)
        return None
