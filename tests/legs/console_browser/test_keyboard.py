"""With the keyboard only, narrow and wide: search by JSON, export, follow an entry, add it again, see hidden values and
local times."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from tests.legs.console_browser.conftest import OpenPage, StartConsole, screenshots
from tests.legs.console_browser.test_pages import check
from tests.legs.console_browser.watched_page import Display, WatchedPage, address
from tests.operations.console.normal import DEAD, STREAM, NormalData
from tests.operations.console.process import Console
from tools.servers.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WIDTHS = pytest.mark.parametrize("display", [Display("light", 1440), Display("light", 360)], ids=str)
_MOST = 200  # elements that take the focus before the wanted one


def tab_to(page: WatchedPage, role: str, name: str) -> None:
    """Press Tab until an element of this role and name has the focus."""
    wanted = page.page.get_by_role(role, name=name, exact=True).first  # type: ignore[arg-type]
    for _ in range(_MOST):
        page.page.keyboard.press("Tab")
        if wanted.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"Tab does not reach {role} {name!r}")


def type_into(page: WatchedPage, name: str, text: str) -> None:
    """Replace the text of a field."""
    tab_to(page, "textbox", name)
    page.page.keyboard.press("Control+A")
    page.page.keyboard.type(text)


@pytest.fixture(scope="module")
def console(normal: tuple[Server, NormalData], start_console: StartConsole) -> Console:
    return start_console(normal[0].url, "--write")


@WIDTHS
def test_search_download_and_add_again(console: Console, open_page: OpenPage, display: Display) -> None:
    page = open_page(console, address("/stream", name=STREAM), display)
    type_into(page, "Field", "order")
    type_into(page, "JSON", "$ >= 000599")
    page.page.keyboard.press("Enter")
    page.page.get_by_text("is not a comparison of JSON").wait_for()  # 000599 is no number of JSON
    page.expect("answer 400")
    page.expect("Failed to load resource")
    check(page, "keyboard-no-comparison")
    page.page.go_back()
    type_into(page, "Field", "amount")
    type_into(page, "JSON", "$ > 88.5")
    page.page.keyboard.press("Enter")
    page.page.wait_for_url("**where=*")
    page.page.get_by_text("Searched").wait_for()
    check(page, "keyboard-search")
    tab_to(page, "link", "Download these entries (JSON Lines)")
    with page.page.expect_download() as download:
        page.page.keyboard.press("Enter")
    entries = page.page.get_by_role("region", name="Entries", exact=True).locator("td.id a")
    lines = Path(download.value.path()).read_text().splitlines()
    assert len(lines) == entries.count() > 0
    assert all('"amount":"89.50"' in line for line in lines)
    entries.first.focus()
    page.page.keyboard.press("Enter")
    page.page.wait_for_url("**/entry?*")
    check(page, "keyboard-entry")
    tab_to(page, "link", "Journey")
    page.page.keyboard.press("Enter")
    page.page.get_by_text("added at the time of its ID").wait_for()
    check(page, "keyboard-where")
    page.page.go_back()
    tab_to(page, "link", "Add again, changed")
    page.page.keyboard.press("Enter")
    page.page.wait_for_url("**/add?*")
    type_into(page, "Value of amount", "12.50")
    check(page, "keyboard-again")
    tab_to(page, "button", "Preview adding…")
    page.page.keyboard.press("Enter")
    page.page.get_by_text("Would add this entry").wait_for()
    check(page, "keyboard-plan-again")
    tab_to(page, "button", "Add an entry")
    page.page.keyboard.press("Enter")
    page.page.get_by_text("Added entry").wait_for()
    check(page, "keyboard-added")


@WIDTHS
def test_hidden_values(
    normal: tuple[Server, NormalData], open_page: OpenPage, start_console: StartConsole, display: Display
) -> None:
    """A hidden value is text, and its neighbours are edited."""
    console = start_console(normal[0].url, "--write", "--show", "order,amount")
    page = open_page(console, address("/stream", name=STREAM), display)
    assert page.page.get_by_text(re.compile(r"^hidden \(\d+ bytes\)$")).count() == 50
    check(page, "hidden-stream")
    type_into(page, "Field", "customer")
    type_into(page, "contains", "ann")
    page.page.keyboard.press("Enter")
    page.page.get_by_text("hidden in this console").wait_for()
    page.expect("answer 403")
    page.expect("Failed to load resource")
    check(page, "hidden-refused")
    page.open("/dead/stream", name=DEAD)
    check(page, "hidden-letters")
    page.page.locator("td.id a").first.focus()
    page.page.keyboard.press("Enter")
    page.page.wait_for_url("**/dead/letter?*")
    page.page.get_by_text("cannot be edited here").wait_for()
    check(page, "hidden-letter")
    type_into(page, "Value of amount", "12.50")
    tab_to(page, "button", "Preview sending back…")
    page.page.keyboard.press("Enter")
    page.page.wait_for_url("**/plan")
    check(page, "hidden-plan")
    assert "dörte" not in page.page.content()


@WIDTHS
def test_local_times(console: Console, browser: Browser, display: Display) -> None:
    """They stand beside UTC, also after an update, until they are switched off. Without a script there is no switch."""
    with browser.new_context(**display.context(), timezone_id="Asia/Tokyo") as context:
        page = WatchedPage(context.new_page(), console.url, screenshots(), str(display))
        page.open("/doctor")
        tab_to(page, "button", "Show local times, too")
        page.page.keyboard.press("Enter")
        page.open("/stream", name=STREAM)
        page.page.locator("td.id a").first.click()
        time, local = page.page.locator("main time"), page.page.locator("main time + .local")
        utc = datetime.fromisoformat(time.inner_text()).replace(tzinfo=UTC)
        zone = "Asia/Tokyo"
        assert (local.text_content() or "").strip() == f"({utc.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S} {zone})"
        check(page, "times-entry")
        page.open("/")
        page.settle()
        assert page.page.locator("time").count() == page.page.locator("time + .local").count() > 0
        check(page, "times-overview")
        tab_to(page, "button", "Show UTC only")
        page.page.keyboard.press("Enter")
        assert page.page.locator(".local").count() == 0
        page.close()
    with browser.new_context(**display.context(), java_script_enabled=False) as context:
        plain = context.new_page()
        plain.goto(console.url)
        assert plain.get_by_role("button", name="local times").count() == 0
        assert "Times are UTC" in plain.content()
