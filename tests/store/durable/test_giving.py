# The scripts that give a session away, at real servers: what they answer is what sessions.lua reads.
from collections.abc import Callable

import pytest

from broker.store.durable.removals import FULL, GIVE, GIVE_SESSION, SESSIONS, SHORT
from broker.store.redis.connection import packed
from broker.store.redis.pipeline import CallbackCommand, CommandPipeline
from supervisor.redis_server import RedisServer
from tests.redis_servers import RunningRedis
from tests.store.loop import Loop

pytestmark = pytest.mark.system  # real servers

INDEXES = ("index:1", "index:2", "number:2")
FORMER = ("r1:", "q1:", "p1:")
NEW = ("r2:", "q2:", "p2:")
WHEN = 1000
ENDED = "TAKERENDED the worker that is to own the session has ended"


class Redis:
    def __init__(self, loop: Loop, redis: RunningRedis) -> None:
        self._loop = loop
        self._commands = CommandPipeline(loop.wire(), redis.address, "test", loop.log)
        loop.ticking.append(self._commands)
        self._commands.start(loop.now())

    def ask(self, *words: str | bytes | int) -> object:
        told: list[object] = []
        command = CallbackCommand(packed(*words), 5.0, lambda reply, failure: told.append(failure or reply))
        self._commands.submit(command, self._loop.now())
        self._loop.until(lambda: bool(told))
        return told[0]

    def store(self, fields: int, released: int = 2) -> None:
        """A session of the first worker; its record will have one more field than *fields*."""
        self.ask("SET", "number:2", 1)
        self.ask("HSET", "index:1", "me", "as it is")
        self.ask("HSET", "r1:me", *[word for number in range(fields) for word in (f"f{number}", "x")])
        self.ask("RPUSH", "q1:me", "first", "last")
        self.ask("SADD", "p1:me", *range(released))

    def give(self) -> object:
        return self.ask("EVAL", GIVE_SESSION, 3, *INDEXES, GIVE, "me", *FORMER, *NEW, WHEN)

    def read(self) -> object:
        answer = self.ask("EVAL", SESSIONS, 0, "read", *NEW, "me")
        assert isinstance(answer, list)
        return answer[0]


@pytest.fixture
def redis(start_redis: Callable[..., RunningRedis], every_server: RedisServer, loop: Loop) -> Redis:
    return Redis(loop, start_redis(every_server))


def test_what_is_given_is_what_would_be_read(redis: Redis) -> None:
    """The new worker would go on with another state than the former one had stored."""
    redis.store(3)
    given = redis.give()

    assert given == redis.read()
    assert [2, 0, b"as it is"] == [
        redis.ask("LLEN", "q2:me"),
        redis.ask("EXISTS", "r1:me", "q1:me", "p1:me", "index:1"),
        redis.ask("HGET", "index:2", "me"),
    ]
    assert str(WHEN).encode() == redis.ask("HGET", "r2:me", "\0")
    assert 0 == redis.give()  # it was given before


@pytest.mark.parametrize(
    ("fields", "released", "short"),
    [(SHORT - 1, SHORT, True), (SHORT, SHORT, False), (SHORT - 1, SHORT + 1, False)],
)
def test_a_long_session_is_given_and_not_passed_on(redis: Redis, fields: int, released: int, short: bool) -> None:
    """Thousands of entries would pass through three workers at once."""
    redis.store(fields, released)
    given = redis.give()

    assert (short, 1) == (isinstance(given, list), given if not short else 1)
    assert 1 == redis.ask("EXISTS", "r2:me")


@pytest.mark.parametrize("ended", [False, True])
def test_a_full_server_gives_in_the_same_way(redis: Redis, ended: bool) -> None:
    """A session would stay with its worker, or be that of a worker that has ended, while Redis is full."""
    redis.store(3)
    if ended:
        redis.ask("EXPIRE", "number:2", 100)
    words = (GIVE, *INDEXES, GIVE, "me", *FORMER, *NEW, WHEN)
    answer = redis.ask("EVAL", FULL, 2, "fence", "number:1", 0, 1, len(words), *words)

    assert isinstance(answer, list)
    (one,) = answer[1]
    assert [ENDED if ended else "0", int(not ended)] == [str(one), redis.ask("HEXISTS", "index:2", "me")]
