# Sessions of several workers on one real registry.
from collections.abc import Callable

import pytest

from broker.session.session import Session
from broker.store.owner import Owner
from broker.store.registered import RegisteredSessions, Wish
from tests.redis_servers import RunningRedis
from tests.store.loop import Loop
from tests.store.shard import Shard
from tests.store.test_registry import owner
from tests.store.test_sessions import session

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]


class Neighbours:
    """Those who hand over what a test says."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.asked: list[tuple[str, str]] = []

    def take_over(self, client_id: str, former: Owner, epoch: int, then: Callable[[Session | None], None]) -> None:
        assert epoch > former.epoch
        self.asked.append((client_id, former.incarnation))
        then(self.sessions.get(client_id))

    def claim_within_node(self, client_id: str, then: Callable[[Session | None], None]) -> None:
        self.asked.append((client_id, "within the node"))
        then(self.sessions.get(client_id))


class Worker:
    def __init__(self, loop: Loop, server: RunningRedis, number: int) -> None:
        self.shard = Shard(loop, server.address, number)
        self.neighbours = Neighbours()
        self.store = RegisteredSessions(self.shard.registry, self.neighbours, loop.now)

    def connect(self, client_id: str, lasting: bool = False) -> tuple[str, Session | None]:
        """A client that comes, and stays if it may: how it was answered, and its session."""
        answers: list[tuple[str, Session | None]] = []

        def enter(found: Session | None) -> None:
            if found is None:
                self.store.keep(session(client_id))
            else:
                self.store.keep(found)
            answers.append(("found" if found else "new", self.store.get(client_id)))

        self.store.claim(client_id, enter, Wish(lasting, b"", lambda: answers.append(("refused", None))))
        self.shard.loop.until(lambda: bool(answers))
        (answer,) = answers
        return answer


@pytest.fixture
def server(start_redis: StartRedis) -> RunningRedis:
    return start_redis()


def test_a_session_is_where_its_client_was_last(server: RunningRedis, loop: Loop) -> None:
    """A client that lands on another worker would leave its session, or its connection, behind."""
    one, two = Worker(loop, server, 1), Worker(loop, server, 2)
    new, there = one.connect("me")
    assert there is not None
    two.neighbours.sessions["me"] = there

    assert "new" == new
    assert ("found", there) == two.connect("me")
    assert [("me", one.shard.incarnation)] == two.neighbours.asked
    one.store.forget(there)  # as it was handed over
    one.shard.settle()
    assert [two.shard.incarnation] == owner(server, "me")[1:2]
    assert (0, 1) == (one.store.count(), two.store.count())
    assert [there] == list(two.store.sessions())


def test_a_client_that_comes_back_asks_nobody(server: RunningRedis, loop: Loop) -> None:
    """Each reconnection would go through the other workers."""
    worker = Worker(loop, server, 1)
    _, there = worker.connect("me")

    assert ("found", there) == worker.connect("me")
    assert [] == worker.neighbours.asked


def test_a_session_that_ends_is_released(server: RunningRedis, loop: Loop) -> None:
    """Redis would name owners that have nothing."""
    worker = Worker(loop, server, 1)
    _, there = worker.connect("me")
    assert there is not None
    worker.store.forget(there)
    worker.shard.settle()

    assert [] == owner(server, "me")


def test_a_client_that_went_while_it_was_asked_for_leaves_nothing(server: RunningRedis, loop: Loop) -> None:
    """Each connection that is given up would leave an owner, and memory, behind."""
    worker = Worker(loop, server, 1)
    answers: list[Session | None] = []
    worker.store.claim("me", answers.append)
    loop.until(lambda: bool(answers))
    worker.shard.settle()

    assert ([None], [], 0) == (answers, owner(server, "me"), worker.shard.registry.epoch_of("me"))


def test_without_redis_the_node_is_asked(server: RunningRedis, loop: Loop) -> None:
    """Clients could not connect while Redis is away, or twice within a node."""
    one = Worker(loop, server, 1)
    loop.ready(one.shard.commands)
    server.kill()
    one.neighbours.sessions["there"] = there = session("there")

    assert ("found", there) == one.connect("there")
    assert "new" == one.connect("new")[0]
    assert "found" == one.connect("new")[0]
    assert [("there", "within the node"), ("new", "within the node")] == one.neighbours.asked
    assert ("refused", None) == one.connect("lasting", lasting=True)
    server.start()
    one.shard.settle()
    assert one.shard.incarnation == owner(server, "there")[1]
    assert one.shard.incarnation == owner(server, "new")[1]
    assert [] == owner(server, "lasting")
