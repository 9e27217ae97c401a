"""Who may use the console, and what a page may do: each with its refusal."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.operations.console.visitors import LOCAL, ConsoleKeys, host_of, is_loopback
from tests.operations.console.browser import Browser, form_to, wait_for_change
from tests.operations.console.process import running_console
from tools.servers.server import Server

pytestmark = pytest.mark.in_turn


def seek(browser: Browser, to: str = "earliest") -> list[tuple[str, str]]:
    """Return the fields by which the page of a dry run makes the change."""
    planned = browser.post("/plan", {"action": "seek", "names": "s", "group": "g", "to": to})
    assert planned.status == 200, planned.text
    [(_, fixed)] = form_to(planned.text, "/changes")
    return parse_qsl(fixed)


def position(server: Server) -> bytes:
    with server.client() as client:
        return client.xinfo_groups("s")[0]["last-delivered-id"]


def with_group(server: Server) -> Server:
    with server.client() as client:
        client.flushall()
        client.xadd("s", {"n": 1}, id="1-0")
        client.xgroup_create("s", "g", id="$")
    return server


@pytest.fixture
def filled(server: Server) -> Server:
    return with_group(server)


@pytest.fixture
def filled_redis(redis_server: Server) -> Server:
    """(The bundled engine has one user only.)"""
    return with_group(redis_server)


def test_only_this_machine_reaches_it() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "ops.internal"):
        result = CliRunner().invoke(main, ["console", "--host", host, "--port", "0"])
        assert (result.exit_code, "--behind-proxy" in result.output) == (2, True)
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "[::1]", "localhost", "127.9.9.9")] == [True] * 5
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "example.org", "", "::", "localhost.example.org")))


def test_without_write_it_shows_a_change_and_makes_none(filled: Server) -> None:
    with running_console(filled.url) as console:
        browser = console.browser()
        planned = browser.post("/plan", {"action": "seek", "names": "s", "group": "g", "to": "earliest"})
        assert "this console is read-only; start it with --write" in planned.text
        assert "rstream groups seek s --group g --to earliest --yes --only s g 0-0" in planned.text
        assert 'action="/changes"' not in planned.text
        made = browser.post("/changes", {"arguments": json.dumps(["groups", "seek"]), "token": "1|x"})
        assert made.status == 403
        assert "--write" in made.text
    assert position(filled) == b"1-0"


def test_a_change_needs_its_dry_run(filled: Server) -> None:
    with running_console(filled.url, "--write") as console:
        ann = console.browser()
        fields = dict(seek(ann))
        other = {**fields, "arguments": fields["arguments"].replace("0-0", "9-9")}
        assert other != fields
        for sent in (
            other,  # another command
            {**fields, "token": ""},
            {**fields, "token": "9" * 11 + fields["token"][10:]},  # a later end
            {**fields, "arguments": "no JSON"},
        ):
            refused = ann.post("/changes", sent)
            assert (refused.status, "has no dry run" in refused.text) == (403, True)
        assert position(filled) == b"1-0"
        assert ann.post("/changes", fields).status == 303
        page = wait_for_change(ann, 1)
        assert "Done" in page
    assert position(filled) == b"0-0"


def test_a_refused_dry_run_has_no_button(filled: Server) -> None:
    with filled.client() as client:
        client.xadd("s", {"n": 2})
        client.xreadgroup("g", "bob", {"s": ">"})  # a consumer that was active just now
    with running_console(filled.url, "--write") as console:
        planned = console.browser().post("/plan", {"action": "seek", "names": "s", "group": "g", "to": "earliest"})
        assert "This change would be refused now" in planned.text
        assert "was active" in planned.text
        assert 'action="/changes"' not in planned.text


def test_a_page_of_another_site_changes_nothing(filled: Server) -> None:
    with running_console(filled.url, "--write") as console:
        browser = console.browser()
        fields = seek(browser)
        for headers in ({"origin": "http://evil.invalid"}, {"origin": "null"}):
            assert browser.post("/changes", fields, **headers).status == 403
            assert browser.post("/plan", {"action": "seek"}, **headers).status == 403
        # A name of another site that resolves to this machine.
        for name in ("evil.invalid", "evil.invalid:80", "127.0.0.1.evil.invalid", "", "[::2]"):
            assert browser.get("/", host=name).status == 421
    assert position(filled) == b"1-0"


def test_a_request_of_another_site_gets_a_page_only_if_it_opens_it(filled: Server) -> None:
    with running_console(filled.url) as console:
        browser = console.browser()

        def status(site: str, mode: str, path: str = "/doctor", **more: str) -> int:
            return browser.get(path, sec_fetch_site=site, sec_fetch_mode=mode, **more).status

        assert status("same-origin", "cors") == status("none", "navigate") == 200
        assert status("cross-site", "navigate", "/", sec_fetch_dest="document") == 200  # a link
        for site in ("cross-site", "same-site", "odd"):
            for mode in ("no-cors", "cors", "websocket"):
                assert (
                    status(site, mode) == status(site, mode, "/events") == status(site, mode, "/static/icon.svg") == 403
                )
            assert status(site, "navigate", sec_fetch_dest="iframe") == 403
            assert browser.post("/plan", {"action": "no"}, sec_fetch_site=site, sec_fetch_mode="navigate").status == 403
        assert browser.get("/", origin="http://evil.invalid").status == 403


def test_every_answer_forbids_scripts_of_others_and_frames(filled: Server) -> None:
    with running_console(filled.url, "--allowed-host", "ops.internal") as console:
        browser = console.browser()
        assert browser.get("/", host="ops.internal:1").status == 200
        for path in ("/", "/streams", "/static/console.js", "/no-such-page", "/stream?name=missing", "/changes/9"):
            headers = browser.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
            assert "server" not in headers
        page = browser.get("/").text
        assert not re.search(r"<script>|<style|style=|onclick|javascript:|//[a-z]+\.[a-z]+/", page)
        assert browser.get("/static/..%2f..%2fcli.py").status == 404


def test_rights_that_the_user_lacks_are_shown(filled_redis: Server) -> None:
    with filled_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "support", "on", ">geheim", "~*", "+@all", "-memory", "-xpending")
    url = filled_redis.url.replace("://", "://support:geheim@")
    try:
        with running_console(url) as console:
            page = console.browser().get("/").text
            assert "lacks rights" in page
            assert "+xpending" in page
            assert "geheim" not in page + console.output()
    finally:
        with filled_redis.client() as client:
            client.execute_command("ACL", "DELUSER", "support")


def test_passwords_are_neither_on_a_page_nor_on_a_command_line(filled_redis: Server, tmp_path: Path) -> None:
    with filled_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "support", "on", ">sehr-geheim", "~*", "+@all")
    try:
        with running_console(filled_redis.url.replace("://", "://support:sehr-geheim@"), "--write") as console:
            browser = console.browser()
            planned = browser.post("/plan", {"action": "seek", "names": "s", "group": "g", "to": "earliest"})
            browser.post("/changes", form_to(planned.text, "/changes"))
            page = wait_for_change(browser, 1)
            assert "Done" in page
            assert "sehr-geheim" not in planned.text + page + browser.get("/doctor").text + console.output()
    finally:
        with filled_redis.client() as client:
            client.execute_command("ACL", "DELUSER", "support")


def test_tokens_of_changes_end() -> None:
    now = 1000.0
    keys = ConsoleKeys(lambda: now)
    token = keys.plan_token(LOCAL, ["groups", "seek"])
    assert not keys.use_plan(token, LOCAL, ["groups", "delete"])
    assert not keys.use_plan(token, "ann", ["groups", "seek"])
    assert not keys.use_plan(token, LOCAL, ["groupsseek"])
    assert not ConsoleKeys(lambda: now).use_plan(token, LOCAL, ["groups", "seek"]), "of another process"
    assert keys.use_plan(token, LOCAL, ["groups", "seek"])
    assert not keys.use_plan(token, LOCAL, ["groups", "seek"]), "a token makes one change"
    token = keys.plan_token(LOCAL, ["groups", "seek"])
    now += 601
    assert not keys.use_plan(token, LOCAL, ["groups", "seek"])


def test_host_names() -> None:
    assert [host_of(text) for text in ("A.b:80", "[::1]:9", "[::1]", "a")] == ["a.b", "::1", "::1", "a"]
    for text in (
        "",
        ":80",
        "a:",
        "a:b",
        "a:80:80",
        "a:/login?",
        "a/login",
        "a?b",
        "a#b",
        "x@a",
        "a:80@b",
        "a b",
        "a\n",
        "[a",
    ):
        assert host_of(text) == "", text


def test_a_port_in_use_and_a_missing_file_are_named(filled: Server, tmp_path: Path) -> None:
    with running_console(filled.url) as console:
        port = console.url.rpartition(":")[2]
        assert f"cannot listen on 127.0.0.1:{port}" in _failing("--port", port)
    assert "cannot listen on" in _failing("--socket", str(tmp_path / "none" / "socket"), at=())
    assert "in the place of --host and --port" in _failing("--socket", str(tmp_path / "socket"))
    assert "cannot be written" in _failing("--audit", str(tmp_path))


def _failing(*arguments: str, at: tuple[str, ...] = ("--port", "0")) -> str:
    result = CliRunner().invoke(main, ["console", *at, *arguments])
    assert result.exit_code in (1, 2), result.output
    return result.output


def test_the_extra_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for name in [name for name in sys.modules if name.startswith("spark_streams.operations.console.web_server")]:
        monkeypatch.delitem(sys.modules, name)
    assert "pip install 'spark-streams[console]'" in _failing()
