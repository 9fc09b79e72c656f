# `weir demo`, as somebody sees it who opens its page: two overloads, each explained while it lasts and told afterwards.
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from cli.analytics import java
from cli.control_client import ControlClient, RequestFailed
from supervisor.folder import NodeFolder
from tests.browser import drawn

if TYPE_CHECKING:
    from playwright.sync_api import FloatRect, Locator, Page

pytestmark = [pytest.mark.faults, pytest.mark.weir_only("a matter of Weir's processes")]

PART: Final = 12  # seconds
PATIENCE: Final = 240.0  # seconds for what Spark takes to start on a busy machine
SOON: Final = 5.0  # seconds after an episode's start in which the page has its level, cause and culprit
CLOSE: Final = 2.0  # seconds that the times of an episode may be off
LOOK: Final = 0.1  # seconds
SERIOUS: Final = 4  # level
DRAWN: Final = 40  # pixels, of 177
FEW: Final = 5  # CONNECTs that wait for a moment as clients come


class Said:
    """The lines of the demo, and when they came."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.lines: list[tuple[float, str]] = []
        self._more = threading.Condition()
        self._process = process
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._more:
                self.lines.append((time.time(), line))
                self._more.notify()
        with self._more:
            self.lines.append((time.time(), "THE END"))
            self._more.notify()

    def wait(self, words: str) -> tuple[float, str]:
        """The first line with *words*, and when it came."""

        def found() -> list[tuple[float, str]]:
            return [one for one in self.lines if words in one[1] or one[1] == "THE END"]

        with self._more:
            assert self._more.wait_for(found, PATIENCE), self.lines
            at, line = found()[0]
        assert words in line, self.lines
        return at, line


class Watch:
    """When the node was overloaded, as it says itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = NodeFolder("demo", str(folder))
        self._overloaded: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(LOOK):
            with closing(ControlClient(self._folder)) as control:
                try:
                    told = control.try_request("overload")["workers"]
                except RequestFailed:
                    continue
            if any(one["overload"]["level"] or one["overload"]["connects"]["waiting"] > FEW for one in told):
                self._overloaded.append(time.time())

    def end(self) -> None:
        self._done.set()
        self._thread.join()

    def between(self, start: float, end: float) -> tuple[float, float]:
        """The first and the last moment of overload in that time."""
        found = [at for at in self._overloaded if start <= at <= end]
        return found[0], found[-1]


@contextmanager
def demo(folder: Path, *arguments: str) -> "Iterator[tuple[subprocess.Popen[str], Said, Watch]]":
    """A demo that keeps its things in *folder*."""
    command = [sys.executable, "-u", "-m", "cli", "demo", "--port", "0", *arguments]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**environment, "TMPDIR": str(folder)},
    ) as process:
        said = Said(process)
        try:
            said.wait("Open the dashboard: ")
            (own,) = folder.glob("weir-demo-*")
            watch = Watch(own / "node")
            try:
                yield process, said, watch
            finally:
                watch.end()
        finally:  # politely: what it has started would outlive it otherwise
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()


def times(episode: "Locator") -> tuple[float, float]:
    return float(episode.get_attribute("data-start") or 0), float(episode.get_attribute("data-end") or 0)


def test_an_aggressor_and_a_storm_are_explained_and_told(
    look: "Callable[..., Page]",  # the fixture
    tmp_path: Path,
) -> None:
    """What Weir is for, a user would not see: what overloads it, because of whom, while it lasts and afterwards."""
    if java():
        pytest.skip(java())
    pictures = Path(os.environ.get("WEIR_SCREENSHOTS") or tmp_path)
    with (
        tempfile.TemporaryDirectory() as temporary,  # of a short name, as the path of a socket has to be
        demo(Path(temporary), "--seconds-per-part", str(PART)) as (process, said, watch),
    ):
        url = said.wait("Open the dashboard: ")[1].split("dashboard: ")[1].split()[0]
        said.wait("The analysis runs.")
        page = look(url)
        hero = page.locator(".hero")

        begun, _ = said.wait("1 of 2.")
        explained = saw(page, "aggressor-p0")
        assert re.search(r"\((outbound|lag)\)", hero.inner_text()), hero.inner_text()
        overload_is_drawn(page)
        page.screenshot(path=pictures / "demo-aggressor.png", full_page=True, clip=above(page, "workers"))
        told, _ = said.wait("   | ")
        episode = page.locator("details.episode.closed").first
        episode.wait_for(timeout=30_000)
        assert episode.locator("summary .cause span").first.inner_text() in ("outbound", "lag")
        assert "aggressor-p0" == episode.locator("summary .culprit").inner_text()
        judge(episode, watch.between(begun, told), explained)

        begun, _ = said.wait("2 of 2.")
        explained = saw(page, "A storm of connects")
        assert "(connect)" in hero.inner_text(), hero.inner_text()
        ended, _ = said.wait("The demo is complete.")
        page.wait_for_function("document.querySelectorAll('details.episode.closed').length >= 2", timeout=60_000)
        storm = page.locator("details.episode.closed").first
        assert "connect" in storm.locator("summary .cause").inner_text()
        assert "no single client" == storm.locator("summary .culprit").inner_text()
        judge(storm, watch.between(begun, ended), explained)
        storm.locator("summary").click()
        assert "CONNECTs arrived and waited" in storm.inner_text()
        assert "0" == page.locator(".number").inner_text()
        assert min(map(drawn, page.locator(".chart").all())) > DRAWN
        assert page.locator(".job").inner_text().startswith("The analysis runs; ")
        page.screenshot(path=pictures / "demo-told.png", full_page=True)
    assert 130 == process.returncode


def saw(page: "Page", words: str) -> float:
    """When the page said *words* of what goes on, and had a level above 0."""
    page.wait_for_function(
        "words => Number(document.querySelector('.number').textContent) > 0 "
        "&& document.querySelector('.hero').textContent.includes(words)",
        arg=words,
        timeout=60_000,
    )
    return time.time()


def overload_is_drawn(page: "Page") -> None:
    """Wait until the page shows an overload that a reader sees at a glance, and an analysis that follows it."""
    charts = page.locator(".chart").all()
    deadline = time.monotonic() + PART
    while not (
        int(page.locator(".number").inner_text()) >= SERIOUS
        and min(map(drawn, charts)) > DRAWN
        and page.locator("details.episode.open").count()
        and all(words in page.locator(".hero").inner_text() for words in ("aggressor-p0", "1 client is throttled now"))
    ):
        assert time.monotonic() < deadline, page.locator("#main").inner_text()
        time.sleep(LOOK)  # between two looks at a browser
    assert page.locator(".job").inner_text().startswith("The analysis runs; ")


def above(page: "Page", section: str) -> "FloatRect":
    """The part of the page above a section, whole."""
    box = page.locator(f"section[aria-labelledby={section}]").bounding_box()
    assert box is not None
    return {"x": 0, "y": 0, "width": box["x"] + box["width"] + 20, "height": box["y"]}


def judge(episode: "Locator", overloaded: tuple[float, float], explained: float) -> None:
    """The row has the times at which the node was *overloaded*, and the page explained it soon."""
    start, end = times(episode)
    print(
        f"explained {explained - start:.1f} s after its start; start {start - overloaded[0]:+.1f} s, "
        f"end {end - overloaded[1]:+.1f} s off"
    )
    assert explained - start < SOON
    assert abs(start - overloaded[0]) < CLOSE
    assert abs(end - overloaded[1]) < CLOSE
