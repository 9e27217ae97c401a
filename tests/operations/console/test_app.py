"""Which requests reach a page: each route says what it needs, and no text of a request decides in its place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from spark_streams.connector.errors import NotPermittedError
from spark_streams.operations.console import app
from spark_streams.operations.console.app import ROUTES
from spark_streams.operations.console.visitors import Visitor
from tests.operations.console.process import Console, running_console
from tools.servers.server import Server

HOSTS = (
    "localhost:/static?", "localhost:/static/", "localhost:80/static?x=", "localhost/static?", "localhost:#",
    "localhost:",
    "localhost:9406:/static?", "localhost@localhost", "localhost:80@x", "[::1]/static?", "[::1]:/static?",
    "localhost\\static", "localhost:9406 /static", "127.0.0.1:/static?", "localhost:８０", "localhost:999999", "",
)  # fmt: skip
PATHS = (
    "/", "/streams", "/static/", "/static/icon.svg", "/static/../streams", "//static/icon.svg", "/open",
    "/open?token=x",
    "/static/%2e%2e/streams", "/static/x/streams", "/static/icon.svg;/streams", "/static%2ficon.svg", "/Static",
    "/open%00",
    "/no-such-page", "/events", "/changes/1",
)  # fmt: skip


def status(console: Console, path: str, host: str, method: str = "GET", headers: str = "") -> int:
    request = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n"
    with console.connect(request.encode()) as connection:
        return int(connection.recv(4096).split()[1])


@pytest.fixture
def guarded(engine_server: Server) -> Any:
    with running_console(engine_server.url, "--write", "--behind-proxy", "X-Forwarded-User") as console:
        yield console


@pytest.mark.in_turn
def test_no_host_leads_past_the_proxy(guarded: Console) -> None:
    for host in HOSTS:
        assert status(guarded, "/streams", host) in (400, 421), host
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]", "[::1]:9406"):
        assert status(guarded, "/streams", host) == 401
        assert status(guarded, "/streams", host, headers="X-Forwarded-User: ann\r\n") == 200


@pytest.mark.in_turn
def test_no_path_leads_past_the_proxy(guarded: Console) -> None:
    for path in PATHS:
        for method, headers in (("GET", ""), ("GET", "Accept: text/html\r\n"), ("POST", "Content-Length: 0\r\n")):
            assert status(guarded, path, "localhost", method, headers) == 401, path
    assert status(guarded, "http://localhost/static/icon.svg", "localhost") == 401
    assert status(guarded, "/streams?/static", "localhost") == 401
    assert status(guarded, "/streams", "localhost", headers="Upgrade: websocket\r\nConnection: upgrade\r\n") == 401
    assert status(guarded, "/streams", "localhost", headers="X-Forwarded-Host: localhost/static?\r\n") == 401


def test_one_route_makes_changes() -> None:
    assert [entry.path for entry in ROUTES if entry.makes_changes] == ["/changes"]
    assert {entry.path for entry in ROUTES if entry.method == "POST"} == {"/plan", "/changes"}


def test_each_handler_fails_without_a_visitor_who_may() -> None:
    """(Without the guard, and so for any of its mistakes.)"""
    for entry in ROUTES:
        reached: list[object] = []

        async def page(*arguments: object, reached: list[object] = reached) -> Any:
            reached.append(arguments)

        endpoint = app._endpoint(None, entry._replace(page=page))  # type: ignore[arg-type]
        scope: dict[str, Any] = {"type": "http", "method": entry.method, "path": "/", "headers": []}
        with pytest.raises(KeyError, match="visitor"):
            asyncio.run(endpoint(Request(scope)))
        assert reached == []
        reader = Request(scope | {"visitor": Visitor("ann", "she only reads")})
        if entry.makes_changes:
            with pytest.raises(NotPermittedError, match="she only reads"):
                asyncio.run(endpoint(reader))
            assert reached == []
        else:
            asyncio.run(endpoint(reader))
            assert len(reached) == 1


@pytest.mark.in_turn
def test_no_redirect_is_made_of_the_host(engine_server: Server) -> None:
    with running_console(engine_server.url) as console:
        for path in ("/streams/", "//evil.invalid/", "/doctor/"):
            answer = console.browser().get(path)
            assert (answer.status, answer.headers.get("location")) == (404, None)
