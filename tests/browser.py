# A browser for tests that look at pages: headless, one at a time, as Playwright wants it (tests/conftest.py has the
# fixtures). While it is there asyncio runs in this thread, which other tests want for themselves: so one for each file.
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

PATIENCE: Final = 30.0  # seconds for what should take one: a busy machine is no failure
CHROMIUM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="module")
def chromium() -> "Iterator[Browser]":
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        yield browser
        browser.close()


@pytest.fixture
def look(chromium: "Browser") -> "Iterator[Callable[..., Page]]":
    """Opens pages, `look(url)`; each fails the test if it asks anybody else for anything, or has an error."""
    contexts = []
    wrong: list[str] = []

    def open_page(address: str, width: int = 1280, height: int = 900, scheme: Any = "light") -> "Page":
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE * 1e3)
        home = "/".join(address.split("/")[:3])
        page.on("request", lambda asked: wrong.append(asked.url) if _elsewhere(asked.url, home) else None)
        page.on("response", lambda said: wrong.append(f"{said.status} {said.url}") if said.status >= 400 else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [] == wrong


def drawn(chart: "Locator") -> float:
    """The height of the highest line of a chart, in pixels."""
    return float(
        chart.evaluate(
            "element => Math.max(0, ...[...element.querySelectorAll('path[stroke^=\"var(--\"]')]"
            ".filter(path => path.getAttribute('fill') === 'none' && path.getBBox().width > 20)"
            ".map(path => path.getBBox().height))"
        )
    )


def _elsewhere(asked: str, home: str) -> bool:
    return not asked.startswith((home, home.replace("http", "ws"), "data:"))
