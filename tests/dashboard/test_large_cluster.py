# A cluster of 100 nodes with 32 workers: what a browser is sent does not grow with it, and nothing is cut silently.
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from analytics.keys import AnalyticsKeys
from tests.dashboard import rows
from tests.dashboard.conftest import weir_process
from tests.redis_servers import SERVERS, RunningRedis

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.system

NODES: Final = 100
WORKERS: Final = 32  # of a node
HOT: Final = "n07"  # the only node that is overloaded
WATCHED: Final = 6  # times that a page shows, one after another
MOST: Final = 100_000  # bytes of an update: of these, about 60 000 are the lines of the charts
MOMENT: Final = re.compile(rb"\d\d:\d\d:\d\d UTC")
SEQUENCE: Final = b'"sequence": 0,'
EVERY: Final = 2.0  # seconds between two records of a worker: half the load for the machine, and still a fresh page
PATIENCE: Final = 120.0  # seconds: the dashboard, the browser and the workers share a machine


def spoken(node: int, worker: int, shift: int) -> bytes:
    """A record of a worker; figures are others with another *shift*."""
    name, now = f"n{node:02}", shift + node + worker
    level = 6 if name == HOT and worker == 3 else 0
    return json.dumps(
        rows.record(
            worker,
            node=name,
            interval_s=EVERY,
            boot=f"{name}-{worker}",
            level=level,
            cluster_level=6,
            cause="lag" if level else "",
            signals={"lag": 2.5 if level else 0.1 + now % 9 / 20, **{f"{name}/{peer}": 0.1 for peer in range(3)}},
            clients={"connected": 100 + now % 7, "throttled": 5 if level else 0},
            in_={"messages": 1000 + 13 * now % 100, "bytes": 64_000},
            out={"messages": 4000 + 17 * now % 100, "bytes": 256_000},
            latency={"messages": 10, "p50_ms": 1.0, "p99_ms": 2.0 + now % 5},
            top={
                "clients": rows.top("client", *((f"c-{name}-{worker}-{one}", 100 + now % 9, 10) for one in range(3))),
                "topics": rows.top("topic", *((f"t/{name}/{one}", 100 + now % 9, 10) for one in range(3))),
            },
        )
    ).encode()


class Speaking:
    """All workers write once in EVERY seconds, until `end()`."""

    def __init__(self, server: RunningRedis, nodes: int, workers: int) -> None:
        self._client = server.client()
        self._bodies = [
            [spoken(node, worker, shift) for node in range(nodes) for worker in range(workers)] for shift in range(5)
        ]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._speak, daemon=True)
        self._thread.start()

    def _speak(self) -> None:
        for sequence in count():
            bodies = self._bodies[sequence % len(self._bodies)]
            began = time.monotonic()
            with self._client.pipeline(transaction=False) as line:
                for body in bodies:
                    record = body.replace(SEQUENCE, b'"sequence": %d,' % sequence)
                    line.xadd(AnalyticsKeys("weir").metrics, {"record": record}, maxlen=4000, approximate=True)
                line.execute()
            if self._ended.wait(max(0.0, began + EVERY - time.monotonic())):
                return

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._client.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningRedis]:
    made = RunningRedis(SERVERS[-1], tmp_path)
    yield made
    made.end()


def wide_incident(now: float) -> rows.Row:
    """An incident of 60 nodes, of which 20 episodes are named."""
    members = [
        {"id": f"{now:.0f} node n{one:02}", "resource": f"node n{one:02}", "cause": "lag", "peak": 6 - one // 5}
        | {"start": now, "end": None}
        for one in range(20)
    ]
    slowed = [{"node": f"n{one:02}", "throttled_most": 9, "paused_ms": 9000} for one in range(10)]
    nodes = [f"n{one:02}" for one in range(60)]
    whole = rows.incident(now, None, nodes=nodes, slowed=slowed, slowed_nodes=47)
    return {**whole, "episodes": members, "episodes_all": 57}


class Counter:
    """What a page gets over its WebSocket: the bytes of all messages, those of the largest one, and the new times.

    A page is updated each second, with one message. The message has a new time only if the reader has finished an
    update since, which takes many seconds on a busy machine; the charts move on in between. So the bytes per new time
    say how slow the reader is, not what an update costs.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.bytes = 0
        self.largest = 0
        self.times = 0

    def watch(self, page: "Page") -> None:
        page.on("websocket", lambda socket: socket.on("framereceived", self._count))

    def _count(self, frame: Any) -> None:
        data = frame if isinstance(frame, bytes) else frame.encode()
        self.bytes += len(data)
        self.largest = max(self.largest, len(data))
        self.times += MOMENT.search(data) is not None


def most_sent(page: "Page", counter: Counter) -> float:
    """The bytes of the largest update of *page*, or of an average second if a second has several updates."""
    counter.reset()
    began = time.monotonic()
    while counter.times < WATCHED:
        assert time.monotonic() < began + PATIENCE, "the page is not updated"
        page.wait_for_timeout(50)
    return max(counter.largest, counter.bytes / (time.monotonic() - began))


def shown(page: "Page", selector: str, text: str) -> None:
    page.wait_for_function(
        "([selector, text]) => (document.querySelector(selector)?.innerText ?? '').includes(text)", arg=[selector, text]
    )


def test_a_page_of_3200_workers_costs_a_browser_what_a_page_of_few_does(
    server: RunningRedis, look: Callable[..., "Page"], keep: Callable[["Page", str], None]
) -> None:
    """A browser would get megabytes each second, when everybody looks."""
    now = time.time()
    episodes = [rows.episode(now - 9 - one, now - one, resource=f"node {HOT}", nodes=[HOT]) for one in range(30)]
    with server.client() as client:
        job = rows.status(now + 3600)  # it stays current for the whole test
        rows.write(client, "weir", incidents=[wide_incident(now)], episodes=episodes, found=None, job=job)
    speaking = Speaking(server, NODES, WORKERS)
    try:
        with weir_process("--redis", f"unix://{server.socket}") as (_, address):
            counter = Counter()
            page = look(address)
            page.set_default_timeout(PATIENCE * 1e3)
            counter.watch(page)
            page.reload()
            shown(page, ".summary", "100 nodes, 3200 workers")
            shown(page, "table.nodes tbody tr", HOT)
            assert 12 == page.locator("table.nodes tbody tr").count()
            assert "88 more nodes, not overloaded: all 100 nodes." in page.inner_text("main")
            assert not page.locator("table.workers").is_visible()
            page.locator("details.episode summary").first.click()
            shown(page, "details.episode", "37 more episodes not shown.")
            assert "37 more nodes not shown." in page.inner_text("details.episode")
            shown(page, "main", "The chart has the 6 nodes with the highest levels; 94 other nodes have no line.")
            page.wait_for_timeout(10_000)  # the charts have lines by now
            keep(page, "cluster-of-100")
            overview = most_sent(page, counter)

            page.get_by_role("link", name="all 100 nodes").click()
            shown(page, "main", "Page 1 of 2.")
            assert 50 == page.locator("table.nodes tbody tr").count()
            page.get_by_role("link", name="Next").click()
            shown(page, "main", "Page 2 of 2.")
            assert 50 == page.locator("table.nodes tbody tr").count()
            keep(page, "nodes-of-100")

            page.goto(address)
            page.get_by_role("link", name=HOT, exact=True).first.click()
            shown(page, "h1", f"Node {HOT}")
            shown(page, "main", "Worker 3: clients wait too long to be served (lag).")
            shown(page, "main", "10 more episodes not shown.")
            assert WORKERS == page.locator("table.workers tbody tr").count()
            keep(page, "node-of-100")
            of_node = most_sent(page, counter)
            page.get_by_role("link", name=f"{HOT}/3", exact=True).click()
            shown(page, "h1", f"Worker 3 of node {HOT}")
            shown(page, "table.clients", f"c-{HOT}-3-0")
            keep(page, "worker-of-100")
            of_worker = most_sent(page, counter)
    finally:
        speaking.end()

    print(f"bytes of an update: overview {overview:.0f}, node {of_node:.0f}, worker {of_worker:.0f}")
    assert max(overview, of_node, of_worker) < MOST
