"""Search by JSON, export, follow an entry, add it again, and log in by OIDC with the keyboard only, narrow and wide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.normal import STREAM, NormalData
from tests.console.process import Console
from tests.console.provider import Provider, running_provider
from tests.console.test_oidc import write_settings
from tests.console_browser.conftest import OpenPage, StartConsole
from tests.console_browser.test_pages import check
from tests.console_browser.watched_page import Display, WatchedPage, address
from tools.servers.server import Server

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


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


@WIDTHS
def test_log_in_by_oidc(
    normal: tuple[Server, NormalData],
    open_page: OpenPage,
    start_console: StartConsole,
    provider: Provider,
    tmp_path: Path,
    display: Display,
) -> None:
    settings = write_settings(tmp_path / "oidc.toml", provider.issuer)
    page = open_page(start_console(normal[0].url, "--write", "--oidc", str(settings)), "/", display)
    assert page.page.url.endswith("/login")
    check(page, "oidc-login")
    provider.claims = {"groups": ["other"]}
    tab_to(page, "link", f"Log in by {provider.issuer.removeprefix('http://')}")
    page.page.keyboard.press("Enter")
    page.page.get_by_role("alert").get_by_text("none of the groups").wait_for()
    page.expect("answer 403")
    page.expect("Failed to load resource")
    page.expect("request to localhost")
    check(page, "oidc-denied")
    provider.claims = {"groups": ["staff"]}
    tab_to(page, "link", f"Log in by {provider.issuer.removeprefix('http://')}")
    page.page.keyboard.press("Enter")
    page.page.wait_for_url(page.url + "/")  # a cookie that is SameSite=Strict has come with it
    user = f"oidc:ann (sub u1 at {provider.issuer})"
    page.page.get_by_text(f"{user} has the role view").wait_for()
    page.expect("request to localhost")
    check(page, "oidc-overview")
    tab_to(page, "button", f"Log out {user}")
    page.page.keyboard.press("Enter")
    page.page.wait_for_url("**/login")
    page.open("/streams")
    assert page.page.url.endswith("/login")
