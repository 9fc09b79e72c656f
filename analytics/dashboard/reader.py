# The reader: one for all pages. It reads Redis, and queries the nodes directly while Redis is unavailable.
#
# Each entry of the metrics stream is read once; the rows of the analysis are read after each batch. Each reply is
# bounded, and so are the entries of an update: if more arrive, the page shows an earlier time and says so.
# While Redis is unavailable, the nodes of this machine are queried instead, so that the page stays live during a
# failure; the address of Redis is determined anew for each connection.
import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import redis.asyncio
from redis import exceptions as refusals
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from analytics.dashboard.charts import Mark, mark_of
from analytics.dashboard.live import KEPT, Live
from analytics.dashboard.model import AT_MOST, EPISODES, INCIDENTS, Analysis, Away, board
from analytics.keys import AnalyticsKeys, start_of
from analytics.record_type import DECODER
from analytics.resources import node_of
from analytics.rows import Episode
from broker.store.redis.address import RedisAddress
from broker.store.redis.record_log import FIELD

EVERY: Final = 1.0  # seconds: the interval of the records
AT_ONCE: Final = 200  # entries of one reply
BEHIND: Final = 2.0  # seconds: a smaller delay of the page is normal
TIMEOUT: Final = 3.0  # seconds for a reply
SPANS: Final = {10: 360, 60: 1440}  # number of windows shown, by span: an hour, a day
AGAIN: Final = 6  # the newest windows are read again: late records change them
WANTED: Final = 30.0  # seconds for which a span is read after a page has requested it
NODES: Final = 50  # whose episodes are read at the same time
ESCAPED_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")

Find = Callable[[], RedisAddress]
AskNodes = Callable[[], list[dict[str, Any]]]


class Nowhere(Exception):
    """There is no usable Redis. The text is one sentence."""


class Reader:
    def __init__(self, find: Find, prefix: str, ask_nodes: AskNodes) -> None:
        """*find* returns the address of Redis or raises Nowhere; *ask_nodes* returns the last records of the nodes.

        Both may block for seconds.
        """
        self.live = Live()
        self.away: Away | None = None
        self.windows: dict[int, dict[int, Mark]] = {span: {} for span in SPANS}
        self.episodes: dict[str, tuple[tuple[Episode, ...], int]] = {}  # of nodes that pages show; and of how many
        self.board = board(self.live, Analysis(), None, time.time())
        self._find = find
        self._keys = AnalyticsKeys(prefix)
        self._ask_nodes = ask_nodes
        self._redis: redis.asyncio.Redis | None = None
        self._last = b""  # the id of the last entry that was read
        self._behind = 0.0  # seconds by which the last update did not reach the end of the stream
        self._ahead = 0.0  # seconds by which the clock of Redis is ahead of the local clock
        self._analysis = Analysis()
        self._wanted: dict[int, float] = {}
        self._nodes: dict[str, float] = {}

    def want(self, span: int) -> None:
        """Read windows of *span* for the next WANTED seconds, as a page shows them."""
        self._wanted[span] = time.monotonic() + WANTED

    def want_episodes(self, node: str) -> None:
        """Read the episodes of *node* for the next WANTED seconds, as a page shows them."""
        if node in self._nodes or len(self._nodes) < NODES:
            self._nodes[node] = time.monotonic() + WANTED

    @property
    def analysis(self) -> Analysis:
        return self._analysis

    @property
    def now(self) -> float:
        """The time by the clock of Redis."""
        return time.time() + self._ahead

    async def run(self) -> None:
        """Read forever. Failures of Redis are shown on the page."""
        while True:
            began = time.monotonic()
            await self.update()
            await asyncio.sleep(max(0.05, began + EVERY - time.monotonic()))

    async def update(self) -> None:
        """Read new data and update the board."""
        try:
            await self._read()
            self.away = None
        except (refusals.RedisError, OSError, TimeoutError, Nowhere, asyncio.IncompleteReadError) as error:
            await self.close()
            since = time.time() if self.away is None else self.away.since
            self.away = Away(since, _why(error), await self._read_nodes())
        behind = 0.0 if self.away is not None else self._behind
        now = self.now - behind
        self.live.pass_time(now)
        self.board = board(self.live, self._analysis, self.away, now, behind)

    async def _read(self) -> None:
        server = await self._connected()
        await self._read_log(server)
        self._analysis = await self._read_analysis(server)
        await self._read_episodes(server)
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
        """Close the connection to Redis; the next read opens a new one."""
        if self._redis is None:
            return
        leaving, self._redis = self._redis, None
        try:
            await leaving.aclose()
        except (refusals.RedisError, OSError):
            pass  # the connection is broken anyway

    async def _read_log(self, server: "redis.asyncio.Redis") -> None:
        for _ in range(0, AT_MOST, AT_ONCE):
            answer: Any = await server.xread({self._keys.metrics: self._last}, count=AT_ONCE)
            entries = _entries(answer)
            for identity, fields in entries:
                self._last = identity
                record = _record(fields.get(FIELD.encode(), b""))
                at = int(identity.split(b"-")[0]) / 1e3
                if record is None:
                    self.live.unfit += 1
                else:
                    self.live.add(record, at)
            if len(entries) < AT_ONCE:
                self._behind = 0.0
                return
            await asyncio.sleep(0)  # let the pages run
        behind = self.now - _order(self._last)[0] / 1e3
        self._behind = behind if behind > BEHIND else 0.0

    async def _read_nodes(self) -> bool:
        """Read the last records from the nodes of this machine; return whether any node answered."""
        now = self.now
        records = await asyncio.to_thread(self._ask_nodes)
        for record in records:
            self.live.take(record, now)
        return bool(records)

    async def _read_analysis(self, server: "redis.asyncio.Redis") -> Analysis:
        keys = self._keys
        status, findings = await server.mget(keys.status, keys.findings)
        new_status = parsed(status)
        before = self._analysis
        if not isinstance(new_status, dict):
            return Analysis(incidents=before.incidents, incidents_all=before.incidents_all)
        if before.status is not None and before.status == new_status:
            return before
        ids = sorted(await _awaited(server.hkeys(keys.incidents)), key=_newest_first)
        whole, bad = await _rows(server, keys.incidents, ids[:INCIDENTS])
        found = parsed(findings)
        bad += findings is not None and not isinstance(found, dict)
        made: Any = found if isinstance(found, dict) else None
        read: Any = new_status
        return Analysis(read, made, whole, len(ids), bad)

    async def _read_episodes(self, server: "redis.asyncio.Redis") -> None:
        """Read the episodes of the nodes that pages show."""
        now = time.monotonic()
        for node in [node for node, until in self._nodes.items() if until < now]:
            del self._nodes[node]
        self.episodes = {node: found for node, found in self.episodes.items() if node in self._nodes}
        if not self._nodes:
            return
        ids = sorted(await _awaited(server.hkeys(self._keys.episodes)), key=_newest_first)
        of_nodes: dict[str, list[bytes]] = {}
        for id in ids:
            of_nodes.setdefault(node_of(id.decode(errors="replace").partition(" ")[2]), []).append(id)
        for node in self._nodes:
            mine = of_nodes.get(node, [])
            rows, _ = await _rows(server, self._keys.episodes, mine[:EPISODES])
            self.episodes[node] = rows, len(mine)

    async def _read_windows(self, server: "redis.asyncio.Redis", span: int) -> None:
        """Read the windows that are not known yet, and the newest ones again."""
        known = self.windows[span]
        last = int(self.now // span)
        starts = [number * span for number in range(last - SPANS[span], last + 1)]
        for start in [one for one in known if one < starts[0]]:
            del known[start]
        first = max(known, default=0) - AGAIN * span
        wanted = [start for start in starts if start > first]
        for begin in range(0, len(wanted), AT_ONCE):
            part = wanted[begin : begin + AT_ONCE]
            for start, row in zip(part, await _awaited(server.hmget(self._keys.windows(span), part)), strict=True):
                mark = mark_of(parsed(row))
                if mark is not None:
                    known[start] = mark


def client(address: RedisAddress) -> "redis.asyncio.Redis":
    """Return a client of the Redis at *address*, without retries: the reader handles failures."""
    options: dict[str, Any] = {
        "username": address.user or None,
        "password": address.password or None,
        "db": address.db,
        "socket_timeout": TIMEOUT,
        "socket_connect_timeout": TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
    }
    if address.path:
        return redis.asyncio.Redis(unix_socket_path=address.path, **options)
    if address.tls:  # the certificate is for the name
        options |= {"ssl": True, "ssl_ca_certs": address.ca or None, "ssl_check_hostname": True}
    return redis.asyncio.Redis(host=address.name or address.host, port=address.port, **options)


def parsed(text: object) -> object:
    """Return the value of a JSON text; None if it is invalid or contains lone surrogates."""
    if not isinstance(text, bytes):
        return None
    try:
        found: object = json.loads(text)
        if ESCAPED_SURROGATE.search(text):
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return found


def _record(text: bytes) -> dict[str, Any] | None:
    """Return the metrics record in *text*; None if it is invalid."""
    try:
        DECODER.decode(text)
        found: dict[str, Any] = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found


def _entries(answer: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Return the entries of an XREAD reply, in RESP2 or RESP3 form."""
    if not answer:
        return []
    entries = next(iter(answer.values())) if isinstance(answer, dict) else answer[0][1]
    return list(entries[0]) if entries and isinstance(entries[0], list) else list(entries)


async def _awaited(asked: Any) -> Any:
    """Await the result of a command: redis-py types some commands as either awaitable or not."""
    return await asked if isinstance(asked, Awaitable) else asked


def _order(identity: bytes) -> tuple[int, int]:
    milliseconds, _, number = identity.partition(b"-")
    return int(milliseconds or 0), int(number or 0)


async def _rows(server: "redis.asyncio.Redis", key: str, ids: list[bytes]) -> tuple[tuple[Any, ...], int]:
    """Return the rows of *ids* in the hash *key*, and how many of them are no rows."""
    rows = [parsed(row) for row in await _awaited(server.hmget(key, ids))] if ids else []
    whole: list[Any] = [row for row in rows if isinstance(row, dict)]
    whole.sort(key=_start, reverse=True)
    return tuple(whole), len(rows) - len(whole)


def _newest_first(identity: bytes) -> tuple[float, bytes]:
    return -start_of(identity.decode(errors="replace")), identity


def _start(episode: Any) -> float:
    start = episode.get("start")
    return float(start) if isinstance(start, int | float) else 0.0


def _why(error: Exception) -> str:
    if isinstance(error, Nowhere):
        return str(error).rstrip(".")
    if isinstance(error, refusals.TimeoutError | TimeoutError):
        return f"no answer within {TIMEOUT:g} s"
    text = str(error).rstrip(".")
    return text[:1].lower() + text[1:120] if text else type(error).__name__
