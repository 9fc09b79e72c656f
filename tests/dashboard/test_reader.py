# The reader on a real Redis: what it reads, and what it does when Redis is not there.
import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analytics.dashboard.model import AT_MOST, EPISODES
from analytics.dashboard.reader import AT_ONCE, Nowhere, Reader, parsed
from analytics.keys import AnalyticsKeys
from tests.dashboard import rows
from tests.dashboard.rows import Row, record
from tests.redis_servers import SERVERS, RunningRedis

PREFIX = "p"
KEYS = AnalyticsKeys(PREFIX)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningRedis]:
    made = RunningRedis(SERVERS[-1], tmp_path)
    yield made
    made.end()


def reader(server: RunningRedis, nodes: list[Row] | None = None) -> Reader:
    return Reader(lambda: server.address, PREFIX, lambda: nodes or [])


def looked(reading: Reader, times: int = 1) -> Reader:
    async def look() -> None:
        for _ in range(times):
            await reading.update()
        await reading.close()

    asyncio.run(look())
    return reading


def append(server: RunningRedis, *records: object) -> None:
    for one in records:
        server.client().xadd(KEYS.metrics, {"record": one if isinstance(one, bytes) else json.dumps(one)})


def test_the_log_is_read_once_and_then_what_is_new(server: RunningRedis) -> None:
    """Each second the whole log would be read again, or what came meanwhile would be missing."""
    append(server, *(record(sequence=number, dropped={"expired": 1}) for number in range(AT_ONCE + 5)))
    reading = looked(reader(server))
    assert AT_ONCE + 5 == reading.live.taken
    append(server, record(sequence=AT_ONCE + 5, dropped={"expired": 1}))
    looked(reading, times=2)

    assert AT_ONCE + 6 == reading.live.taken
    assert {"expired": AT_ONCE + 6} == reading.live.counted(reading.now).dropped


def test_a_reader_that_cannot_keep_up_shows_what_it_has_and_says_so(server: RunningRedis) -> None:
    """It read on for as long as records came faster than it took them, and every page stood still."""
    ago = int((time.time() - 40) * 1e3)
    with server.client() as client, client.pipeline() as line:
        body = json.dumps(record())
        for number in range(AT_MOST + 5):
            line.xadd(KEYS.metrics, {"record": body}, id=f"{ago}-{number + 1}")
        line.execute()
    reading = looked(reader(server))
    assert re.match(r"This page shows the cluster of \d+ s ago: the dashboard reads at most", reading.board.trouble)
    assert 1 == len(reading.live.fresh(ago / 1e3))
    assert "Normal" == reading.board.word

    looked(reading)
    assert "This page shows the cluster" not in reading.board.trouble


def test_what_is_too_old_is_not_read(server: RunningRedis) -> None:
    """At its start it would read tens of megabytes to show the last minutes."""
    long_ago = int((time.time() - 3600) * 1e3)
    server.client().xadd(KEYS.metrics, {"record": json.dumps(record())}, id=f"{long_ago}-0")

    assert 0 == looked(reader(server)).live.taken


@pytest.mark.parametrize("entry", [b"{", b"\xff\xfe", b"[1]", b"null", b'"' + b"[" * 9999, b'{"node": "\\ud800"}'])
def test_a_corrupt_entry_is_counted_and_the_next_is_read(server: RunningRedis, entry: bytes) -> None:
    """Whoever can write into the log could blind those who watch."""
    server.client().xadd(KEYS.metrics, {"another": "field"})
    append(server, entry, record())
    reading = looked(reader(server))

    assert (2, 1) == (reading.live.unfit, reading.live.taken)
    assert reading.away is None


def test_half_a_character_is_no_text() -> None:
    """It would be taken here, and could not be sent to any browser."""
    assert parsed(b'{"a": "\\ud83d"}') is None
    assert {"a": "\U0001f600"} == parsed(b'{"a": "\\ud83d\\ude00"}')
    assert parsed(None) is None


def test_it_shows_what_the_analysis_wrote(server: RunningRedis) -> None:
    """Episodes, warnings and how the job is would not reach the page."""
    now = time.time()
    append(server, record())
    reading = looked(reader(server))
    assert not reading.board.analysing
    rows.write(
        server.client(),
        PREFIX,
        incidents=[rows.incident(now - 90, now - 60), rows.incident(now - 30, None)],
        found=rows.findings(now, warnings=[rows.warning()]),
        job=rows.status(now),
    )
    looked(reading)

    assert reading.board.analysing
    assert [True, False] == [story.open for story in reading.board.stories]
    assert 1 == len(reading.board.notes)


def test_an_episode_that_changes_is_read_again(server: RunningRedis) -> None:
    """It would go on for ever on the page."""
    now = time.time()
    rows.write(server.client(), PREFIX, incidents=[rows.incident(now - 30, None)], found=None, job=rows.status(now))
    reading = looked(reader(server))
    rows.write(server.client(), PREFIX, incidents=[rows.incident(now - 30, now)], found=None, job=rows.status(now, 2))
    looked(reading)

    assert [False] == [story.open for story in reading.board.stories]


def test_the_episodes_of_a_node_are_read_while_it_is_looked_at(server: RunningRedis) -> None:
    """Those of all nodes would be read each second, or those of another node shown."""
    now = time.time()
    mine = [rows.episode(now - one, None, resource="node b") for one in range(EPISODES + 3)]
    others = [rows.episode(now, None, resource=of) for of in ("node a", "a/1", "redis")]
    gate = rows.episode(now + 1, None, resource="b/1 store")
    job = rows.status(now)
    rows.write(server.client(), PREFIX, incidents=[], episodes=[*mine, *others, gate], found=None, job=job)
    reading = looked(reader(server))
    assert {} == reading.episodes
    reading.want_episodes("b")
    looked(reading)

    listed, number = reading.episodes["b"]
    assert (EPISODES, EPISODES + 4) == (len(listed), number)
    assert ["b/1 store", "node b"] == [one["resource"] for one in listed[:2]]


def test_what_the_analysis_wrote_may_be_anything(server: RunningRedis) -> None:
    """A row of another version, or of another program, would end the dashboard."""
    now = time.time()
    client = server.client()
    rows.write(client, PREFIX, incidents=[rows.incident(now - 30, None)], found=None, job=rows.status(now))
    client.hset(KEYS.incidents, "no number", "no JSON")
    client.hset(KEYS.incidents, "17", '{"start": []}')
    client.set(KEYS.findings, "[]")
    reading = looked(reader(server))

    assert 1 == len(reading.board.stories)
    assert "2 invalid rows of the analysis skipped" in reading.board.footnote


def test_windows_are_read_only_while_they_are_looked_at(server: RunningRedis) -> None:
    """A megabyte a second would be read for nobody."""
    now = int(time.time())
    start = now - now % 10
    server.client().hset(KEYS.windows(10), str(start), json.dumps(rows.window(start, 10, 6)))
    server.client().hset(KEYS.windows(10), str(start - 10), "rubbish")
    reading = looked(reader(server))
    assert {} == reading.windows[10]
    reading.want(10)
    looked(reading)

    assert [6] == [mark.level for mark in reading.windows[10].values()]


def test_redis_goes_away_and_comes_back(server: RunningRedis) -> None:
    """The page would end, or stand still without a word, when it is needed most."""
    append(server, record())
    reading = looked(reader(server, nodes=[record(sequence=9, level=3)]))
    server.kill()
    looked(reading)
    away = reading.away
    assert away is not None
    assert 3 == reading.board.level, "the nodes were not asked"
    looked(reading)
    assert away.since == reading.away.since if reading.away else False, "it begins to count anew each second"
    server.start()
    append(server, record(sequence=10, level=1))
    looked(reading)

    assert (None, 1) == (reading.away, reading.board.level)


def test_there_may_be_no_redis_at_first(server: RunningRedis) -> None:
    """A node that restarts would take the dashboard with it."""
    found: list[Any] = []

    def find() -> Any:
        if not found:
            raise Nowhere("The node is not running: start it.")
        return found[0]

    append(server, record())
    reading = looked(Reader(find, PREFIX, list))
    assert "The node is not running: start it)" in reading.board.trouble
    found.append(server.address)

    assert "" == looked(reading).board.trouble
