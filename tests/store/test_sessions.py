# What every store of sessions does.
from broker.config.schema import Overload
from broker.metrics.counters import Counters
from broker.mqtt.packets import Will
from broker.overload.gate import Gate
from broker.reasons import CloseReason
from broker.session.limits import SessionLimits
from broker.session.principal import ANONYMOUS, ANYBODY, Principal, owner_tag
from broker.session.queue import MessageBudget
from broker.session.session import Session
from broker.session.storage import SessionStorage
from broker.store.sessions import MemorySessions


def session(client_id: str) -> Session:
    return Session(
        client_id, SessionLimits(inflight=1, pending=1, queue=1, queue_bytes=1, budget=MessageBudget(1)), Counters()
    )


class Asking:
    """A CONNECT that remembers how it was answered."""

    def __init__(
        self,
        client_id: str,
        clean_start: bool = False,
        expiry: int = 0,
        will: Will | None = None,
        owner: str = ANONYMOUS,
    ) -> None:
        self.client_id = client_id
        self.clean_start = clean_start
        self.expiry = expiry
        self.will = will
        self.user: str | None = None
        self.owner = owner
        self.answers: list[Session | CloseReason | None] = []

    def found(self, session: Session | None) -> None:
        self.answers.append(session)

    def refused(self, reason: CloseReason) -> None:
        self.answers.append(reason)


def claimed(store: MemorySessions, client_id: str, owner: str = ANONYMOUS) -> Session | CloseReason | None:
    asking = Asking(client_id, owner=owner)
    store.claim(asking)
    (answer,) = asking.answers
    return answer


def test_a_session_is_found_until_it_is_forgotten() -> None:
    """A client would not get its session back, or get one that ended [MQTT-3.1.4-3]."""
    store = MemorySessions()
    one, two = session("one"), session("two")
    store.keep(one)
    store.keep(two)
    assert (one, two, None) == (claimed(store, "one"), claimed(store, "two"), claimed(store, "three"))
    assert (2, [one, two]) == (store.count(), list(store.sessions()))

    store.forget(one)
    store.forget(one)

    assert (None, two) == (claimed(store, "one"), claimed(store, "two"))
    assert (1, [two]) == (store.count(), list(store.sessions()))


def test_the_end_of_a_former_session_leaves_the_new_one() -> None:
    """A client that started clean would lose its new session when the old one is cleared away."""
    store = MemorySessions()
    former, new = session("one"), session("one")
    store.keep(former)
    store.keep(new)

    store.forget(former)

    assert (new, 1) == (claimed(store, "one"), store.count())


def test_sessions_that_are_stored_elsewhere_do_not_end_with_the_worker() -> None:
    """After the death of a worker an operator would be told a wrong number of lost sessions."""
    store = MemorySessions()
    former, new, other = session("one"), session("one"), session("two")
    former.storage = other.storage = SessionStorage(Gate(Overload(), "store", 1, 0.0))
    for kept in (former, other):
        store.keep(kept)
    assert (2, 0) == (store.count(), store.count_in_memory())

    store.keep(new)
    store.forget(former)
    assert (2, 1) == (store.count(), store.count_in_memory())
    store.forget(new)
    store.forget(other)
    assert (0, 0) == (store.count(), store.count_in_memory())


def test_a_session_is_found_by_its_user() -> None:
    """Another user would get the queue and the rights of a client, or its own user would not get them back."""
    store = MemorySessions()
    one = session("one")
    one.principal = Principal("one", "alice", 0)
    store.keep(one)

    assert CloseReason.CLIENT_ID_OF_OTHER_USER is claimed(store, "one", owner_tag(b"bob"))
    assert CloseReason.CLIENT_ID_OF_OTHER_USER is claimed(store, "one", ANONYMOUS)
    assert (one, one) == (claimed(store, "one", owner_tag(b"alice")), claimed(store, "one", ANYBODY))
