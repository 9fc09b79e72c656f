# A log of records in a real Redis: what is written, what is kept, and what is dropped instead of waiting.
from collections.abc import Callable
from typing import Any

import pytest

from broker.metrics.counters import Counters
from broker.reasons import StoreFailure
from broker.store.redis.connection import DISCONNECTED
from broker.store.redis.keys import Keys
from broker.store.redis.pipeline import CommandPipeline
from broker.store.redis.record_log import FIELD, MOST, RedisRecordLog
from supervisor.redis_server import RedisServer
from tests.cluster.paper import HANDSHAKE_REPLIES, on_paper
from tests.redis_servers import RunningRedis
from tests.store.loop import Loop

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]
KEY = Keys("weir").metrics


class Written:
    """A log on a line to *server*."""

    def __init__(self, loop: Loop, server: RunningRedis, length: int = 1000) -> None:
        self.counters = Counters()
        self.commands = CommandPipeline(loop.wire(), server.address, "test", loop.log)
        self.log = RedisRecordLog(self.commands, KEY, length, self.counters)
        self._server = server
        self._loop = loop
        loop.ticking.append(self.commands)
        self.commands.start(loop.now())
        loop.ready(self.commands)

    def append(self, *records: bytes) -> None:
        """Append them, and wait until it is known what became of them."""
        for record in records:
            self.log.append(record, self._loop.now())
        self._loop.until(lambda: self.commands.statistics.waiting == 0)

    def read(self) -> list[bytes]:
        entries: Any = self._server.client().xrange(KEY)
        return [fields[FIELD.encode()] for _, fields in entries]

    def dropped(self) -> dict[str, int]:
        return {label: count for label, count in self.counters.records_dropped_by_reason.items() if count}


def test_records_are_there_in_their_order(start_redis: StartRedis, every_server: RedisServer, loop: Loop) -> None:
    """The analysis would have nothing to read, or not what was written."""
    written = Written(loop, start_redis(every_server))
    records = [b'{"number":%d,"name":"\xc3\xa9\\r\\n"}' % number for number in range(5)]
    written.append(*records)

    assert records == written.read()
    assert (5, {}) == (written.counters.records_written, written.dropped())


def test_the_log_is_bounded(start_redis: StartRedis, loop: Loop) -> None:
    """It would fill Redis, and Redis then refuse sessions."""
    written = Written(loop, start_redis(), length=100)
    for number in range(100):
        written.append(*[b"%d" % (number * 5 + each) for each in range(5)])

    kept = written.read()
    assert 100 <= len(kept) < 300
    assert b"499" == kept[-1]


def test_while_redis_is_away_records_are_dropped_and_counted(start_redis: StartRedis, loop: Loop) -> None:
    """They would pile up in the worker until it has no memory, or be missing without a word."""
    server = start_redis()
    written = Written(loop, server)
    written.append(b"before")
    server.kill()
    loop.until(lambda: written.commands.state == DISCONNECTED)
    for _ in range(3):
        written.log.append(b"lost", loop.now())
    assert {"unreachable": 3} == written.dropped()
    assert 0 == written.commands.statistics.waiting

    server.start()
    loop.ready(written.commands)
    written.append(b"after")
    assert [b"before", b"after"] == written.read()
    assert 2 == written.counters.records_written


def test_what_redis_does_not_answer_is_little(loop: Loop) -> None:
    """A Redis that hangs would have records wait for it, one a second, for as long as it does."""
    commands, paper = on_paper(loop)
    commands.receive(HANDSHAKE_REPLIES, 1000, 0.0)
    counters = Counters()
    log = RedisRecordLog(commands, KEY, 100, counters)
    for _ in range(MOST + 5):
        log.append(b"record", 0.0)
    assert MOST == paper.written.count(b"XADD")
    assert 5 == counters.records_dropped_by_reason["backlog_full"]

    commands.receive(b"$3\r\n1-1\r\n" * MOST, 1000, 0.0)
    log.append(b"record", 0.0)
    assert (MOST, MOST + 1) == (counters.records_written, paper.written.count(b"XADD"))
    commands.lost("gone", 0.0)
    assert 1 == counters.records_dropped_by_reason["connection_lost"]


def test_a_redis_that_is_full_is_the_reason(start_redis: StartRedis, loop: Loop) -> None:
    """Nobody would know why there are no records."""
    server = start_redis()
    written = Written(loop, server)
    server.client().config_set("maxmemory", 1)
    written.append(b"record")

    assert (0, {StoreFailure.MEMORY_FULL.label: 1}) == (written.counters.records_written, written.dropped())
