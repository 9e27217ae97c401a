"""The console in Debian's Chromium: a console for each server, and pages that fail a test if the browser complains.

The console's Content-Security-Policy is in force, also when axe-core judges a page: the browser's protocol evaluates
it, and the page loads nothing. Some tests of hostile data are without it: what a page escapes must not need it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.legs.console_browser.watched_page import Display, WatchedPage
from tests.operations.console.normal import NormalData, write_normal
from tests.operations.console.process import Console, running_console
from tools.servers.server import Server, running_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HERE = Path(__file__).parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PACKAGES = ("playwright", "axe_playwright_python", "starlette", "uvicorn")
DISPLAYS = [Display(scheme, width) for scheme in ("light", "dark") for width in (1440, 360)]

StartConsole = Callable[..., Console]
OpenPage = Callable[..., WatchedPage]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    missing += [] if CHROMIUM else ["chromium"]
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if missing:
                reason = f"{', '.join(missing)} missing: scripts/test --console brings them"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def start_console() -> Iterator[StartConsole]:
    """Start a console: `start_console(url, "--write")`."""
    with ExitStack() as stack:
        yield lambda url, *arguments, **how: stack.enter_context(running_console(url, *arguments, **how))


@pytest.fixture(scope="module")
def normal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, NormalData]]:
    """An engine with the streams of an application."""
    with running_engine() as server, server.client() as client:
        yield server, write_normal(client, tmp_path_factory.mktemp("normal"))


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open a page of a console in a context of its own: `open_page(console, "/streams", display)`. has_policy: whether
    the console's Content-Security-Policy is in force."""
    with ExitStack() as stack:

        def open_page(
            console: Console, path: str = "/", display: Display = DISPLAYS[0], has_policy: bool = True
        ) -> WatchedPage:
            context = browser.new_context(**display.context(), bypass_csp=not has_policy)
            context.add_cookies([{"name": n, "value": v, "url": console.url} for n, v in console.cookies.items()])
            stack.callback(context.close)
            page = WatchedPage(context.new_page(), console.url, screenshots(), str(display))
            stack.callback(page.close)
            page.open(path)
            return page

        yield open_page


def screenshots() -> Path | None:
    """Folder for screenshots: RSTREAM_SCREENSHOTS."""
    folder = os.environ.get("RSTREAM_SCREENSHOTS")
    return Path(folder) if folder else None
