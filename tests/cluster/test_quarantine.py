# Sessions in Redis that cannot be read: what operators see of them.
import pytest

from supervisor.quarantine import find_quarantined
from tests.cluster.durable_node import Durable

pytestmark = pytest.mark.system  # real servers


def damage(node: Durable) -> None:
    """Have the worker find a session with a damaged queue, one with a damaged record, and a sound one."""
    node.subscriber("queue", b"a").socket.close()
    node.subscriber("record", b"a").socket.close()
    node.subscriber("sound", b"a").socket.close()
    node.publish(b"a", b"1")
    with node.redis.client() as asked:
        (key,) = asked.keys("*}:queue:*:queue")
        asked.rpush(key, "no pack")
        (key,) = asked.keys("*}:session:*:record")
        asked.hset(key, "", "no head")
    node.kill()
    for client_id in ("queue", "record", "sound"):
        node.worker.session(client_id)  # it is read
    node.worker.settle()


def test_each_session_that_cannot_be_read_is_named_with_what_is_left(node: Durable) -> None:
    """What takes memory in Redis, and may have to be saved, would be known to the log alone."""
    damage(node)

    found, more = find_quarantined(node.redis.client(), "weir", 10)

    assert not more
    assert [("queue", 3, 2), ("record", 3, 1)] == [(one["client"], one["fields"], one["packs"]) for one in found]
    assert all(100 < one["bytes"] < 2000 for one in found)


def test_the_list_is_bounded(node: Durable) -> None:
    """An answer would take the memory of the supervisor, if a server has lost its mind."""
    damage(node)

    found, more = find_quarantined(node.redis.client(), "weir", 1)

    assert (1, True) == (len(found), more)


def test_odd_keys_are_listed_as_they_are(node: Durable) -> None:
    """A key of another type, or with bytes that are no UTF-8, would fail the list of all others."""
    with node.redis.client() as asked:
        asked.set(b"weir:{1}:damaged:\xff", "x")
        asked.set(b"weir:{1}:damaged:one:queue", "x")
        asked.hset("other:{1}:damaged:two", "a", "b")

    found, _ = find_quarantined(node.redis.client(), "weir", 10)

    assert [("one", None, None), ("\\xff", None, None)] == [
        (one["client"], one["fields"], one["packs"]) for one in found
    ]
