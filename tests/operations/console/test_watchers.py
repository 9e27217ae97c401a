"""Open streams of events: one viewer cannot take the connections of the others."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from spark_streams.operations.console.bounds import CONNECTIONS, EVENTS_PER_ADDRESS, EVENTS_PER_LOGIN
from spark_streams.operations.console.request.watchers import Watchers
from tests.operations.console.browser import Browser
from tests.operations.console.process import Console, running_console, write_users
from tests.operations.console.test_users import log_in
from tools.servers.server import Server
from tools.waiting import until


def test_a_login_and_an_address_have_a_number_of_streams() -> None:
    watchers = Watchers()
    assert all(watchers.begin("ann", f"10.0.0.{number}") for number in range(EVENTS_PER_LOGIN))
    assert not watchers.begin("ann", "10.9.9.9")
    assert watchers.begin("bob", "10.9.9.9")
    watchers.end("ann", "10.0.0.0")
    assert watchers.begin("ann", "10.9.9.9")
    # Without logins, and for an IPv6 network.
    opened = [watchers.begin(None, f"fd00::{number}") for number in range(EVENTS_PER_ADDRESS + 1)]
    assert opened == [True] * EVENTS_PER_ADDRESS + [False]
    for _ in range(EVENTS_PER_ADDRESS):
        watchers.end(None, "fd00::1")
    assert watchers.begin(None, "fd00::2")


def watch(stack: contextlib.ExitStack, console: Console, browser: Browser, count: int) -> list[bytes]:
    """Open streams of events, and return the status lines."""
    cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    request = f"GET /events HTTP/1.1\r\nHost: localhost\r\nCookie: {cookies}\r\n\r\n".encode()
    sockets = [stack.enter_context(console.connect(request)) for _ in range(count)]
    return [one.recv(12) for one in sockets]


@pytest.mark.in_turn
def test_one_viewer_with_many_pages_shuts_out_nobody(server: Server, tmp_path: Path) -> None:
    """The proof of concept: 200 streams of one login took all connections."""
    users = write_users(tmp_path / "users", ann="a", bob="b")
    with running_console(server.url, "--users", str(users)) as console, contextlib.ExitStack() as stack:
        ann, bob = Browser(console.url), Browser(console.url)
        assert (log_in(ann, "ann", "a"), log_in(bob, "bob", "b")) == (303, 303)
        answers = watch(stack, console, ann, CONNECTIONS)
        assert answers.count(b"HTTP/1.1 200") == EVENTS_PER_LOGIN
        assert answers.count(b"HTTP/1.1 429") == CONNECTIONS - EVENTS_PER_LOGIN
        assert bob.get("/streams").status == 200
        assert watch(stack, console, bob, 1) == [b"HTTP/1.1 200"]
        stack.close()
        with contextlib.ExitStack() as later:
            until(lambda: watch(later, console, ann, 1) == [b"HTTP/1.1 200"], "the streams of ann have not ended")
