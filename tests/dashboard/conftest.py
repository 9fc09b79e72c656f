# A dashboard as a process, and a Redis that tests write into as workers and the job do.
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import redis

from analytics.keys import AnalyticsKeys
from tests.dashboard import rows
from tests.dashboard.rows import Row
from tests.redis_servers import SERVERS, RunningRedis

if TYPE_CHECKING:
    from playwright.sync_api import Page

EVERY: Final = 0.8  # seconds
PATIENCE: Final = 30.0  # seconds for what should take one: a busy machine is no failure


@contextmanager
def weir_process(*arguments: str) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """A `weir dashboard` with *arguments*, on a free port, and its URL."""
    command = [sys.executable, "-m", "cli", "dashboard", "--port", "0", *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "serves on http://" in line, line + process.stdout.read()
            yield process, line.split("serves on ")[1].split()[0]
        finally:
            process.kill()
        if not process.stdout.closed:
            log = process.stdout.read()
            assert "Traceback" not in log, log


class Writer:
    """Writes what workers and the job do: each worker says each second what it said last, until `end()`."""

    def __init__(self, server: RunningRedis) -> None:
        self._client = server.client()
        self._said: dict[int, Row] = {}
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._speaking = threading.Thread(target=self._speak, daemon=True)
        self._speaking.start()
        self._boot = secrets.token_hex(4)
        self._sequence = count()
        self._batch = count(1)

    def worker(self, made: Callable[..., Row] = rows.record, *arguments: Any, **given: Any) -> None:
        with self._lock:
            one = made(*arguments, **given)
            self._said[one["worker"]] = one
            self._write(one)

    def _write(self, record: Row) -> None:
        one = record | {"boot": self._boot, "sequence": next(self._sequence)}
        self._client.xadd(AnalyticsKeys("weir").metrics, {"record": json.dumps(one)})

    def _speak(self) -> None:
        while not self._ended.wait(EVERY):
            with self._lock:
                try:
                    for one in self._said.values():
                        self._write(one)
                except redis.RedisError:
                    pass  # a test has killed it

    def end(self) -> None:
        self._ended.set()
        self._speaking.join()
        self._client.close()

    def job(self, *incidents: Row, **findings: Any) -> None:
        now = time.time()
        job = rows.status(now, next(self._batch))
        rows.write(self._client, "weir", incidents=[*incidents], found=rows.findings(now, **findings), job=job)

    def forget(self) -> None:
        with self._lock:
            self._said.clear()
            self._client.flushall()


@pytest.fixture(scope="module")
def redis_of_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRedis]:
    made = RunningRedis(SERVERS[-1], tmp_path_factory.mktemp("redis"))
    yield made
    made.end()


@pytest.fixture(scope="module")
def url(redis_of_pages: RunningRedis) -> Iterator[str]:
    """A dashboard of that Redis."""
    with weir_process("--redis", f"unix://{redis_of_pages.socket}") as (_, address):
        yield address


@pytest.fixture
def writer(redis_of_pages: RunningRedis) -> Iterator[Writer]:
    made = Writer(redis_of_pages)
    yield made
    made.end()


@pytest.fixture
def keep(tmp_path: Path) -> "Callable[[Page, str], None]":
    """Keeps a picture of a page under a name; in the folder WEIR_SCREENSHOTS, if that is set."""
    folder = Path(os.environ.get("WEIR_SCREENSHOTS") or tmp_path)

    def picture(page: "Page", name: str) -> None:
        page.screenshot(path=folder / f"{name}.png", full_page=True)

    return picture
