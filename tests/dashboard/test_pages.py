# The pages in a browser: what is seen, and that it stays so for who uses a keyboard, a phone, or the dark.
import http.client
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from analytics.keys import AnalyticsKeys
from tests.browser import drawn
from tests.cli.running import weir
from tests.dashboard import rows
from tests.dashboard.conftest import PATIENCE, Writer, weir_process
from tests.dashboard.rows import Row, aggressor
from tests.redis_servers import SERVERS, RunningRedis

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.system

Look = Callable[..., "Page"]
Keep = Callable[["Page", str], None]

HOSTILE = "<img src=x onerror=document.title=7></script>`${1+1}`/..\\"

# Each text that is seen, with less contrast to what is behind it than WCAG's AA asks for.
PALE = """() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const color = channels(getComputedStyle(one).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const pale = [];
  for (const element of document.querySelectorAll("main *, header *")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.getClientRects().length || element.closest("svg")) continue;
    const style = getComputedStyle(element);
    const [one, other] = [light(channels(style.color)), light(behind(element))].sort((a, b) => b - a);
    const large = parseFloat(style.fontSize) >= 24;
    const contrast = (one + 0.05) / (other + 0.05);
    if (contrast < (large ? 3 : 4.5)) pale.push(`${element.textContent.slice(0, 30)}: ${contrast.toFixed(2)}`);
  }
  return pale;
}"""


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)  # between two looks at a browser


def busy(writer: Writer, level: int = 7, now: float = 0.0) -> None:
    """A cluster in the middle of an episode that began 20 s before *now*, which is its id; 0.0: the present time."""
    now = now or time.time()
    writer.forget()
    writer.worker(aggressor, level, paused={"credits": {"clients": 1, "pauses": 3, "ms": 800}}, dropped={"expired": 3})
    writer.worker(rows.record, 1)
    writer.job(
        rows.incident(now - 20, None),
        rows.incident(now - 200, now - 160, "meter-2", peak=3),
        warnings=[rows.warning()],
        slow_readers=[{"node": "a", "worker": 0, "non_writable": 2, "outbound_share": 0.3, "since": now - 60}],
    )


def number(page: "Page") -> str:
    return page.locator(".number").inner_text()


def test_it_shows_level_cause_and_culprit_and_goes_on_by_itself(
    url: str, writer: Writer, look: Look, keep: Keep
) -> None:
    """Somebody who keeps the page open would see what was when they opened it."""
    busy(writer, 4)
    page = look(url)
    until(lambda: number(page) == "4", "the level does not come")
    hero = page.locator(".hero").inner_text()
    assert "(lag). This signal of worker 0 of node a" in hero
    assert "Most of the load is due to pump-1" in hero
    keep(page, "light")
    writer.worker(aggressor, 8)
    until(lambda: number(page) == "8", "the level does not go on")
    assert "Overloaded" in page.locator(".hero").inner_text()


def test_nothing_jumps_and_the_focus_stays(url: str, writer: Writer, look: Look) -> None:
    """Each second a reader would lose the line, and who uses a keyboard the place."""
    busy(writer)
    page = look(url)
    until(lambda: number(page) == "7", "the level does not come")
    link = page.locator("table.clients a").first
    link.focus()
    page.evaluate(
        """() => { window.moved = 0; new PerformanceObserver(list => {
          for (const one of list.getEntries()) window.moved += one.value;
        }).observe({type: "layout-shift"}); }"""
    )
    for level in (6, 5, 6):
        writer.worker(aggressor, level, in_={"messages": 1000 * level, "bytes": 99})
        until(lambda level=level: number(page) == str(level), "the level does not go on")  # type: ignore[misc]

    assert "pump-1" == page.evaluate("document.activeElement.textContent")
    assert 0.02 > page.evaluate("window.moved")


def test_an_episode_opens_by_keyboard_and_stays_open(url: str, writer: Writer, look: Look) -> None:
    """Its story would be for the mouse only, or close under who reads it."""
    now = time.time()
    busy(writer, now=now)
    told = rows.incident(now - 20, None, peak=8)
    page = look(url)
    # The page may still show the episodes of the test before this one.
    episode = page.locator(f"details.episode[data-episode='{told['id']}']")

    def opens() -> bool:
        if not episode.evaluate("element => element.open"):  # a second Enter would close it again
            episode.locator("summary").focus()
            page.keyboard.press("Enter")
        return "pump-1 had 83 % of the cost" in episode.inner_text()

    until(opens, "it does not open")
    # Not by busy(), which forgets all that was told: a page that is told nothing has no episode for a moment.
    writer.worker(aggressor, 8)
    writer.job(told)
    until(lambda: number(page) == "8" and "peak 8" in episode.inner_text(), "the level does not go on")
    assert "21.5 s in total" in episode.inner_text()  # it did not close when it was told of again


def test_a_keyboard_begins_with_a_way_past_the_header(url: str, writer: Writer, look: Look) -> None:
    """Each time one would have to go through all of it, and not see where one is."""
    busy(writer)
    page = look(url)
    until(lambda: number(page) == "7", "the page is not there")
    page.keyboard.press("Tab")
    assert "Skip to the content" == page.evaluate("document.activeElement.textContent")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"
    assert page.evaluate("document.querySelectorAll('h1').length") == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(url: str, writer: Writer, look: Look, keep: Keep, scheme: str) -> None:
    """Some would not be able to read it, and nobody in the sun."""
    busy(writer)
    page = look(url, scheme=scheme)
    until(lambda: number(page) == "7", "the page is not there")
    page.locator("details.episode summary").first.click()
    keep(page, f"open-{scheme}")

    assert [] == page.evaluate(PALE)


def test_the_theme_can_be_chosen_and_is_remembered(url: str, writer: Writer, look: Look) -> None:
    """A wall display in a dark room would be white because its system is."""
    busy(writer)
    page = look(url)

    def background() -> Any:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    before = background()
    page.get_by_role("button", name="Light / dark").click()
    assert before != background()
    chosen = background()
    page.reload()
    assert chosen == background()


def test_a_phone_shows_all_of_it_without_scrolling_sideways(url: str, writer: Writer, look: Look, keep: Keep) -> None:
    """Who is woken at night looks at it on a phone."""
    busy(writer)
    page = look(url, width=390, height=844, scheme="dark")
    until(lambda: number(page) == "7", "the page is not there")
    keep(page, "narrow")

    assert 390 >= page.evaluate("document.documentElement.scrollWidth")
    assert page.evaluate("document.querySelector('.hero').getBoundingClientRect().bottom") < 844


def pumped(level: int, **given: Any) -> Row:
    """A record of a worker at which one client publishes the more, the higher the *level* is."""
    pump, meter = 40 + 100 * level, 20
    return rows.record(
        level=level,
        cluster_level=level,
        cause="lag" if level else "",
        signals={"lag": 1.0 + 0.2 * level},
        credits_per_tick=50_000 >> level,
        in_={"messages": pump + meter, "bytes": 64 * (pump + meter)},
        out={"messages": 4 * (pump + meter), "bytes": 256 * (pump + meter)},
        latency={"messages": pump + meter, "p50_ms": 1.0 + level, "p99_ms": 2.0 + 20 * level},
        top={
            "clients": rows.top("client", ("pump-1", 10 * pump, pump), ("meter-2", 10 * meter, meter)),
            "topics": rows.top("topic", ("line/7/raw", 10 * pump, pump), ("meters/2", 10 * meter, meter)),
        },
        **given,
    )


def test_the_pictures_of_the_readme_show_an_overload(tmp_path: Path, look: Look, keep: Keep) -> None:
    """They were of another time: without a line in their charts, or with words that no page has."""
    server = RunningRedis(SERVERS[-1], tmp_path)
    now = time.time()
    with server.client() as client:
        for ago in range(240, 0, -1):
            level = min(6, max(0, 100 - ago) // 8)  # it rises for a minute, and is 6 since
            one = pumped(level, sequence=ago, boot=f"{ago}")
            client.xadd(AnalyticsKeys("weir").metrics, {"record": json.dumps(one)}, id=f"{int((now - ago) * 1e3)}-0")
    writer = Writer(server)
    try:
        held: Row = {"paused": {"credits": {"clients": 1, "pauses": 3, "ms": 800}}, "clients": {"throttled": 1}}
        writer.worker(pumped, 6, **held)
        with weir_process("--redis", f"unix://{server.socket}") as (_, address):
            for name, width, height in (("dark", 1280, 900), ("phone", 390, 844)):
                writer.job(
                    rows.incident(now - 92, None, peak=6), rows.incident(now - 400, now - 360, "meter-2", peak=3)
                )
                page = look(address, width=width, height=height, scheme="dark")
                until(lambda page=page: number(page) == "6", "the level does not come")  # type: ignore[misc]
                until(lambda page=page: min(map(drawn, page.locator(".chart").all())) > 20, "a chart is empty")  # type: ignore[misc]
                assert "Most of the load is due to pump-1" in page.inner_text(".hero")
                assert page.inner_text(".moment").endswith(" UTC")
                keep(page, name)
    finally:
        writer.end()
        server.end()


def test_what_a_client_calls_itself_is_only_a_text(url: str, writer: Writer, look: Look) -> None:
    """Whoever may connect could run a script in the browser of who watches."""
    hit: Row = {"clients": rows.top("client", (HOSTILE, 900, 90)), "topics": rows.top("topic", (HOSTILE, 900, 90))}
    now = time.time()
    writer.forget()
    writer.worker(rows.record, level=5, cause="lag", signals={"lag": 2.0}, top=hit)
    writer.job(rows.incident(now - 9, None, HOSTILE, story=[HOSTILE]))
    page = look(url)
    link = page.locator("table.clients a").first
    until(lambda: link.count() > 0 and link.inner_text() == HOSTILE, "the client is not shown")
    page.locator("details.episode summary").first.click()
    link.click()
    page.wait_for_selector("h1")
    assert HOSTILE == page.locator("h1").inner_text()
    page.wait_for_selector(".answers p")
    assert "7" not in page.title()
    assert 0 == page.locator("img").count()


def test_an_empty_cluster_says_what_to_do(tmp_path: Path, look: Look, keep: Keep) -> None:
    """The first page that somebody sees would be full of nothing, and a Redis that is away a riddle."""
    server = RunningRedis(SERVERS[-1], tmp_path)
    writer = Writer(server)
    try:
        with weir_process("--redis", f"unix://{server.socket}") as (_, address):
            page = look(address)
            until(lambda: "No worker has written" in page.inner_text("main"), "it does not say why it is empty")
            assert "weir analytics run" in page.inner_text("main")
            keep(page, "empty")
            writer.worker(aggressor, 5)
            until(lambda: number(page) == "5", "the level does not come")
            keep(page, "no-analysis")
            server.kill()
            until(lambda: "Redis has not been available since" in page.inner_text("body"), "it does not say so")
            keep(page, "redis-away")
            server.start()
            until(
                lambda: "Redis has not been available" not in page.inner_text("body"),
                "it does not see that Redis is back",
            )
    finally:
        writer.end()
        server.end()


def test_longer_times_come_from_the_windows_of_the_analysis(
    url: str, redis_of_pages: RunningRedis, writer: Writer, look: Look
) -> None:
    """What happened an hour ago could not be seen."""
    busy(writer)
    now = int(time.time())
    for start in range(now - now % 10 - 600, now, 10):
        row = json.dumps(rows.window(start, 10, 9))
        redis_of_pages.client().hset(AnalyticsKeys("weir").windows(10), str(start), row)
    page = look(url)
    button = page.get_by_role("button", name="1 hour")
    button.click()

    chart = page.locator(".chart").first

    def highest() -> Any:
        """Of the first line, from the top of the chart."""
        return chart.evaluate(
            "element => Math.min(...[...element.querySelectorAll('path[stroke=\"var(--level)\"]')]"
            ".map(path => path.getBBox().y + 1000 * (path.getBBox().height === 0)))"
        )

    until(lambda: 0 < highest() < 80, "the hour is not drawn")
    until(lambda: "true" == button.get_attribute("aria-pressed"), "the button does not say which time is shown")


def test_it_answers_only_who_asks_for_this_machine(url: str) -> None:
    """A page of somebody else could have a browser read the names of all clients (DNS rebinding)."""

    def answer(host: str) -> int:
        asking = http.client.HTTPConnection(*_address(url), timeout=PATIENCE)
        asking.request("GET", "/", headers={"Host": host})
        status = asking.getresponse().status
        asking.close()
        return status

    assert [200, 200, 200, 421, 421] == [
        answer(host) for host in ("localhost", "127.0.0.1:8088", "[::1]:8088", "evil.example", "127.0.0.1.evil.example")
    ]


def test_it_ends_at_once_though_somebody_looks(redis_of_pages: RunningRedis, look: Look) -> None:
    """It would hang, or end with an error, for as long as a browser is open."""
    for number in (signal.SIGTERM, signal.SIGINT):
        with weir_process("--redis", f"unix://{redis_of_pages.socket}") as (process, address):
            look(address)
            process.send_signal(number)
            said, _ = process.communicate(timeout=PATIENCE)
            assert (0, "") == (process.returncode, said)


def test_what_is_wrong_at_its_start_is_a_sentence(redis_of_pages: RunningRedis, tmp_path: Path, url: str) -> None:
    """A traceback says nothing about what to do."""
    redis = ("--redis", f"unix://{redis_of_pages.socket}")
    taken = weir("dashboard", *redis, "--port", str(_address(url)[1]))
    nowhere = weir("dashboard", "--redis", f"unix://{tmp_path}/none.sock")
    no_node = weir("dashboard", "--folder", str(tmp_path / "none"))

    assert [2, 1, 1] == [one.returncode for one in (taken, nowhere, no_node)]
    assert "is in use, perhaps by another dashboard: choose another port" in taken.stderr
    assert "none.sock cannot be reached" in nowhere.stderr
    assert "is not running: `weir start --detach` starts one" in no_node.stderr
    assert [1, 1, 1] == [one.stderr.count("\n") for one in (taken, nowhere, no_node)]


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.split("/")[2].rpartition(":")
    return host, int(port)
