# `weir demo`, as somebody sees it who opens its page: two overloads, each explained while it lasts and told afterwards.
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from cli.analytics import java

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.faults, pytest.mark.weir_only("a matter of Weir's processes")]

PART: Final = 12  # seconds
PATIENCE: Final = 240.0  # seconds for what Spark takes to start on a busy machine
SOON: Final = 5.0  # seconds in which the page explains what begins
CLOSE: Final = 2.0  # seconds that the times of an episode may be off


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


@contextmanager
def demo(*arguments: str) -> "Iterator[tuple[subprocess.Popen[str], Said]]":
    command = [sys.executable, "-u", "-m", "cli", "demo", "--port", "0", *arguments]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            yield process, Said(process)
        finally:  # politely: what it has started would outlive it otherwise
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()


def test_an_aggressor_and_a_storm_are_explained_and_told(
    look: "Callable[..., Page]",  # the fixture
    tmp_path: Path,
) -> None:
    """What Weir is for, a user would not see: what overloads it, because of whom, while it lasts and afterwards."""
    if java():
        pytest.skip(java())
    pictures = Path(os.environ.get("WEIR_SCREENSHOTS") or tmp_path)
    with demo("--seconds-per-part", str(PART)) as (process, said):
        url = said.wait("Open http://")[1].split("Open ")[1].split()[0]
        said.wait("The analysis runs.")
        page = look(url)

        begun, _ = said.wait("1 of 2.")
        page.wait_for_function("Number(document.querySelector('.number').textContent) > 0", timeout=60_000)
        seen = time.time()
        hero = page.locator(".hero")
        page.wait_for_function(
            "document.querySelector('.hero').textContent.includes('aggressor-p0')", timeout=SOON * 1e3
        )
        assert re.search(r"\((outbound|lag)\)", hero.inner_text()), hero.inner_text()
        page.screenshot(path=pictures / "demo-aggressor.png")
        ended, _ = said.wait("The load has ended.")
        assert begun < seen < ended
        said.wait("   | ")
        episode = page.locator("details.episode.closed").first
        episode.wait_for(timeout=30_000)
        assert episode.locator("summary .cause").inner_text() in ("outbound", "lag")
        assert "aggressor-p0" == episode.locator("summary .culprit").inner_text()
        assert seen - SOON - CLOSE <= float(episode.get_attribute("data-start") or 0) <= seen + CLOSE
        levels = json.loads(episode.evaluate("element => JSON.stringify([element.dataset.start, element.dataset.end])"))
        assert float(levels[1]) >= ended - PART

        said.wait("2 of 2.")
        page.wait_for_function("document.querySelector('.hero').textContent.includes('storm')", timeout=60_000)
        page.screenshot(path=pictures / "demo-storm.png")
        said.wait("That was all.")
        page.wait_for_function("document.querySelectorAll('details.episode.closed').length >= 2", timeout=60_000)
        storm = page.locator("details.episode.closed").first
        assert "connect" in storm.locator("summary .cause").inner_text()
        assert "no single client" == storm.locator("summary .culprit").inner_text()
        storm.locator("summary").click()
        page.screenshot(path=pictures / "demo-told.png", full_page=True)
    assert 130 == process.returncode
