# The sessions of a worker that is one of several: in its memory, and owned as the registry says.
#
# A claim asks the registry first. Who owned the session until then hands it over, which is the neighbours' part (the
# mesh between workers), as is the claim within the node while Redis is away. What is claimed and then not kept, as its
# client has gone meanwhile, is released again.
from collections.abc import Callable, Iterable
from typing import Protocol

from broker.session.session import Session
from broker.store.owner import Owner
from broker.store.registry import LOCAL, REFUSED, Registry, Verdict
from broker.store.sessions import MemorySessions

Then = Callable[[Session | None], None]


class Wish:
    """What a CONNECT says of the session that it wants."""

    def __init__(self, lasting: bool, will: bytes, refused: Callable[[], None]) -> None:
        """*will*: as `will_record.encode()` makes it, or b""; *refused*: called instead of *then*, with 0x88 to say."""
        self.lasting = lasting
        self.will = will
        self.refused = refused


class Neighbours(Protocol):
    """The other workers of the node, and of other nodes. Both answer once, perhaps at once."""

    def take_over(self, client_id: str, former: Owner, epoch: int, then: Then) -> None:
        """Have *former* hand over the session, which we own with *epoch*; None if it is dead, or has none."""
        ...

    def claim_within_node(self, client_id: str, then: Then) -> None:
        """Redis is away: have whoever of this node owns the session hand it over; None if nobody does."""
        ...


class RegisteredSessions:
    """A `SessionStore`."""

    def __init__(self, registry: Registry, neighbours: Neighbours, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._neighbours = neighbours
        self._clock = clock
        self._memory = MemorySessions()

    def claim(self, client_id: str, then: Then, wish: Wish | None = None) -> None:
        """Find the session of *client_id*; without a *wish* for a client that leaves nothing behind."""
        wanted = wish or Wish(False, b"", _nothing)
        self._registry.claim(
            client_id, wanted.lasting, wanted.will, _Claimed(self, client_id, wanted, then), self._clock()
        )

    def decided(self, client_id: str, wish: Wish, then: Then, verdict: Verdict) -> None:
        """The registry has answered."""
        arrive = _Arriving(self, client_id, then, wish.will if verdict.outcome == LOCAL else None)
        here = self._memory.get(client_id)
        if verdict.outcome == REFUSED:
            wish.refused()
        elif verdict.outcome == LOCAL and here is None:
            self._neighbours.claim_within_node(client_id, arrive)
        elif verdict.former is not None:
            self._neighbours.take_over(client_id, verdict.former, verdict.epoch, arrive)
        else:
            arrive(here)

    def arrived(self, client_id: str, then: Then, will: bytes | None, session: Session | None) -> None:
        """Whoever had the *session* has handed it over; *will*: of a claim that Redis does not know."""
        if will is not None:
            self._registry.hold_locally(client_id, will)
        then(session)
        if self._memory.get(client_id) is None:
            self._registry.release(client_id, self._clock())

    def keep(self, session: Session) -> None:
        self._memory.keep(session)

    def forget(self, session: Session) -> None:
        if self._memory.get(session.client_id) is session:
            self._registry.release(session.client_id, self._clock())
        self._memory.forget(session)

    def get(self, client_id: str) -> Session | None:
        """The session of *client_id* that is here."""
        return self._memory.get(client_id)

    def sessions(self) -> Iterable[Session]:
        return self._memory.sessions()

    def count(self) -> int:
        return self._memory.count()


class _Claimed:
    """What to do when the registry has answered."""

    def __init__(self, store: RegisteredSessions, client_id: str, wish: Wish, then: Then) -> None:
        self._store = store
        self._client_id = client_id
        self._wish = wish
        self._then = then

    def __call__(self, verdict: Verdict) -> None:
        self._store.decided(self._client_id, self._wish, self._then, verdict)


class _Arriving:
    """What to do when the session is here."""

    def __init__(self, store: RegisteredSessions, client_id: str, then: Then, will: bytes | None) -> None:
        self._store = store
        self._client_id = client_id
        self._then = then
        self._will = will

    def __call__(self, session: Session | None) -> None:
        self._store.arrived(self._client_id, self._then, self._will, session)


def _nothing() -> None:
    pass
