"""Who may read and who may make changes: the browser that opens the link, the users of a proxy, and all others."""

from __future__ import annotations

import http.client
import http.server
import json
import re
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.operations.console.visitors import COOKIE, ConsoleKeys
from tests.operations.console.browser import Browser, form_to, wait_for_change
from tests.operations.console.process import Console, running_console
from tests.operations.console.test_safety import position, with_group
from tools.servers.server import Server

pytestmark = pytest.mark.in_turn

SEEK = {"action": "seek", "names": "s", "group": "g", "to": "earliest"}
PROXY = ("--write", "--behind-proxy", "X-Forwarded-User")


@pytest.fixture
def filled(server: Server) -> Server:
    return with_group(server)


def test_the_link_works_once_and_its_browser_makes_changes(filled: Server) -> None:
    with running_console(filled.url, "--write", opens_link=False) as console:
        assert console.output().count("token=") == 1
        assert re.fullmatch(r"/open\?token=[A-Za-z0-9_-]{43}", console.link)
        stranger, browser = Browser(console.url), Browser(console.url)
        assert stranger.get("/open?token=x" + console.link[13:]).status == 403
        opened = browser.get(console.link, sec_fetch_site="cross-site", sec_fetch_mode="navigate")
        cookie = opened.headers["set-cookie"]
        assert (opened.status, opened.headers["refresh"]) == (200, "0; url=/")
        assert cookie.startswith(f"{COOKIE}_{console.port}=")
        assert "; HttpOnly; SameSite=Strict" in cookie
        refused = stranger.get(console.link)
        assert (refused.status, "opened before" in refused.text) == (403, True)
        assert browser.get(console.link).status == 200  # it has the cookie
        planned = browser.post("/plan", SEEK)
        browser.post("/changes", form_to(planned.text, "/changes"))
        assert "Done" in wait_for_change(browser, 1)
        assert "token=" not in browser.get("/changes").text + browser.get("/").text
    assert position(filled) == b"0-0"


def test_a_browser_without_the_link_only_reads(filled: Server) -> None:
    with running_console(filled.url, "--write") as console:
        browser, (name,) = console.browser(), console.cookies
        form = form_to(browser.post("/plan", SEEK).text, "/changes")
        ours = console.cookies[name]
        for cookies in ({}, {name: ours[:-1]}, {name: ""}, {name: "local"}, {f"{COOKIE}_1": ours}):
            other = Browser(console.url, cookies)
            assert "has not opened the link" in other.get("/").text
            planned = other.post("/plan", SEEK)
            assert (planned.status, 'action="/changes"' in planned.text) == (200, False)
            made = other.post("/changes", form)
            assert (made.status, "has not opened the link" in made.text) == (403, True)
        assert position(filled) == b"1-0"
        with running_console(filled.url, "--write") as second:  # a browser sends both all cookies of the host
            assert "has not opened the link" in Browser(second.url, console.cookies).get("/").text
            both = Browser(second.url, console.cookies | second.cookies)
            assert "has not opened the link" not in both.get("/").text
    with running_console(filled.url) as console:
        assert "token=" not in console.output()
        assert "this console is read-only" in console.browser().get("/").text


def test_a_proxy_names_the_user_and_its_groups(filled: Server, tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    words = (*PROXY, "--write-group", "X-Forwarded-Groups=ops", "--audit", str(audit), "--allowed-host", "ops.internal")
    with running_console(filled.url, *words) as console:
        assert "token=" not in console.output()
        browser = Browser(console.url)
        ann = {"x_forwarded_user": "ann@example.org", "x_forwarded_groups": "staff, ops", "host": "ops.internal"}
        assert "ann@example.org</p>" in browser.get("/", **ann).text
        form = form_to(browser.post("/plan", SEEK, **ann, origin="https://ops.internal").text, "/changes")
        for groups in ({}, {"x_forwarded_groups": ""}, {"x_forwarded_groups": "staff,oops,ops2"}):
            vera = {"x_forwarded_user": "vera", **groups}
            page = browser.post("/plan", SEEK, **vera).text
            assert "vera is not in the group ops" in page
            assert 'action="/changes"' not in page
            made = browser.post("/changes", form, **vera)
            assert (made.status, "vera is not in the group ops" in made.text) == (403, True)
        eve = browser.post("/changes", form, x_forwarded_user="eve", x_forwarded_groups="ops")
        assert (eve.status, "has no dry run" in eve.text) == (403, True)  # the dry run was ann's
        assert browser.post("/changes", form, **ann, origin="https://ops.internal").status == 303
        wait_for(browser, ann)
        assert not browser.cookies
    assert [json.loads(line)["user"] for line in audit.read_text().splitlines()] == ["ann@example.org"] * 2
    assert position(filled) == b"0-0"


def wait_for(browser: Browser, headers: dict[str, str]) -> None:
    for _ in range(3_000):
        if "Done" in browser.get("/changes/1", **headers).text:
            return
    raise AssertionError("the change does not end")


def raw(console: Console, *headers: str) -> tuple[int, str]:
    """Return status and text of the answer to a request with these headers."""
    request = "\r\n".join(("GET / HTTP/1.1", "Host: localhost", "Connection: close", *headers, "", ""))
    with console.connect(request.encode("utf-8")) as connection:
        answer = b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
    return int(answer.split()[1]), answer


def test_a_request_without_one_name_is_refused(filled: Server) -> None:
    with running_console(filled.url, *PROXY, "--write-group", "X-Forwarded-Groups=ops") as console:
        name = "X-Forwarded-User: ann"
        assert raw(console, name)[0] == raw(console, "x-forwarded-user:  Řehoř ")[0] == 200
        assert "Řehoř" in raw(console, "x-forwarded-user:  Řehoř ")[1]
        for value in ("", "  ", "a" * 321, "ann, bob", "ann,", "a\tb", "a\u202eb", "\x1b[2J"):
            status, text = raw(console, f"X-Forwarded-User: {value}")
            assert status in (400, 401), value  # h11 itself refuses some
            assert "Streams at" not in text
        for headers in ((), ("X-Forwarded-User2: ann",), ("X_Forwarded_User: ann",), ("Cookie: a=b",)):
            status, text = raw(console, *headers)
            assert (status, "The proxy names no user" in text) == (401, True)
        for headers in (
            (name, name), (name, "x-forwarded-user: bob"), (name, "X-Forwarded-User:"),
            (name, "X-Forwarded-Groups: ops", "X-Forwarded-Groups: staff"),
        ):  # fmt: skip
            status, text = raw(console, *headers)
            assert (status, "more than once" in text) == (400, True)
        keys = ConsoleKeys()
        assert raw(console, f"Cookie: {COOKIE}_{console.port}={keys.cookie}")[0] == 401


def test_wrong_options_of_a_proxy_are_named() -> None:
    for words, said in (
        (("--behind-proxy", "--write"), "is not the name of a header"),
        (("--behind-proxy", "X User"), "is not the name of a header"),
        (("--behind-proxy", "X-User", "--write-group", "ops"), "is not HEADER=GROUP"),
        (("--behind-proxy", "X-User", "--write-group", "X-Groups=a,b"), "is not HEADER=GROUP"),
        (("--write-group", "X-Groups=ops"), "does nothing without --behind-proxy"),
        (("--behind-proxy", "X-User", "--host", "0.0.0.0"), "is reached from other machines"),
    ):
        ran = CliRunner().invoke(main, ["console", *words])
        assert (ran.exit_code, said in ran.output) == (2, True), ran.output


class UnixConnection(http.client.HTTPConnection):
    """A connection to a unix socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


def ask(path: Path, target: str = "/", **headers: str) -> tuple[int, str, str]:
    """Return status, text and cookie of an answer at a unix socket."""
    connection = UnixConnection(str(path), timeout=30)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET", target, headers={"host": "localhost", **sent})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers.get("set-cookie", "")


def test_a_unix_socket_is_open_to_its_owner_alone(filled: Server, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    for _ in range(2):
        with running_console(filled.url, "--write", "--socket", str(path)) as console:
            assert f"by the unix socket {path}" in console.output()
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert "has not opened the link" in ask(path)[1]
            status, _, cookie = ask(path, console.link)
            assert (status, cookie.startswith(f"{COOKIE}_0=")) == (200, True)
            assert "has not opened the link" not in ask(path, cookie=cookie.partition(";")[0])[1]
            taken = CliRunner().invoke(main, ["console", "--socket", str(path), "--url", filled.url])
            assert (taken.exit_code, "Address already in use" in taken.output) == (2, True)
        assert not path.exists()
        with socket.socket(socket.AF_UNIX) as left:  # a console that was killed leaves its file
            left.bind(str(path))
    path.unlink()
    path.write_text("a file of somebody")
    taken = CliRunner().invoke(main, ["console", "--socket", str(path), "--url", filled.url])
    assert (taken.exit_code, path.read_text()) == (2, "a file of somebody")
    path.unlink()
    with running_console(filled.url, *PROXY, "--socket", str(path)):
        assert ask(path)[0] == 401
        assert "ann</p>" in ask(path, x_forwarded_user="ann")[1]


@contextmanager
def running_proxy(console: Console) -> Iterator[str]:
    """Run a proxy with one user, ann, as nginx with `proxy_set_header X-Forwarded-User $remote_user` does it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "x-forwarded-user"}
            upstream = http.client.HTTPConnection("127.0.0.1", console.port, timeout=30)
            upstream.request("GET", self.path, headers=headers | {"X-Forwarded-User": "ann"})
            answer = upstream.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_header_of_a_client_does_not_arrive_through_a_proxy(filled: Server) -> None:
    with running_console(filled.url, *PROXY) as console, running_proxy(console) as url:
        assert "ann</p>" in Browser(url).get("/").text
        page = Browser(url).get("/", x_forwarded_user="root").text
        assert "ann</p>" in page
        assert "root" not in page
