"""Which requests reach a page: each route says what it needs, and no text of a request decides in its place."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from spark_streams.operations.console import routes
from spark_streams.operations.console.routes import ENTRIES, Needs
from tests.operations.console.browser import Browser
from tests.operations.console.process import Console, running_console, write_users
from tools.servers.server import Server

HOSTS = (
    "localhost:/login?", "localhost:/static/", "localhost:80/login?x=", "localhost/login?", "localhost:#", "localhost:",
    "localhost:9406:/login?", "localhost@localhost", "localhost:80@x", "[::1]/login?", "[::1]:/login?",
    "localhost\\login", "localhost:9406 /login", "127.0.0.1:/login?", "localhost:８０", "localhost:999999", "",
)  # fmt: skip
PATHS = (
    "/", "/streams", "/login/", "/login/x", "/login/../streams", "//login", "/login;/streams", "/login%2f..%2fstreams",
    "/static/../streams", "/static/%2e%2e/streams", "/static/x/streams", "/static/", "/Login", "/login%00",
    "/no-such-page", "/events", "/changes/1",
)  # fmt: skip


def status(console: Console, path: str, host: str, method: str = "GET", headers: str = "") -> int:
    request = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n"
    with console.connect(request.encode()) as connection:
        return int(connection.recv(4096).split()[1])


@pytest.fixture
def guarded(engine_server: Server, tmp_path: Path) -> Any:
    users = write_users(tmp_path / "users", ann="geheim")
    with running_console(engine_server.url, "--users", str(users)) as console:
        yield console


@pytest.mark.in_turn
def test_no_host_leads_past_the_login(guarded: Console) -> None:
    for host in HOSTS:
        assert status(guarded, "/streams", host) in (400, 421), host
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]", "[::1]:9406"):
        assert status(guarded, "/streams", host) == 401
        assert status(guarded, "/login", host) == 200


@pytest.mark.in_turn
def test_no_path_leads_past_the_login(guarded: Console) -> None:
    for path in PATHS:
        assert status(guarded, path, "localhost") in (401, 404), path
        assert status(guarded, path, "localhost", headers="Accept: text/html\r\n") in (303, 404), path
        assert status(guarded, path, "localhost", "POST", "Content-Length: 0\r\n") in (401, 404), path
    assert status(guarded, "http://localhost/login", "localhost") == 401
    assert status(guarded, "/streams?/login", "localhost") == 401
    assert status(guarded, "/streams", "localhost", headers="Upgrade: websocket\r\nConnection: upgrade\r\n") == 401
    assert status(guarded, "/streams", "localhost", headers="X-Forwarded-Host: localhost/login?\r\n") == 401


def test_only_the_login_and_the_files_of_pages_are_open() -> None:
    open_paths = {entry.path for entry in ENTRIES if entry.needs is Needs.NOTHING}
    assert open_paths == {"/login", "/oidc", "/oidc/login", "/static/{name}"}


def test_each_handler_but_these_fails_without_a_session() -> None:
    """(Without the guard, and so for any of its mistakes.)"""
    for entry in ENTRIES:
        if entry.needs is Needs.NOTHING:
            continue
        reached: list[object] = []

        async def page(*arguments: object, reached: list[object] = reached) -> Any:
            reached.append(arguments)

        endpoint = routes._endpoint(None, entry._replace(page=page))  # type: ignore[arg-type]
        scope = {"type": "http", "method": entry.method, "path": "/login", "headers": [], "session": None}
        answer = asyncio.run(endpoint(Request(scope)))  # type: ignore[arg-type]
        assert (answer.status_code, reached) == (401, [])
        del scope["session"]  # nothing has looked for it
        with pytest.raises(KeyError, match="session"):
            asyncio.run(endpoint(Request(scope)))  # type: ignore[arg-type]


@pytest.mark.in_turn
def test_no_redirect_is_made_of_the_host(engine_server: Server) -> None:
    with running_console(engine_server.url) as console:
        for path in ("/streams/", "//evil.invalid/", "/doctor/"):
            answer = Browser(console.url).get(path)
            assert (answer.status, answer.headers.get("location")) == (404, None)
