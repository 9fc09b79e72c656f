# The reader: what is in Redis, and what nodes say themselves while it is away. One for all pages, however many look on.
#
# The log is read from its last entry on, never again; what the analysis wrote, when it has written something new. Each
# answer is bounded. When Redis is away, the nodes of this machine are asked instead, so that the picture stays live
# just when something is wrong; and Redis is looked for where it may be by then.
import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import redis.asyncio
from redis import exceptions as refusals
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from analytics.dashboard.charts import Mark, mark_of
from analytics.dashboard.live import KEPT, Live
from analytics.dashboard.model import EPISODES, Analysis, Away, board
from analytics.keys import AnalyticsKeys
from broker.store.redis.address import RedisAddress
from broker.store.redis.record_log import FIELD

EVERY: Final = 1.0  # seconds; a record is written so often
AT_ONCE: Final = 200  # entries of one answer
PATIENCE: Final = 3.0  # seconds for an answer
SPANS: Final = {10: 360, 60: 1440}  # windows that are shown, by their span: an hour, a day
AGAIN: Final = 6  # the newest windows are read again, as more becomes known of them
WANTED: Final = 30.0  # seconds that a span goes on being read after a page has asked for it
ESCAPED_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")

Find = Callable[[], RedisAddress]
AskNodes = Callable[[], list[dict[str, Any]]]


class Nowhere(Exception):
    """There is no Redis that can be used. Its text is one sentence."""


class Reader:
    def __init__(self, find: Find, prefix: str, ask_nodes: AskNodes) -> None:
        """*find*: where Redis is, or Nowhere; *ask_nodes*: the last records of nodes. Both may block for seconds."""
        self.live = Live()
        self.away: Away | None = None
        self.windows: dict[int, dict[int, Mark]] = {span: {} for span in SPANS}
        self.board = board(self.live, Analysis(), None, time.time())
        self._find = find
        self._keys = AnalyticsKeys(prefix)
        self._ask_nodes = ask_nodes
        self._redis: redis.asyncio.Redis | None = None
        self._last = b""  # the id of the last entry that was read
        self._ahead = 0.0  # seconds that Redis' clock is ahead of ours
        self._analysis = Analysis()
        self._wanted: dict[int, float] = {}

    def want(self, span: int) -> None:
        """A page shows windows of *span* now."""
        self._wanted[span] = time.monotonic() + WANTED

    @property
    def now(self) -> float:
        """By the clock of the log."""
        return time.time() + self._ahead

    async def run(self) -> None:
        """For ever. Whatever is wrong with Redis is shown, and passes."""
        while True:
            began = time.monotonic()
            await self.look()
            await asyncio.sleep(max(0.05, began + EVERY - time.monotonic()))

    async def look(self) -> None:
        """Read what is new, and make another board of it."""
        try:
            await self._read()
            self.away = None
        except (refusals.RedisError, OSError, TimeoutError, Nowhere, asyncio.IncompleteReadError) as error:
            await self.close()
            since = time.time() if self.away is None else self.away.since
            self.away = Away(since, _why(error), await self._read_nodes())
        now = self.now
        self.live.pass_time(now)
        self.board = board(self.live, self._analysis, self.away, now)

    async def _read(self) -> None:
        server = await self._connected()
        await self._read_log(server)
        self._analysis = await self._read_analysis(server)
        now = time.monotonic()
        for span, until in self._wanted.items():
            if now < until:
                await self._read_windows(server, span)

    async def _connected(self) -> "redis.asyncio.Redis":
        if self._redis is not None:
            return self._redis
        address = await asyncio.to_thread(self._find)
        server = self._redis = client(address)
        seconds, micros = await server.time()
        self._ahead = int(seconds) + int(micros) / 1e6 - time.time()
        oldest = int((self.now - KEPT) * 1e3)
        self._last = max(self._last, b"%d-0" % oldest, key=_order)
        return server

    async def close(self) -> None:
        """End the connection to Redis; the next look makes another."""
        if self._redis is None:
            return
        leaving, self._redis = self._redis, None
        try:
            await leaving.aclose()
        except (refusals.RedisError, OSError):
            pass  # it is gone anyway

    async def _read_log(self, server: "redis.asyncio.Redis") -> None:
        while True:
            answer: Any = await server.xread({self._keys.metrics: self._last}, count=AT_ONCE)
            entries = _entries(answer)
            for identity, fields in entries:
                self._last = identity
                self.live.take(parsed(fields.get(FIELD.encode())), int(identity.split(b"-")[0]) / 1e3)
            if len(entries) < AT_ONCE:
                return
            await asyncio.sleep(0)  # pages have their turn, too

    async def _read_nodes(self) -> bool:
        """What the nodes of this machine say, instead of the log; False: none says anything."""
        now = self.now
        told = await asyncio.to_thread(self._ask_nodes)
        for record in told:
            self.live.take(record, now)
        return bool(told)

    async def _read_analysis(self, server: "redis.asyncio.Redis") -> Analysis:
        keys = self._keys
        status, findings = await server.mget(keys.status, keys.findings)
        said = parsed(status)
        before = self._analysis
        if not isinstance(said, dict):
            return Analysis(episodes=before.episodes)
        if before.status is not None and before.status == said:
            return before
        ids = sorted(await _done(server.hkeys(keys.episodes)), key=_newest_first)[:EPISODES]
        rows = [parsed(row) for row in await _done(server.hmget(keys.episodes, ids))] if ids else []
        found = parsed(findings)
        whole: list[Any] = [row for row in rows if isinstance(row, dict)]
        bad = len(rows) - len(whole) + (findings is not None and not isinstance(found, dict))
        whole.sort(key=_start, reverse=True)
        made: Any = found if isinstance(found, dict) else None
        read: Any = said
        return Analysis(read, made, tuple(whole), bad)

    async def _read_windows(self, server: "redis.asyncio.Redis", span: int) -> None:
        """Those that we have not, and the newest again."""
        known = self.windows[span]
        last = int(self.now // span)
        starts = [number * span for number in range(last - SPANS[span], last + 1)]
        for start in [one for one in known if one < starts[0]]:
            del known[start]
        first = max(known, default=0) - AGAIN * span
        wanted = [start for start in starts if start > first]
        for begin in range(0, len(wanted), AT_ONCE):
            part = wanted[begin : begin + AT_ONCE]
            for start, row in zip(part, await _done(server.hmget(self._keys.windows(span), part)), strict=True):
                mark = mark_of(parsed(row))
                if mark is not None:
                    known[start] = mark


def client(address: RedisAddress) -> "redis.asyncio.Redis":
    """Of the Redis at *address*; asked once, as who asks knows what to do when it does not answer."""
    options: dict[str, Any] = {
        "username": address.user or None,
        "password": address.password or None,
        "db": address.db,
        "socket_timeout": PATIENCE,
        "socket_connect_timeout": PATIENCE,
        "retry": Retry(NoBackoff(), 0),
    }
    if address.path:
        return redis.asyncio.Redis(unix_socket_path=address.path, **options)
    return redis.asyncio.Redis(host=address.host, port=address.port, **options)


def parsed(text: object) -> object:
    """The value of a JSON text; None if it is none, or if it holds what no text can."""
    if not isinstance(text, bytes):
        return None
    try:
        found: object = json.loads(text)
        if ESCAPED_SURROGATE.search(text):
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return found


def _entries(answer: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """As XREAD answers in either protocol of Redis."""
    if not answer:
        return []
    entries = next(iter(answer.values())) if isinstance(answer, dict) else answer[0][1]
    return list(entries[0]) if entries and isinstance(entries[0], list) else list(entries)


async def _done(asked: Any) -> Any:
    """redis-py says of some commands that they may or may not wait."""
    return await asked if isinstance(asked, Awaitable) else asked


def _order(identity: bytes) -> tuple[int, int]:
    milliseconds, _, number = identity.partition(b"-")
    return int(milliseconds or 0), int(number or 0)


def _newest_first(identity: bytes) -> tuple[float, bytes]:
    try:
        return -float(identity), identity
    except ValueError:
        return 0.0, identity


def _start(episode: Any) -> float:
    start = episode.get("start")
    return float(start) if isinstance(start, int | float) else 0.0


def _why(error: Exception) -> str:
    if isinstance(error, Nowhere):
        return str(error).rstrip(".")
    if isinstance(error, refusals.TimeoutError | TimeoutError):
        return f"no answer within {PATIENCE:g} s"
    text = str(error).rstrip(".")
    return text[:1].lower() + text[1:120] if text else type(error).__name__
