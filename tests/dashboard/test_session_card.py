# The session on the page of a client, of a real node: what is seen, and what operators can do and others cannot.
import http.client
import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import pytest

from broker.mqtt.packets import Properties
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.cli.running import weir as weir_command
from tests.dashboard.conftest import PATIENCE, weir_process
from tests.dashboard.test_pages import HOSTILE, PALE, until
from tests.system import node
from tests.system.nodes import Node

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.system

Look = Callable[..., "Page"]
Keep = Callable[["Page", str], None]

TOKEN: Final = "0123456789abcdef"
KEPT: Final[Properties] = {SESSION_EXPIRY_INTERVAL: 3600}
HOSTILE_TOPIC: Final = HOSTILE.replace("+", "")  # which a topic must not have
WAITING: Final = 3  # messages on the topic "t", and one on a hostile one


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    running = Node(
        tmp_path_factory.mktemp("node"), store__durability="process", application__clients='[{client = "service *"}]'
    )
    yield running
    running.end()


@pytest.fixture(scope="module")
def url(weir: Node) -> Iterator[str]:
    token = weir.folder / "token"
    token.write_text(TOKEN)
    with weir_process("--folder", str(weir.folder / "node"), "--operator-token-file", str(token)) as (_, address):
        yield address


def away(weir: Node, name: str) -> str:
    """A client that has left, and for which messages wait; its page."""
    client = weir.client(name, properties=KEPT)
    client.subscribe("t", f"{name}/#", qos=1)
    client.disconnect()
    publisher = weir.client(f"publisher of {name}")
    for number in range(WAITING):
        publisher.publish("t", b"%d" % number, qos=1)
    publisher.publish(f"{name}/{HOSTILE_TOPIC}", b"<b>", qos=1)
    publisher.disconnect()
    return f"client/{quote(name, safe='')}"


def session(weir: Node, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = node.ask(weir.control, "session", client=name)
    return answer


def sign_in(page: "Page") -> None:
    page.get_by_role("link", name="sign in").click()
    page.locator("input[name=token]").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector(".brand")


def shown(page: "Page") -> str:
    return page.locator(".session").inner_text()


def counted(page: "Page") -> None:
    until(lambda: page.locator(".session").count() == 1 and "UTC" in shown(page), "what waits is not counted")


def test_a_viewer_sees_the_session_and_what_waits_by_topic(weir: Node, url: str, look: Look, keep: Keep) -> None:
    """The page would not tell what a client has, or run what a client wrote; or anybody could purge it."""
    name = f"viewed {HOSTILE_TOPIC}"
    page = look(url + away(weir, name))
    counted(page)
    keep(page, "session-viewer")

    for line in ("away for", "durable, in Redis, at worker 0", "in 60 min", "4 messages", "0 messages sent"):
        assert line in shown(page)
    rows = page.locator("table.waiting tbody tr").all_inner_texts()
    assert {"t", f"{name}/{HOSTILE_TOPIC}"[:20]} == {row.split("\t")[0][:20].strip() for row in rows}
    assert ["Count again"] == page.locator(".session button:visible").all_inner_texts()
    assert 0 == page.locator("a.button").count() + page.locator("main img").count()
    assert "To export or purge what waits, or to drop the session, sign in." in page.inner_text("main")
    assert 403 == exported(url, name)[0]


def test_the_lag_of_a_service_is_seen(weir: Node, url: str, look: Look, keep: Keep) -> None:
    """A lag would be seen when the log has dropped what was not read."""
    name = f"service {HOSTILE_TOPIC}"
    page = look(url + away(weir, name))
    until(lambda: "passed on" in shown(page), "the lag is not shown")
    keep(page, "session-service")

    assert "4 records not passed on" in shown(page)
    assert 1 == shown(page).count("oldest in the log")
    page = look(url + away(weir, "no service"))
    counted(page)
    assert "oldest in the log" not in shown(page)


def test_the_logs_that_a_service_shares_are_seen(weir: Node, url: str, look: Look, keep: Keep) -> None:
    """Nobody would see that a group of services falls behind, or that none of them reads."""
    filter, name = f"shared/{HOSTILE_TOPIC}/#", "service that shares"
    client = weir.client(name, properties=KEPT)
    client.subscribe(f"$share/group/{filter}", qos=1)
    client.disconnect()
    publisher = weir.client("publisher of a shared log")
    for number in range(WAITING):
        publisher.publish(f"shared/{HOSTILE_TOPIC}/t", b"%d" % number, qos=1)
    publisher.disconnect()
    page = look(f"{url}client/{quote(name)}")
    until(lambda: page.locator("table.shared tbody tr").count() == 1, "the shared log is not shown")
    keep(page, "session-shared")
    cells = page.locator("table.shared tbody tr").inner_text().split("\t")

    assert cells[0].startswith("$share/group/shared/")
    assert ["0 of 12", "0 of 1", "0 of 12", f"{WAITING} records"] == cells[1:5]
    assert cells[5].endswith("ago")
    assert 0 == page.locator("main img").count()
    assert [] == page.evaluate(PALE)


def exported(url: str, name: str, cookie: str = "") -> tuple[int, list[str]]:
    """The status and the lines of the answer."""
    host, _, port = url.split("/")[2].rpartition(":")
    asking = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
    asking.request("GET", f"/export?{urlencode({'node': 'weir', 'client': name})}", headers={"Cookie": cookie})
    answer = asking.getresponse()
    lines = answer.read().decode().splitlines()
    asking.close()
    return answer.status, lines


def test_an_operator_exports_purges_and_drops(weir: Node, url: str, look: Look, keep: Keep) -> None:
    """Nothing could be repaired in a browser; or one click would be enough to lose messages."""
    name = f"operated {HOSTILE_TOPIC}"
    path = away(weir, name)
    page = look(url + path)
    sign_in(page)
    page.goto(url + path)
    counted(page)
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert [b"0", b"1", b"2", b"<b>"] == [b64decode(json.loads(line)["payload"]) for line in lines]
    assert "queue.jsonl" == download.value.suggested_filename

    page.get_by_role("button", name="Purge the queue").click()
    until(lambda: "Cancel" == page.evaluate("document.activeElement.textContent"), "the focus is elsewhere")
    assert "Remove all that waits, 4 messages as of now?" in page.inner_text(".confirm")
    keep(page, "session-operator")
    assert [] == page.evaluate(PALE)
    page.set_viewport_size({"width": 400, "height": 900})
    keep(page, "session-operator-narrow")
    assert 400 >= page.evaluate("document.documentElement.scrollWidth")
    page.get_by_role("button", name="Cancel").click()
    until(lambda: not page.locator(".confirm").is_visible(), "it cannot be cancelled")
    assert 4 == session(weir, name)["waiting"]

    page.get_by_role("button", name="Purge the queue").click()
    page.get_by_role("button", name="Purge", exact=True).click()
    until(lambda: "Removed 4 messages" in shown(page), "it does not say what was removed")
    assert "No message waits." in shown(page)
    assert 0 == session(weir, name)["waiting"]

    page.get_by_role("button", name="Drop the session").click()
    page.get_by_role("button", name="Drop", exact=True).click()
    until(lambda: "There is no session of a client" in page.inner_text("main"), "it does not say that it is gone")
    assert 0 == page.locator(".session").count()


def test_readers_and_operators_must_have_different_tokens(tmp_path: Path) -> None:
    """Whoever may look could purge queues, and nobody would notice."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    said = weir_command(
        *("dashboard", "--folder", str(tmp_path), "--token-file", str(token), "--operator-token-file", str(token))
    )

    assert (2, True) == (said.returncode, "have the same token" in said.stderr), said.stderr
