"""A file of entries is imported from a browser: after its dry run, once, by users who may, and up to a size."""

from __future__ import annotations

import html
import json
import re
import tempfile
from pathlib import Path

import pytest
import redis

from spark_streams.cli import main
from spark_streams.operations.console.bounds import IMPORT_BYTES, MASK, UPLOADS
from spark_streams.operations.console.login.users import add_user
from spark_streams.operations.console.request.parameters import link
from tests.operations.console.browser import Browser, form_to, forms, wait_for_change
from tests.operations.console.process import running_console
from tests.operations.console.test_export import download
from tests.operations.console.test_pages import client
from tests.runner import separate_runner
from tools.servers.server import Server

__all__ = ["client"]

pytestmark = pytest.mark.in_turn


def lines(*numbers: int, **fields: object) -> bytes:
    """Return entries as `rstream export` writes them."""
    entries = [{"id": f"{n}-0", "fields": {"n": str(n), **fields}} for n in numbers]
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()


def test_a_file_is_imported_once_after_its_dry_run(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """The page exports what another stream takes, byte for byte."""
    for n in range(7):
        client.execute_command("XADD", "a", f"{n + 1}-0", "n", n, b"raw\xff", b"\xfe\r\n--x", "<b>", "x" * 300)
    client.xadd("b", {"first": "1"}, id="0-1")
    audit = tmp_path / "audit"
    with running_console(server.url, "--write", "--audit", str(audit)) as console:
        browser = Browser(console.url)
        file = download(browser, browser.get("/stream?name=a").text).text.encode()
        assert any(form.action == "/import?name=b" for form in forms(browser.get("/stream?name=b").text))
        planned = html.unescape(browser.upload("/import?name=b", "C:\\x/a b.jsonl", file).text)
        for text in (
            "Import: b",
            "Would add 7 entries",
            "1-0",
            "5-0",
            "<b>",
            "x" * 200 + "…",
            "rstream import",
            "_b.jsonl",
        ):
            assert text in planned, text
        assert "banner bad" not in planned.replace('class="banner bad" id="away"', "")
        assert "6-0" not in planned.partition("The first entries")[2].partition("</table>")[0]
        assert "rstream-console-" not in re.sub('name="fixed" value="[^"]*"', "", planned)
        assert client.xlen("b") == 1
        form = form_to(planned, "/changes")
        assert browser.post("/changes", form).headers["location"] == "/changes/1"
        assert browser.post("/changes", form).status == 403
        assert "Added 7 entries" in wait_for_change(browser, 1)
        assert client.xrange("b", "1") == client.xrange("a")
        again = browser.upload("/import?name=b", "a.jsonl", file).text
        assert "Would add 0 entries" in again
        assert "already in the stream" in again
    begun, ended = map(json.loads, audit.read_text().splitlines())
    assert begun["command"][:2] == ["rstream", "import"]
    assert begun["command"][2].endswith("_b.jsonl")
    assert begun["command"][3:] == ["b", "--yes"]
    assert (ended["exit_code"], ended["sent"]) == (0, 7)
    assert not Path(begun["command"][2]).parents[1].exists()  # the console has ended


def test_a_file_of_parquet(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    client.xadd("a", {"n": 1}, id="5-0")
    words = ["export", "a", str(tmp_path / "a.parquet"), "--url", server.url]
    assert separate_runner().invoke(main, words).exit_code == 0
    with running_console(server.url, "--write") as console:
        browser = Browser(console.url)
        planned = browser.upload("/import?name=new", "a.parquet", (tmp_path / "a.parquet").read_bytes()).text
        browser.post("/changes", form_to(planned, "/changes"))
        assert "Added 1 entry" in wait_for_change(browser, 1)
    assert client.xrange("new") == client.xrange("a")


def test_what_is_not_imported(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n": 1}, id="5-0")
    good = lines(6)
    with running_console(server.url, "--write") as console:
        browser = Browser(console.url)
        for name, data, said in (
            ("a.jsonl", lines(6) + b"{no\n" + lines(7), "line 2 of 'a.jsonl' is not an entry of a stream"),
            ("a.jsonl", lines(7, 6), "line 2 of 'a.jsonl' is not an entry of a stream: its ID 6-0 is not above 7-0"),
            ("a.jsonl", lines(1, 6), "another program has written to it"),
            ("a.csv", good, "does not end in .jsonl"),
            ("", good, "does not end in .jsonl"),
            (".jsonl", good, "does not end in .jsonl"),
            ("a.parquet", good, "cannot be read"),
            ("a.jsonl", good + b"\r\n--xyz\r\n\r\nmore\r\n--xyz--\r\nx", "line 3 of 'a.jsonl' is not an entry"),
        ):
            answer = browser.upload("/import?name=s", name, data)
            assert said in html.unescape(answer.text), (name, said, answer.text)
            assert not any(form.action == "/changes" for form in forms(answer.text))
        head = b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
        form_type = "multipart/form-data; boundary=xyz"
        for content_type, body in (
            ("text/plain", good),
            ("", b""),
            (form_type, b"--xyz\r\n"),
            (form_type, head + good),
        ):
            answer = browser._send(
                "POST", "/import?name=s", body, {"content-type": content_type, "origin": console.url}
            )
            assert answer.status == 400, body
        other = browser.upload("/import?name=s", "a.jsonl", good, origin="http://other.invalid")
        assert other.status == 403
        file = Path("/tmp/none.jsonl")
        for form in (
            [("action", "import"), ("names", str(file)), ("names", "s")],
            [("action", "add"), ("names", "s"), ("file", str(file)), ("new.name", "n"), ("new.value", "1")],
        ):
            assert "none.jsonl" not in browser.post("/plan", form).text
    assert client.xlen("s") == 1


def test_a_file_that_is_too_large(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n": 1}, id="5-0")
    with running_console(server.url, "--write") as console:
        browser = Browser(console.url)
        before = console.peak()
        answer = browser.upload("/import?name=s", "a.jsonl", b"x" * (IMPORT_BYTES + 1))
        assert (answer.status, "larger than 16 MB; use rstream import" in answer.text) == (413, True)
        large = lines(*range(6, 8), text="x" * (6 << 20))
        assert "Would add 2 entries" in browser.upload("/import?name=s", "a.jsonl", large).text
        assert console.peak() - before < 16


def test_too_many_files(engine_server: Server) -> None:
    with running_console(engine_server.url, "--write") as console:
        browser = Browser(console.url)
        statuses = [browser.upload("/import?name=s", "a.csv", b"").status for _ in range(UPLOADS + 1)]
        assert statuses == [400] * UPLOADS + [503]


def test_who_may_import(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    client.xadd("s", {"n": 1}, id="5-0")
    folders = set(Path(tempfile.gettempdir()).glob("rstream-console-*"))
    with running_console(server.url) as console:
        browser = Browser(console.url)
        assert not any(form.action.startswith("/import") for form in forms(browser.get("/stream?name=s").text))
        assert "read-only" in browser.upload("/import?name=s", "a.jsonl", lines(6)).text
    add_user(tmp_path / "users", "vera", "vera", "view")
    with running_console(server.url, "--write", "--users", str(tmp_path / "users")) as console:
        browser = Browser(console.url)
        assert browser.upload("/import?name=s", "a.jsonl", lines(6)).status == 401
        browser.post("/login", {"name": "vera", "password": "vera"})
        assert not any(form.action.startswith("/import") for form in forms(browser.get("/stream?name=s").text))
        answer = browser.upload("/import?name=s", "a.jsonl", lines(6))
        assert (answer.status, "makes no changes" in answer.text) == (403, True)
        assert set(Path(tempfile.gettempdir()).glob("rstream-console-*")) == folders
    with running_console(server.url, "--write", "--mask", "card") as console:
        browser = Browser(console.url)
        planned = browser.upload("/import?name=s", "a.jsonl", lines(6, card="4111", order='{"card": 4111}')).text
        assert "4111" not in planned
        assert MASK in planned
        browser.post("/changes", form_to(planned, "/changes"))
        assert "Added 1 entry" in wait_for_change(browser, 1)
    assert client.xrange("s", "6")[0][1] == {b"n": b"6", b"card": b"4111", b"order": b'{"card": 4111}'}
    assert link("/import", name="s") == "/import?name=s"
