"""Pages that change without a reload, and what stays as it is meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.legs.console_browser.conftest import OpenPage
from tests.legs.console_browser.watched_page import WatchedPage, address
from tests.operations.console.normal import DEAD, GROUP, STREAM, write_normal
from tests.operations.console.process import Console, running_console
from tools.servers.server import Server, free_port, running_engine, serving

LAG = "#groups tr:has(a:text-is('billing')) td:nth-child(3)"
_EVERY = ("--every", "100ms")
_PATHS = ("/", "/streams", "/streams?page=50", "/streams?find=s0999", "/?page=100", "/dead", "/stream?name=s00001")


@pytest.fixture
def console(server: Server) -> Iterator[Console]:
    with server.client() as client:
        write_normal(client)
    with running_console(server.url, "--write", *_EVERY) as console:
        yield console


def expect_text(page: WatchedPage, selector: str, text: str) -> None:
    from playwright.sync_api import expect

    expect(page.page.locator(selector).first).to_have_text(text)


def mark(page: WatchedPage) -> None:
    """A reload would remove this."""
    page.page.evaluate("() => { window.isSamePage = true; }")


def is_marked(page: WatchedPage) -> bool:
    return bool(page.page.evaluate("() => window.isSamePage === true"))


def test_new_entries_appear_without_a_reload(console: Console, server: Server, open_page: OpenPage) -> None:
    page = open_page(console, "/")
    mark(page)
    expect_text(page, LAG, "240")
    with server.client() as client:
        for _ in range(5):
            client.xadd(STREAM, {"order": "new"})
    expect_text(page, LAG, "245")
    assert is_marked(page)


def test_all_pages_follow(console: Console, server: Server, open_page: OpenPage) -> None:
    paths = {
        "/streams": f"#streams tr:has(a:text-is('{STREAM}')) td:nth-child(2)",
        address("/stream", name=STREAM): "#groups tr:has(a:text-is('billing')) td:nth-child(2)",
        address("/group", stream=STREAM, group=GROUP): "#numbers dd >> nth=0",
        "/dead": "#letters tr:has(a:text-is('orders:dead')) td:nth-child(2)",
    }
    pages = {path: open_page(console, path) for path in paths}
    before = {path: page.page.locator(paths[path]).first.inner_text() for path, page in pages.items()}
    assert before == dict(zip(paths, ("600", "240", "240", "300"), strict=True))
    for page in pages.values():
        mark(page)
    with server.client() as client:
        client.xadd(STREAM, {"order": "new"})
        client.xdel(DEAD, client.xrange(DEAD, count=1)[0][0])
    for (path, page), after in zip(pages.items(), ("601", "241", "241", "299"), strict=True):
        expect_text(page, paths[path], after)
        assert is_marked(page)


def test_the_focus_stays_where_it_is(console: Console, server: Server, open_page: OpenPage) -> None:
    """Also on a link in a section that is updated, and in a field outside of it."""
    page = open_page(console, "/")
    link = page.page.locator("#groups a").first
    link.focus()
    name = link.inner_text()
    tile = page.page.locator("#tiles b").nth(1)
    before = tile.inner_text()
    with server.client() as client:
        client.xadd(STREAM, {"order": "new"})
    page.page.wait_for_function("text => document.querySelectorAll('#tiles b')[1].textContent !== text", arg=before)
    assert page.page.evaluate("() => document.activeElement.textContent") == name
    page.page.get_by_label("Stream or group").fill("bill")
    for count in range(3):
        with server.client() as client:
            client.xadd(STREAM, {"order": "new"})
        expect_text(page, LAG, str(242 + count))
    assert page.page.get_by_label("Stream or group").input_value() == "bill"
    assert page.page.evaluate("() => document.activeElement.name") == "find"


def test_an_edited_form_stays(console: Console, server: Server, open_page: OpenPage) -> None:
    page = open_page(console, address("/group", stream=STREAM, group=GROUP))
    page.page.get_by_label("To consumer").fill("worker-9")
    page.page.get_by_role("group", name="Hand over").get_by_label("even if").check()
    with server.client() as client:
        client.xadd(STREAM, {"order": "new"})
    expect_text(page, "#numbers dd >> nth=0", "241")
    assert page.page.get_by_label("To consumer").input_value() == "worker-9"
    assert page.page.get_by_role("group", name="Hand over").get_by_label("even if").is_checked()


def test_a_dead_letter_that_is_edited_stays(console: Console, server: Server, open_page: OpenPage) -> None:
    with server.client() as client:
        letter = client.xrange(DEAD, count=1)[0][0].decode()
        page = open_page(console, address("/dead/letter", name=DEAD, id=letter))
        page.page.get_by_label("Value of amount").fill("7.25")
        other = open_page(console, "/")
        client.xadd(STREAM, {"order": "new"})
        expect_text(other, LAG, "241")  # the console has read the server again
    page.page.wait_for_timeout(500)
    assert page.page.get_by_label("Value of amount").input_value() == "7.25"


def test_a_server_that_is_away(open_page: OpenPage) -> None:
    """The page shows it with the numbers of before, and goes on when the server is back."""
    port = str(free_port())
    with ExitStack() as stack:
        process = stack.enter_context(serving("--port", port)).process
        server = Server("engine", f"redis://127.0.0.1:{port}/0")
        with server.client() as client:
            write_normal(client)
        console = stack.enter_context(running_console(server.url, *_EVERY))
        page = open_page(console, "/")
        mark(page)
        expect_text(page, LAG, "240")
        process.kill()
        process.wait()
        page.page.locator("#status .banner.bad").wait_for()
        assert "has not answered" in page.page.locator("#status").inner_text()
        expect_text(page, LAG, "240")
        page.check_accessibility()
        page.screenshot("server-away")
        other = open_page(console, "/streams")
        assert "has not answered" in other.page.locator("#status").inner_text()
        stack.enter_context(serving("--port", port))
        with server.client() as client:
            write_normal(client)
            client.xadd(STREAM, {"order": "new"})
        page.page.locator("#status .banner.bad").wait_for(state="detached")
        expect_text(page, LAG, "241")
        assert is_marked(page)
        page.close()
        other.close()


def test_a_console_that_is_away(server: Server, open_page: OpenPage) -> None:
    """The page shows that it is no longer updated."""
    with server.client() as client:
        write_normal(client)
    with running_console(server.url, *_EVERY) as console:
        page = open_page(console, "/")
        expect_text(page, LAG, "240")
    page.page.get_by_text("The console does not answer").wait_for()
    page.screenshot("console-away", whole=False)
    page.page.close()


def test_many_streams(open_page: OpenPage) -> None:
    """10,000 streams with a group each: pages of a hundred, and updates that do not hold up the browser."""
    with running_engine() as server, server.client() as client:
        pipe = client.pipeline(transaction=False)
        for number in range(10_000):
            pipe.xgroup_create(f"s{number:05d}", "g", id="0", mkstream=True)
            pipe.xadd(f"s{number:05d}", {"n": number})
        pipe.execute()
        with running_console(server.url) as console:
            seconds = {}
            page = open_page(console, "/doctor")
            page.page.set_default_timeout(120_000)
            for path in _PATHS:
                began = time.monotonic()
                page.open(path)
                seconds[path] = round(time.monotonic() - began, 2)
                page.check()
                page.check_layout()
            print(f"seconds: {seconds}")
            page.open("/streams")
            assert page.page.locator("main tbody tr").count() == 100
            assert "Page 1 of 100" in page.page.locator(".paging").inner_text()
            page.page.get_by_role("link", name="Next").click()
            page.page.wait_for_url("**page=2*")
            expect_text(page, "main tbody a", "s00100")
            page.open("/")
            page.screenshot("many-streams")
            client.xadd("s05000", {"n": 1})
            longest = page.page.evaluate(
                """() => new Promise(resolve => {
                    let last = performance.now(), longest = 0;
                    const timer = setInterval(() => {
                        const now = performance.now();
                        longest = Math.max(longest, now - last);
                        last = now;
                    }, 10);
                    setTimeout(() => { clearInterval(timer); resolve(longest); }, 8000);
                })"""
            )
            print(f"longest pause: {longest:.0f} ms")
            page.close()
            assert longest < 1000
            assert max(seconds.values()) < 20
