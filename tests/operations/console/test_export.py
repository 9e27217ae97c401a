"""What a page shows, as a file: the same entries, in the form of `rstream export`."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
import redis

from spark_streams.cli import main
from spark_streams.operations.console.incoming import link
from tests.operations.console.browser import Answer, Browser
from tests.operations.console.normal import write_normal
from tests.operations.console.process import running_console
from tests.operations.console.test_pages import client, entry_ids
from tests.runner import separate_runner
from tools.servers.server import Server

__all__ = ["client"]


def download(browser: Browser, page: str) -> Answer:
    """Follow the link of a page."""
    [address] = re.findall(r'href="(/export[^"]*)"', page)
    return browser.get(html.unescape(address))


@pytest.mark.in_turn
def test_what_a_page_shows_is_downloaded(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    name = 'a/b\r\n"ü'
    for n in range(120):
        client.execute_command("XADD", name, f"{n + 1}-0", "n", n, b"raw\xff", b"\xfe\x00", "json", f'{{"n": {n}}}')
    with running_console(server.url) as console:
        browser = console.browser()
        page = browser.get(link("/stream", name=name)).text
        client.xadd(name, {"n": "later"}, id="500-0")
        answer = download(browser, page)
        assert answer.headers["content-disposition"] == 'attachment; filename="a_b____.jsonl"'
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        words = ["export", name, "-", "--from", "71-0", "--to", "120-0", "--url", server.url]
        exported = separate_runner().invoke(main, words)
        assert answer.text == exported.stdout
        assert answer.text.count("\n") == 50
        page = browser.get(link("/stream", name=name, where="$.n < 7", field="json")).text
        assert entry_ids(page) == [f"{n}-0" for n in range(7, 0, -1)]
        (tmp_path / "found.jsonl").write_text(download(browser, page).text)
        words = ["import", str(tmp_path / "found.jsonl"), "copied", "--url", server.url, "--yes"]
        assert separate_runner().invoke(main, words).exit_code == 0
        assert client.xrange("copied") == client.xrange(name, "1", "7")
        assert download(browser, browser.get(link("/entry", name=name, id="9-0")).text).text.startswith('{"id":"9-0",')
        assert "download" not in browser.get(link("/stream", name=name, field="none")).text
        too_many = browser.get(link("/export", name=name, at="120-0", to="1-0"))
        assert (too_many.status, "use rstream export" in too_many.text) == (400, True)
        assert browser.get(link("/export", name=name, at="x", to="1-0")).status == 400
        assert browser.get(link("/export", name="none", at="2-0", to="1-0")).status == 404
        assert browser.get(link("/export", name=name, at="1-0", to="2-0")).text == ""


@pytest.mark.in_turn
def test_shards_are_downloaded_in_the_order_of_their_ids(server: Server, client: redis.Redis) -> None:
    write_normal(client)
    with running_console(server.url) as console:
        browser = console.browser()
        page = browser.get(link("/stream", name="clicks")).text
        assert re.findall('"id":"([0-9-]+)"', download(browser, page).text) == entry_ids(page)[::-1]
