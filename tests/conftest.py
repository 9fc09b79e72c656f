# What every test may rely on.
#
# The suite runs on two forms of the same code: the sources as they are, and an installed copy with its hot
# modules compiled. WEIR_FORM says which one is meant, and nothing runs when another one was imported:
# a compiled run that tests the sources would be green and mean nothing.
import gc
import os
import tracemalloc
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

import broker
from broker.config.schema import Config
from broker.version import form
from tests.browser import chromium, look
from tests.innode import Node
from tests.inprocess import Broker

if TYPE_CHECKING:
    from supervisor.redis_server import RedisServer
    from tests.redis_servers import RunningRedis

__all__ = ["chromium", "look"]  # fixtures

ROOT = Path(__file__).resolve().parent.parent

# A deadline would make the speed of the machine a matter of right and wrong.
hypothesis.settings.register_profile("weir", deadline=None)
hypothesis.settings.load_profile("weir")


def pytest_configure() -> None:
    wanted = os.environ.get("WEIR_FORM")
    if wanted is None:
        return
    where = Path(broker.__file__).resolve().parent
    of_the_tree = where == ROOT / "broker"
    if form() != wanted:
        raise pytest.UsageError(f"WEIR_FORM={wanted}, but the broker in {where} is {form()}")
    if of_the_tree == (os.environ.get("WEIR_INSTALLED") == "1"):
        raise pytest.UsageError(f"The broker of the other place was imported: {where}")
    if of_the_tree and (hidden := [*where.rglob("*.so"), *where.rglob("*.pyd")]):
        raise pytest.UsageError(f"A compiled file hides a source: {hidden[0]}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that only the sources can run. They are not skipped: nothing is missing."""
    if form() != "compiled":
        return
    left_out = [item for item in items if item.get_closest_marker("interpreted")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("interpreted")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """With WEIR_NO_SKIP a skip is a failure: where everything was installed on purpose, nothing may be missing."""
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("WEIR_NO_SKIP") == "1":
        report.outcome = "failed"
        report.longrepr = f"Skipped, but WEIR_NO_SKIP is set: {report.longrepr}"


@pytest.fixture
def brokers() -> Iterator[Callable[..., Broker]]:
    """Makes in-process brokers, `brokers(Config(...))`, and closes them at the end."""
    made: list[Broker] = []

    def make(config: Config | None = None, connections: int = 1000, trace: str = "") -> Broker:
        made.append(Broker(config, connections, trace=trace))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def names() -> Sequence[str]:
    """Of the nodes that the workers of `nodes` are of, by turns."""
    return ("weir",)


@pytest.fixture
def nodes(names: Sequence[str]) -> Iterator[Callable[..., Node]]:
    """Makes nodes of several in-process workers, `nodes(2, Config(...))`, and closes them at the end."""
    made: list[Node] = []

    def make(
        workers: int = 2,
        config: Config | None = None,
        redis: "RunningRedis | None" = None,
        name: str = "",
        durable: bool = False,
        prepare: Callable[[Broker], None] | None = None,
        later: float = 0.0,
    ) -> Node:
        address = None if redis is None else redis.address
        if redis is not None:  # what the lease of a node says there does not matter
            with redis.client() as client:
                client.hset("weir:nodes", mapping=dict.fromkeys(names, ""))
        made.append(
            Node(workers, config, address, [name] if name else names, durable=durable, prepare=prepare, later=later)
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[Callable[..., "RunningRedis"]]:
    """A function that starts a server, `start_redis()`; it is ended after the test."""
    from tests.redis_servers import SERVERS, RunningRedis  # it looks which ones are installed

    started: list[RunningRedis] = []

    def start(server: "RedisServer | None" = None, more: str = "", port: int = 0) -> RunningRedis:
        if server is None and not SERVERS:
            pytest.skip("there is no redis-server")
        started.append(RunningRedis(server or SERVERS[-1], tmp_path / f"redis{len(started)}", more, port))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture
def traced() -> Iterator[None]:
    """tracemalloc knows what was allocated since the test began. Cycles stay: when they are found is chance."""
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()


@pytest.fixture
def garbage() -> Iterator[list[object]]:
    """What only the collector would have found since the test began; it is filled by `gc.collect()`."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()
