# The sessions of a worker that is one of several: in its memory, and owned as the registry says.
from collections.abc import Callable, Iterable

from broker.cluster.registry import Registry
from broker.session.session import Session
from broker.store.sessions import MemorySessions


class RegisteredStore:
    """A `SessionStore`."""

    def __init__(
        self, registry: Registry, clock: Callable[[], float], will_settled: Callable[[str, int], None]
    ) -> None:
        """*will_settled* is called with a client id, and the epoch of its claim, if its will is done with while Redis
        cannot be told: should this worker die now, the will must not be published.
        """
        self._registry = registry
        self._clock = clock
        self._will_settled = will_settled
        self._memory = MemorySessions()
        self._claimed: set[str] = set()  # client ids for which a claim is under way

    def claim_begins(self, client_id: str) -> None:
        self._claimed.add(client_id)

    def claim_ends(self, client_id: str) -> None:
        """Release *client_id* in the registry if the claim has left no session, as its client is gone."""
        self._claimed.discard(client_id)
        if self._memory.find(client_id) is None:
            self._registry.release(client_id)

    def keep(self, session: Session) -> None:
        self._memory.keep(session)

    def forget(self, session: Session) -> None:
        client_id = session.client_id
        # While a claim is under way, the client id is owned for the session that follows this one.
        if self._memory.find(client_id) is session and client_id not in self._claimed:
            epoch = self._registry.epoch_of(client_id)
            self._registry.release(client_id)
            if session.will is not None:  # it is published now: were this worker killed next, it would be once more
                self._registry.send_now(self._clock())
                if self._registry.owned.ended(client_id):  # Redis cannot be told now
                    self._will_settled(client_id, epoch)
        self._memory.forget(session)

    def may_cool(self, session: Session) -> bool:
        return session.client_id not in self._claimed and self._registry.owned.may_forget(session.client_id)

    def cool(self, session: Session) -> None:
        self._registry.owned.forget(session.client_id)
        self._memory.forget(session)

    def without_will(self, session: Session) -> None:
        if not self._registry.drop_will(session.client_id, self._clock()):
            self._will_settled(session.client_id, self._registry.epoch_of(session.client_id))

    def find(self, client_id: str) -> Session | None:
        return self._memory.find(client_id)

    def sessions(self) -> Iterable[Session]:
        return self._memory.sessions()

    def count(self) -> int:
        return self._memory.count()

    def count_here(self) -> int:
        return self._memory.count_here()

    def count_also(self, others: Callable[[], int]) -> None:
        self._memory.count_also(others)

    def count_in_memory(self) -> int:
        return self._memory.count_in_memory()

    def count_applications(self) -> int:
        return self._memory.count_applications()
