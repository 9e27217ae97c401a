"""Every page, light and dark, narrow and wide, with the data of an application: the browser complains of nothing, no
page is wider than its window, and axe-core finds no violation."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.holding import hold
from tests.legs.console_browser.conftest import DISPLAYS, OpenPage, StartConsole
from tests.legs.console_browser.watched_page import Display, WatchedPage, address
from tests.operations.console.normal import DEAD, GROUP, SOON, STREAM, NormalData
from tests.operations.console.process import Console, running_console
from tools.servers.server import Server, running_engine

PAGES = {
    "overview": "/",
    "overview-search": address("/", find="pay"),
    "streams": "/streams",
    "stream": address("/stream", name=STREAM),
    "stream-search": address("/stream", name=STREAM, field="customer", value="dör"),
    "stream-json-search": address("/stream", name=STREAM, field="amount", where="$ > 88.5"),
    "add": address("/add", name=STREAM),
    "stream-in-shards": address("/stream", name="clicks"),
    "group": address("/group", stream=STREAM, group=GROUP),
    "group-in-shards": address("/group", stream="clicks", group="sessions"),
    "dead": "/dead",
    "dead-stream": address("/dead/stream", name=DEAD),
    "dead-stream-search": address("/dead/stream", name=DEAD, reason="decode", newer="1h"),
    "queries": "/queries",
    "doctor": "/doctor",
    "changes": "/changes",
}
EMPTY = ("/", "/streams", "/dead", "/queries", "/changes")
DISPLAY = pytest.mark.parametrize("display", DISPLAYS, ids=str)


@pytest.fixture(scope="module")
def console(
    normal: tuple[Server, NormalData], start_console: StartConsole, tmp_path_factory: pytest.TempPathFactory
) -> Console:
    server, data = normal
    audit = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    return start_console(server.url, "--write", "--every", "200ms", "--log", str(data.log), "--audit", str(audit))


def check(page: WatchedPage, name: str) -> None:
    """The picture comes last: Playwright changes the page for it."""
    try:
        page.check()
        page.check_layout()
        page.check_accessibility()
    finally:
        page.screenshot(name)


@DISPLAY
@pytest.mark.parametrize("name", PAGES)
def test_a_page(console: Console, open_page: OpenPage, name: str, display: Display) -> None:
    page = open_page(console, PAGES[name], display)
    page.settle()
    check(page, name)


@DISPLAY
def test_an_entry_and_a_dead_letter(
    console: Console, normal: tuple[Server, NormalData], open_page: OpenPage, display: Display
) -> None:
    page = open_page(console, address("/stream", name=STREAM), display)
    page.page.locator("td.id a").first.click()
    page.page.wait_for_url("**/entry?*")
    check(page, "entry")
    page.page.get_by_role("link", name="Journey", exact=True).click()
    page.page.wait_for_url("**/where?*")
    page.page.get_by_text("added at the time of its ID").wait_for()
    check(page, "where-entry")
    for number, letters in enumerate(normal[1].letters.values()):
        page.open("/dead/letter", name=DEAD, id=letters[0])
        check(page, f"dead-letter-{number}")
    page.page.get_by_role("link", name="its journey").click()
    page.page.wait_for_url("**/where?*")
    page.page.get_by_text("dead letter orders:dead/").first.wait_for()
    check(page, "where-dead-letter")


@DISPLAY
def test_dry_runs(console: Console, open_page: OpenPage, display: Display) -> None:
    page = open_page(console, address("/group", stream=STREAM, group=GROUP), display)
    page.page.get_by_label("Position", exact=True).fill("earliest")
    page.page.get_by_role("group", name="Set the position").get_by_role("button").click()
    page.page.wait_for_url("**/plan")
    check(page, "plan-refused")  # a consumer of the group was active in the last minute
    page.page.get_by_role("link", name="Back").click()
    page.page.wait_for_url("**/group?*")
    page.page.get_by_label("To consumer").fill("worker-9")
    page.page.get_by_role("group", name="Hand over pending entries").get_by_label("even if").check()
    page.page.get_by_role("group", name="Hand over pending entries").get_by_role("button").click()
    page.page.wait_for_url("**/plan")
    check(page, "plan-claim")
    page.open("/dead/stream", name=DEAD, reason="timeout")
    page.page.get_by_role("button", name="Preview sending back").click()
    page.page.wait_for_url("**/plan")
    check(page, "plan-redrive")
    page.open("/dead/stream", name=DEAD, reason="timeout")
    page.page.get_by_role("button", name="Preview deletion").click()
    page.page.wait_for_url("**/plan")
    check(page, "plan-purge")


@DISPLAY
def test_a_change(console: Console, open_page: OpenPage, display: Display) -> None:
    page = open_page(console, address("/dead/stream", name=DEAD), display)
    page.page.locator("tbody input[type=checkbox]").first.check()
    page.page.get_by_role("button", name="Preview sending back").click()
    page.page.wait_for_url("**/plan")
    page.page.get_by_role("button", name="Send back").click()
    page.page.wait_for_url("**/changes/*")
    page.page.get_by_text("Done").wait_for()
    check(page, "change")
    page.open("/changes")
    check(page, "changes-made")


@DISPLAY
@pytest.mark.parametrize("path", EMPTY)
def test_a_server_without_streams(empty: Console, open_page: OpenPage, path: str, display: Display) -> None:
    page = open_page(empty, path, display)
    check(page, f"empty-{path.strip('/') or 'overview'}")


@DISPLAY
def test_unused_groups_that_hold_entries_back(holding: Console, open_page: OpenPage, display: Display) -> None:
    page = open_page(holding, address("/stream", name="s"), display)
    row = page.page.locator("#groups tr", has=page.page.get_by_role("link", name="slower", exact=True)).first
    assert re.search(r"holds 9 entries, about [0-9.]+ k?B, idle ", row.inner_text())
    check(page, "stream-held")
    page.open("/group", stream="s", group="slower")
    page.page.get_by_text("holds 9 entries").wait_for()
    check(page, "group-held")


@pytest.fixture(scope="module")
def holding() -> Iterator[Console]:
    with running_engine() as server, server.client() as client:
        hold(client)
        with running_console(server.url, before=SOON) as console:
            yield console


@pytest.fixture(scope="module")
def empty() -> Iterator[Console]:
    with running_engine() as server, running_console(server.url) as console:
        yield console


@DISPLAY
@pytest.mark.parametrize(
    ("name", "path", "status"),
    [
        ("no-stream", address("/stream", name="missing"), 404),
        ("no-group", address("/group", stream=STREAM, group="missing"), 404),
        ("no-letter", address("/dead/letter", name=DEAD, id="1-1"), 404),
        ("no-time", address("/stream", name=STREAM, at="yesterday?"), 400),
    ],
)
def test_an_error(console: Console, open_page: OpenPage, name: str, path: str, status: int, display: Display) -> None:
    page = open_page(console, path, display)
    page.expect(f"answer {status}")
    page.expect("Failed to load resource")
    check(page, f"error-{name}")


@DISPLAY
def test_the_link(
    normal: tuple[Server, NormalData], open_page: OpenPage, start_console: StartConsole, display: Display
) -> None:
    console = start_console(normal[0].url, "--write", opens_link=False)
    page = open_page(console, "/", display)
    page.page.get_by_text("has not opened the link").wait_for()
    check(page, "overview-read-only")
    page.page.goto(console.url + console.link)
    page.page.wait_for_url(page.url + "/")
    page.page.get_by_role("heading", name="Groups").wait_for()
    assert page.page.get_by_text("has not opened the link").count() == 0
    check(page, "overview-opened")
    stranger = open_page(console, "/", display)
    stranger.page.goto(console.url + console.link)
    stranger.page.get_by_text("or it was opened before").wait_for()
    stranger.expect("answer 403")
    stranger.expect("Failed to load resource")
    check(stranger, "link-used")
