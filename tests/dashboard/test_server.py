# How the server ends its pages, without a browser.
import asyncio
import threading
from collections.abc import Iterator

import pytest
from nicegui import Client, background_tasks, core, ui

from analytics.dashboard.page import Answer, _ClientPage
from analytics.dashboard.reader import Reader
from analytics.dashboard.server import end_pages
from broker.store.redis.address import RedisAddress


@pytest.fixture
def outside_of_pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test does to the global state of NiceGUI is undone."""
    monkeypatch.setattr(core.app.config, "message_history_length", 9, raising=False)
    monkeypatch.setattr(core.app.config, "reconnect_timeout", 1.0, raising=False)
    yield
    Client.instances.clear()
    core.loop = None


def test_a_page_that_changes_while_the_server_ends_delays_nothing(
    outside_of_pages: None, caplog: pytest.LogCaptureFixture
) -> None:
    """NiceGUI waited for 2 s and printed "Could not cancel 1 tasks within timeout" on Python 3.11."""

    async def end() -> None:
        core.loop = asyncio.get_running_loop()
        client = Client(ui.page("/changing"), request=None)
        client.tab_id = "a browser is connected"
        for _ in range(5):
            await asyncio.sleep(0)
        client.outbox._set_enqueue_event()
        end_pages()
        await background_tasks.teardown()

    asyncio.run(end())

    assert [] == [record.message for record in caplog.records]


def test_a_page_that_waits_for_a_node_ends_when_it_is_cancelled(outside_of_pages: None) -> None:
    """The server would wait for the next question to the node, and print an error."""
    asked, answer = threading.Event(), threading.Event()

    def nowhere() -> RedisAddress:
        raise AssertionError("no test reads Redis here")

    def ask_why(name: str) -> list[Answer]:
        asked.set()
        answer.wait()
        return []

    async def end() -> bool:
        core.loop = asyncio.get_running_loop()
        with Client(ui.page("/client"), request=None):
            page = _ClientPage(Reader(nowhere, "weir", list), ask_why, "pump-1")
        asking = asyncio.create_task(page.ask())
        await asyncio.to_thread(asked.wait)
        asking.cancel()
        await asyncio.wait([asking])
        answer.set()
        await background_tasks.teardown()
        return asking.cancelled()

    assert asyncio.run(end())
