"""What a hostile client has written stays text on every page: no script runs, nothing is loaded, no page grows wider
than its window, and axe-core finds no violation."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from spark_streams.base.printable import printable_lines
from tests.legs.console_browser.conftest import DISPLAYS, OpenPage
from tests.legs.console_browser.watched_page import Display, WatchedPage, address
from tests.operations.console.hostile import HOSTILE_DEAD, NAMES, TARGET, TEXTS, HostileData, write_hostile
from tests.operations.console.process import Console, running_console
from tools.servers.server import running_engine, running_redis, skip_without_redis

DISPLAY = pytest.mark.parametrize("display", DISPLAYS, ids=str)
ENGINE = pytest.mark.parametrize("hostile", ["engine"], indirect=True)
NARROW = Display("light", 360)


def text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def visit(page: WatchedPage, path: str, **names: bytes) -> None:
    """A group whose name is not UTF-8 has no page: it is refused."""
    page.open(path, **{name: text(value) for name, value in names.items()})
    if names.get("group") == NAMES["no UTF-8"]:
        page.expect("answer 400")
        page.expect("load resource")
    check(page)


@pytest.fixture(scope="module", params=["engine", "redis"])
def hostile(request: pytest.FixtureRequest) -> Iterator[tuple[Console, HostileData]]:
    """A console of a server of each kind."""
    if request.param == "redis":
        skip_without_redis()
    running = running_engine if request.param == "engine" else running_redis
    with running() as server, server.client() as client:
        data = write_hostile(client)
        with running_console(server.url, "--write", "--every", "200ms") as console:
            yield console, data


def check(page: WatchedPage, name: str = "") -> None:
    """name: of a picture."""
    try:
        page.check()
        page.check_layout()
        if name:
            page.check_accessibility()
    finally:
        if name:
            page.screenshot(f"hostile-{name}")


@DISPLAY
@ENGINE
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("overview", "/"),
        ("overview-search", address("/", find=text(NAMES["closed attribute"]))),
        ("streams", "/streams"),
        ("stream", address("/stream", name=text(TARGET))),
        ("stream-long", address("/stream", name=text(NAMES["long"]))),
        ("group-long", address("/group", stream=text(TARGET), group=text(NAMES["long"]))),
        ("dead", "/dead"),
        ("dead-stream", address("/dead/stream", name=text(HOSTILE_DEAD))),
        ("doctor", "/doctor"),
    ],
)
def test_a_page(
    hostile: tuple[Console, HostileData], open_page: OpenPage, name: str, path: str, display: Display
) -> None:
    page = open_page(hostile[0], path, display)
    page.settle()
    check(page, name)


@DISPLAY
@ENGINE
@pytest.mark.parametrize("name", ["fields", "large", "all", "value: script"])
def test_an_entry_and_a_dead_letter(
    hostile: tuple[Console, HostileData], open_page: OpenPage, name: str, display: Display
) -> None:
    console, data = hostile
    stream, entry_id = data.entries[name]
    page = open_page(console, address("/entry", name=text(stream), id=entry_id), display)
    check(page, f"entry-{name.replace(': ', '-')}")
    stream, entry_id = data.letters[name]
    page.open("/dead/letter", name=text(stream), id=entry_id)
    check(page, f"letter-{name.replace(': ', '-')}")
    page.open("/where", name=text(stream), id=entry_id)
    check(page, f"where-{name.replace(': ', '-')}")


def test_every_stream_and_group(hostile: tuple[Console, HostileData], open_page: OpenPage) -> None:
    console, data = hostile
    page = open_page(console, "/streams", NARROW, has_policy=False)
    for stream in data.streams:
        visit(page, "/stream", name=stream)
        visit(page, "/group", stream=stream, group=data.groups[3] if stream == TARGET else stream)
        visit(page, "/streams", find=stream)
    for group in data.groups:
        visit(page, "/group", stream=TARGET, group=group)


def test_links_lead_to_what_they_name(hostile: tuple[Console, HostileData], open_page: OpenPage) -> None:
    """The list of streams names each, and its link opens its page, unless the name is not UTF-8."""
    console, data = hostile
    page = open_page(console, "/streams")
    links = page.page.locator("main table td:first-child a:not(.tag)").evaluate_all(
        "links => links.map(link => [link.textContent, link.href])"
    )
    names = {printable_lines(name.decode("utf-8", "backslashreplace")) or "(empty name)" for name in data.streams}
    assert {name for name, _ in links} >= names
    for name, target in links:
        page.open(target.removeprefix(console.url))
        if name.startswith("\\xff"):
            page.expect("answer 404")
            page.expect("load resource")
            check(page)
            continue
        check(page)
        heading = page.page.locator("h1").text_content()
        assert heading == f"Stream {name}" or name == "(empty name)", target


def test_every_entry_and_dead_letter(hostile: tuple[Console, HostileData], open_page: OpenPage) -> None:
    console, data = hostile
    page = open_page(console, "/dead", NARROW, has_policy=False)
    for stream, entry_id in data.entries.values():
        visit(page, "/entry", name=stream, id=entry_id.encode())
    for stream, entry_id in data.letters.values():
        visit(page, "/dead/letter", name=stream, id=entry_id.encode())
    for stream in {stream for stream, _ in data.letters.values()}:
        visit(page, "/dead/stream", name=stream)


@ENGINE
@pytest.mark.parametrize("name", TEXTS)
def test_a_search_for(hostile: tuple[Console, HostileData], open_page: OpenPage, name: str) -> None:
    """Texts of an address are on the page, too. One that is refused is shown as refused."""
    value = text(TEXTS[name][:1000])
    page = open_page(hostile[0], "/streams", NARROW, has_policy=False)
    for path in (
        address("/streams", find=value),
        address("/stream", name=text(TARGET), field=value, value=value),
        address("/stream", name=text(TARGET), at=value),
        address("/dead/stream", name=text(HOSTILE_DEAD), reason=value, field=value),
        address("/entry", name=text(TARGET), id=value),
    ):
        response = page.open(path)
        assert response.status < 500, urlsplit(response.url).path
        page.complaints[:] = [one for one in page.complaints if "answer 40" not in one and "load resource" not in one]
        check(page)


@pytest.mark.parametrize(
    "name", ["value: script", "field: closed attribute", "value: lines", "all", "envelope: terminal", "fields", "large"]
)
def test_a_dry_run_for(hostile: tuple[Console, HostileData], open_page: OpenPage, name: str) -> None:
    """A field of a hostile dead letter is changed: the dry run shows the command."""
    console, data = hostile
    stream, entry_id = data.letters[name]
    page = open_page(console, address("/dead/letter", name=text(stream), id=entry_id), NARROW)
    page.page.get_by_label("Name", exact=True).fill("<script>window.__pwned=1</script>")
    page.page.get_by_label("Value", exact=True).fill("'\"; $(id) `id`")
    page.page.get_by_label("To stream").fill("elsewhere")
    page.page.get_by_role("group", name="Send back").get_by_role("button").click()
    page.page.wait_for_url("**/plan")
    check(page, f"plan-{name.replace(': ', '-')}")
