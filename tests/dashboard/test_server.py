# How the server ends its pages, without a browser.
import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from nicegui import Client, background_tasks, core, ui
from nicegui.elements.mixins.text_element import TextElement

from analytics.dashboard.client_nodes import Answer, Found, NodeRefused
from analytics.dashboard.page import _ClientPage
from analytics.dashboard.reader import Reader
from analytics.dashboard.server import end_pages, export
from analytics.dashboard.session_card import _Session
from broker.store.redis.address import RedisAddress
from cli.dashboard import _Nodes


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

    class Slow:
        def why(self, client: str) -> list[Answer]:
            asked.set()
            answer.wait()
            return []

        def sessions(self, client: str) -> list[Found]:
            return []

        def queue(self, node: str, client: str) -> dict[str, Any]:
            raise NotImplementedError

        def log(self, node: str, client: str) -> dict[str, Any]:
            raise NotImplementedError

        def purge(self, node: str, client: str) -> dict[str, Any]:
            raise NotImplementedError

        def drop(self, node: str, client: str) -> None:
            raise NotImplementedError

        def export(self, node: str, client: str) -> Iterator[bytes]:
            raise NotImplementedError

    async def end() -> bool:
        core.loop = asyncio.get_running_loop()
        with Client(ui.page("/client"), request=None):
            page = _ClientPage(Reader(nowhere, "weir", list), Slow(), "pump-1", operates=False, signs_in=False)
        asking = asyncio.create_task(page.ask())
        await asyncio.to_thread(asked.wait)
        asking.cancel()
        await asyncio.wait([asking])
        answer.set()
        await background_tasks.teardown()
        return asking.cancelled()

    assert asyncio.run(end())


class Refusing:
    """A node whose session has moved away."""

    def why(self, client: str) -> list[Answer]:
        return []

    def sessions(self, client: str) -> list[Found]:
        raise NotImplementedError

    def queue(self, node: str, client: str) -> dict[str, Any]:
        raise NodeRefused("The session has moved `away`.")

    def log(self, node: str, client: str) -> dict[str, Any]:
        raise NodeRefused("The log has `gone`.")

    def purge(self, node: str, client: str) -> dict[str, Any]:
        raise NodeRefused("The session has `ended`.")

    def drop(self, node: str, client: str) -> None:
        raise NodeRefused("The session has ended.")

    def export(self, node: str, client: str) -> Iterator[bytes]:
        raise NodeRefused("There is no session.")
        yield b""


def test_what_a_node_refuses_is_said(outside_of_pages: None) -> None:
    """A button would do nothing, and nobody know why."""

    async def press() -> list[str]:
        core.loop = asyncio.get_running_loop()
        with Client(ui.page("/client"), request=None):
            made = _Session(Refusing(), "weir", "pump-1", operates=True)
        said = []
        await made.look_once()
        said.append(texts(made._counted.element))
        for ask in (made._ask_purge, made._ask_drop):
            ask()
            await made._confirmed()
            await made._confirmed()  # the second of two clicks
            said.append(texts(made._result.element))
        assert not made.busy
        await background_tasks.teardown()
        return said

    assert ["The session has moved 'away'.", "The session has 'ended'.", "The session has ended."] == asyncio.run(
        press()
    )
    answer = export(Refusing(), "weir", "pump-1", operates=True)
    assert (404, b"There is no session.\n") == (answer.status_code, answer.body)


def texts(element: ui.element) -> str:
    return "".join(one.text for one in element.default_slot.children if isinstance(one, TextElement))


def test_few_queues_are_counted_at_once() -> None:
    """Everybody who may look could have a node read its queues all the time."""
    nodes = _Nodes(list)
    gone = "This node does not run on this machine any more."
    for limit in (gone, gone, "Other pages have what waits counted just now: count again in a moment."):
        with pytest.raises(NodeRefused, match=limit):
            nodes.queue("weir", "pump-1")
        nodes._counts.acquire(blocking=False)
