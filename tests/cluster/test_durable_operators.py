# What operators see and repair of sessions that are stored: with a real Redis, and workers that end.
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from broker.config.schema import Config
from broker.insight.pending_answers import PATIENCE
from broker.insight.session_requests import LATE
from tests.cluster.test_durable import Durable
from tests.insight.operators import Operator
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # real servers


@pytest.fixture
def nodes_of(start_redis: Callable[..., RunningRedis]) -> Iterator[Callable[..., Durable]]:
    """Makes nodes with one worker, `nodes_of(Config(...))`, and closes them at the end."""
    made: list[Durable] = []

    def make(config: Config | None = None) -> Durable:
        made.append(Durable(start_redis(), config))
        return made[-1]

    yield make
    for one in made:
        one.worker.close()


@pytest.fixture
def node(nodes_of: Callable[..., Durable]) -> Durable:
    return nodes_of()


def keys_of(node: Durable, client_id: str) -> list[Any]:
    """The keys in Redis whose names end in the client id."""
    return cast(list[Any], node.redis.client().keys(f"*:{client_id}"))


def test_a_stored_session_is_listed_with_what_redis_has_of_it(node: Durable) -> None:
    """An operator would see nothing of what fills Redis."""
    node.subscriber("client", b"a/#").socket.close()
    node.publish(b"a/b", b"1", b"22")

    node.kill(away=5.0)
    (one,) = Operator(node.worker).ask("sessions", {"position": 0, "match": "client", "away": True})["sessions"]

    assert (True, 2, 9, 1) == (one["durable"], one["waiting"], one["waiting_bytes"], one["subscriptions"])
    assert 5.0 <= one["seconds"] < 7.0
    assert one["expiry"] == pytest.approx(one["expires_in"] + one["seconds"], abs=0.2)


def test_a_dropped_session_leaves_no_key_behind(node: Durable) -> None:
    """The session would be back with the next worker, or its messages stay in Redis for ever."""
    node.subscriber("client", b"a/#").socket.close()
    node.publish(b"a/b", b"1", b"22")
    assert 3 == len(keys_of(node, "client"))  # the session, its queue, its owner

    assert True is Operator(node.worker).ask("session_drop", {"client": "client"})

    assert [] == keys_of(node, "client")
    node.kill()
    assert not node.connect("client").connack.session_present


def test_a_drop_that_redis_does_not_confirm_says_so(node: Durable) -> None:
    """The operator would believe that all is gone, although a worker that dies now brings the session back."""
    node.subscriber("client", b"a/#").socket.close()
    node.publish(b"a/b", b"1")
    operator = Operator(node.worker)
    node.redis.pause()
    node.worker.answered = False

    said = operator.begin("session_drop", {"client": "client"})
    node.worker.advance(PATIENCE)
    operator.pending.expire()

    assert [(None, LATE)] == said
    assert None is node.worker.session("client")
    node.redis.go_on()
    node.worker.answered = True
    node.worker.settle()
    assert [] == keys_of(node, "client")
