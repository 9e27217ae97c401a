"""Who may use the console, and what a page may do: each with its refusal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.console.access import LOCAL, Session, Signer, Users, host_of, is_loopback
from spark_streams.errors import ConfigError
from tests.certificates import certificates
from tests.console.browser import Browser, form_to, wait_for_change
from tests.console.process import running_console
from tools.servers.server import Server

USERS = "# who may log in\nann:geheim:1\nbob:pass word\n"


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


def test_only_this_machine_reaches_it_unless_there_are_users() -> None:
    result = CliRunner().invoke(main, ["console", "--host", "0.0.0.0", "--port", "0"])
    assert result.exit_code == 2
    assert "needs --users" in result.output
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "[::1]", "localhost", "127.9.9.9")] == [True] * 5
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "example.org", "", "::", "localhost.example.org")))


def test_without_write_it_shows_a_change_and_makes_none(filled: Server) -> None:
    with running_console(filled.url) as console:
        browser = Browser(console.url)
        planned = browser.post("/plan", {"action": "seek", "names": "s", "group": "g", "to": "earliest"})
        assert "This console is read-only" in planned.text
        assert "rstream groups seek s --group g --to earliest --yes" in planned.text
        assert 'action="/changes"' not in planned.text
        made = browser.post("/changes", {"arguments": json.dumps(["groups", "seek"]), "token": "1|x"})
        assert made.status == 403
        assert "--write" in made.text
    assert position(filled) == b"1-0"


def test_a_change_needs_the_dry_run_of_this_session(filled: Server) -> None:
    with running_console(filled.url, "--write") as console:
        ann, bob = Browser(console.url), Browser(console.url)
        ann.get("/")
        bob.get("/")
        fields = dict(seek(ann))
        other = {**fields, "arguments": fields["arguments"].replace("earliest", "latest")}
        for browser, sent in (
            (bob, fields),  # another session
            (ann, other),  # another command
            (ann, {**fields, "token": ""}),
            (ann, {**fields, "token": "9" * 11 + fields["token"][10:]}),  # a later end
            (ann, {**fields, "arguments": "no JSON"}),
        ):
            refused = browser.post("/changes", sent)
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
        planned = Browser(console.url).post("/plan", {"action": "seek", "names": "s", "group": "g", "to": "earliest"})
        assert "This change would be refused now" in planned.text
        assert "was active" in planned.text
        assert 'action="/changes"' not in planned.text


def test_a_page_of_another_site_changes_nothing(filled: Server) -> None:
    with running_console(filled.url, "--write") as console:
        browser = Browser(console.url)
        fields = seek(browser)
        for headers in ({"origin": "http://evil.invalid"}, {"origin": "null"}):
            assert browser.post("/changes", fields, **headers).status == 403
            assert browser.post("/plan", {"action": "seek"}, **headers).status == 403
        # A name of another site that resolves to this machine.
        for name in ("evil.invalid", "evil.invalid:80", "127.0.0.1.evil.invalid", "", "[::2]"):
            assert browser.get("/", host=name).status == 421
        cookie = Browser(console.url).get("/").headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
    assert position(filled) == b"1-0"


def test_every_answer_forbids_scripts_of_others_and_frames(filled: Server) -> None:
    with running_console(filled.url, "--allowed-host", "ops.internal") as console:
        browser = Browser(console.url)
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


def test_users_log_in(filled: Server, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(USERS)
    with running_console(filled.url, "--write", "--users", str(users), "--host", "127.0.0.1") as console:
        browser = Browser(console.url)
        assert (browser.get("/").status, browser.get("/").headers["location"]) == (303, "/login")
        assert browser.get("/events", accept="text/event-stream").status == 401
        assert browser.post("/plan", {"action": "seek"}).status == 401
        for name, password in (("ann", "pass word"), ("eve", "geheim:1")):
            assert browser.post("/login", {"name": name, "password": password}).status == 403
        assert "rstream_console" not in browser.cookies
        assert browser.post("/login", {"name": "ann", "password": "geheim:1"}).status == 303
        assert "Log out ann" in browser.get("/").text
        ours = browser.cookies["rstream_console"]
        for forged in (ours.replace("ann", "bob"), ours[:-1], "ann|x|9999999999|", "x"):
            assert Browser(console.url, {"rstream_console": forged}).get("/").status == 303
        assert browser.post("/logout", {}).status == 303
        assert browser.get("/").status == 303


def test_each_change_leaves_an_audit_line(filled: Server, tmp_path: Path) -> None:
    users, audit = tmp_path / "users", tmp_path / "audit.jsonl"
    users.write_text(USERS)
    with running_console(filled.url, "--write", "--users", str(users), "--audit", str(audit)) as console:
        browser = Browser(console.url)
        browser.post("/login", {"name": "bob", "password": "pass word"})
        fields = seek(browser)
        assert not audit.read_text()  # a dry run is no change
        browser.post("/changes", fields)
        wait_for_change(browser, 1)
        with filled.client() as client:
            client.xgroup_destroy("s", "g")
        browser.post("/changes", fields)
        wait_for_change(browser, 2)
    done, failed = map(json.loads, audit.read_text().splitlines())
    assert (done["user"], done["exit_code"], done["read_again"]) == ("bob", 0, 1)
    assert done["command"] == ["rstream", "groups", "seek", "s", "--group", "g", "--to", "earliest", "--yes"]
    assert (failed["exit_code"], "no group" in failed["error"]) == (1, True)


def test_rights_that_the_user_lacks_are_shown(filled_redis: Server) -> None:
    with filled_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "support", "on", ">geheim", "~*", "+@all", "-memory", "-xpending")
    url = filled_redis.url.replace("://", "://support:geheim@")
    try:
        with running_console(url) as console:
            page = Browser(console.url).get("/").text
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
            browser = Browser(console.url)
            planned = browser.post("/plan", {"action": "seek", "names": "s", "group": "g", "to": "earliest"})
            browser.post("/changes", form_to(planned.text, "/changes"))
            page = wait_for_change(browser, 1)
            assert "Done" in page
            assert "sehr-geheim" not in planned.text + page + browser.get("/doctor").text + console.output()
    finally:
        with filled_redis.client() as client:
            client.execute_command("ACL", "DELUSER", "support")


def test_a_file_of_users() -> None:
    users = Users.parse(USERS.splitlines(), "users")
    assert users.accepts("ann", "geheim:1")
    assert not users.accepts("ann", "pass word")
    assert not users.accepts("ann\udc80", "geheim:1\udc80")
    for lines in (["ann"], [":x"], ["ann:"], ["a|b:x"], ["a\x1b:x"], ["# no user"], []):
        with pytest.raises(ConfigError, match="users"):
            Users.parse(lines, "users")


def test_cookies_and_tokens_end() -> None:
    now = 1000.0
    signer = Signer(lambda: now)
    cookie = signer.new_cookie(LOCAL)
    session = signer.session(cookie)
    assert session is not None
    token = signer.plan_token(session, ["groups", "seek"])
    assert signer.is_planned(token, session, ["groups", "seek"])
    assert not signer.is_planned(token, session, ["groups", "delete"])
    assert not signer.is_planned(token, Session(LOCAL, "other"), ["groups", "seek"])
    assert not signer.is_planned(token, session, ["groupsseek"])
    now += 601
    assert not signer.is_planned(token, session, ["groups", "seek"])
    assert signer.session(cookie) is not None
    now += 12 * 3600
    assert signer.session(cookie) is None
    assert Signer(lambda: 1000.0).session(cookie) is None  # of another process


def test_host_names() -> None:
    assert [host_of(text) for text in ("A.b:80", "[::1]:9", "[::1]", "", "a")] == ["a.b", "::1", "::1", "", "a"]


def test_a_port_in_use_and_a_missing_file_are_named(filled: Server, tmp_path: Path) -> None:
    with running_console(filled.url) as console:
        port = console.url.rpartition(":")[2]
        assert f"cannot listen on 127.0.0.1:{port}" in _failing("--port", port)
    assert "users cannot be read" in _failing("--users", str(tmp_path / "none"))
    assert "cannot be written" in _failing("--audit", str(tmp_path))
    assert "belong together" in _failing("--tls-key", "k.pem")


def _failing(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["console", "--port", "0", *arguments])
    assert result.exit_code in (1, 2), result.output
    return result.output


def test_https(filled: Server, tmp_path: Path) -> None:
    folder = certificates(tmp_path)
    certificate, key = folder / "server.pem", folder / "server.key"
    with running_console(filled.url, "--tls-certificate", str(certificate), "--tls-key", str(key)) as console:
        assert console.url.startswith("https://")
        code = (
            "import ssl, sys, urllib.request as u; c = ssl.create_default_context(cafile=sys.argv[1]); "
            "print(u.urlopen(sys.argv[2], context=c).headers['set-cookie'])"
        )
        cookie = subprocess.check_output([sys.executable, "-c", code, str(folder / "ca.pem"), console.url], text=True)
        assert "; Secure" in cookie
    assert "cannot be used" in _failing("--tls-certificate", str(key), "--tls-key", str(key))


def test_the_extra_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for name in [name for name in sys.modules if name.startswith("spark_streams.console.server")]:
        monkeypatch.delitem(sys.modules, name)
    assert "pip install 'spark-streams[console]'" in _failing()
