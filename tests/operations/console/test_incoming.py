"""Work for strangers: connections, unfinished requests, unread pages, and processes."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_streams.operations.console import incoming
from spark_streams.operations.console.incoming import CONNECTIONS, DRY_RUNS, EVENTS
from tests.operations.console.browser import Browser
from tests.operations.console.process import Console, running_console
from tools.servers.server import Server
from tools.waiting import until

pytestmark = pytest.mark.in_turn

MANY = 600
SHORT = 4.0  # seconds for a request, in consoles whose limit a test waits for
UNFINISHED = {
    "nothing": b"",
    "head": b"GET / HTTP/1.1\r\nHost: localhost\r\n",
    "body": b"POST /plan HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n" + b"x" * 8_000,
}


def of_short_requests(seconds: float = SHORT) -> str:
    """Python that makes the console close unfinished requests after so many seconds."""
    return f"from spark_streams.operations.console import incoming; incoming.REQUEST_SECONDS = {seconds}; "


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """Let this process open enough connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def descriptors(console: Console) -> int:
    return len(os.listdir(f"/proc/{console.process.pid}/fd"))


def flood(stack: contextlib.ExitStack, console: Console, data: bytes) -> None:
    for number in range(MANY):
        if number % 60 == 0:
            time.sleep(0.05)  # with a full backlog, Linux repeats a connection after a second
        with contextlib.suppress(ConnectionError):  # it was closed for a later one
            stack.enter_context(console.connect(data))


def test_the_times_of_connections_are_long_enough_for_people() -> None:
    assert (incoming.REQUEST_SECONDS, incoming.RESPONSE_SECONDS) == (20.0, 60.0)


@pytest.mark.parametrize("data", UNFINISHED.values(), ids=UNFINISHED)
def test_connections_are_bounded_and_shut_out_nobody(data: bytes, engine_server: Server) -> None:
    started = running_console(engine_server.url, before=of_short_requests())
    with started as console, contextlib.ExitStack() as stack:
        before, usual = console.peak(), descriptors(console)
        flood(stack, console, data)
        assert console.browser().get("/").status == 200
        assert descriptors(console) - usual <= CONNECTIONS + 5
        assert console.peak() - before < 50
        until(lambda: descriptors(console) - usual <= 2, "the connections stay", SHORT + 10)


def test_a_request_that_arrives_byte_by_byte_is_cut(engine_server: Server) -> None:
    started = running_console(engine_server.url, before=of_short_requests(3))
    with started as console, console.connect(b"GET / HTTP/1.1\r\n") as connection:
        began = time.monotonic()
        with pytest.raises(OSError, match=r"reset|[Pp]ipe"):  # noqa: PT012 - the console closes in between
            while time.monotonic() - began < 60:
                connection.sendall(b"x")
                time.sleep(0.25)
        assert 2 < time.monotonic() - began < 13


def test_a_browser_that_stays_keeps_its_connections(engine_server: Server) -> None:
    """Events go on for longer than a request may take, and a connection is used for many requests."""
    with running_console(engine_server.url, "--every", "2s", before=of_short_requests(3)) as console:
        events = console.connect(f"GET /events HTTP/1.1\r\nHost: {console.host}\r\n\r\n".encode())
        with events, console.connect() as connection:
            began = time.monotonic()
            while time.monotonic() - began < 3 + 3:
                connection.sendall(f"GET /static/icon.svg HTTP/1.1\r\nHost: {console.host}\r\n\r\n".encode())
                answer = b""
                while b"</svg>" not in answer:
                    answer += connection.recv(65_536)
                assert answer.startswith(b"HTTP/1.1 200")
                time.sleep(0.5)
            received = events.recv(1 << 20)
            events.settimeout(15)
            assert b"snapshot" in received
            assert events.recv(1 << 20)


def test_many_open_pages_leave_connections_for_others(engine_server: Server) -> None:
    with running_console(engine_server.url) as console, contextlib.ExitStack() as stack:
        request = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
        answers = [stack.enter_context(console.connect(request)).recv(12) for _ in range(EVENTS + 20)]
        assert Counter(answers) == {b"HTTP/1.1 200": EVENTS, b"HTTP/1.1 429": 20}
        assert console.browser().get("/streams").status == 200
        stack.close()
        with contextlib.ExitStack() as later:

            def watch() -> bool:
                return later.enter_context(console.connect(request)).recv(12) == b"HTTP/1.1 200"

            until(watch, "the streams have not ended")


def most_children(console: Console, work: Callable[[], None]) -> int:
    """Return how many processes the console had at most while this ran."""
    most, has_ended = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not has_ended.wait(0.01):
            most = max(most, console.children())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        has_ended.set()
        watcher.join()
    return most


def test_few_dry_runs_run_at_once(server: Server) -> None:
    with running_console(server.url) as console:
        statuses: Counter[int] = Counter()

        def ask(number: int) -> None:
            browser = console.browser()
            seek = {"action": "seek", "names": "s", "group": "g", "to": "earliest"}
            answer = browser.get("/doctor") if number % 2 else browser.post("/plan", seek)
            statuses[answer.status] += 1

        def ask_many() -> None:
            threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        assert most_children(console, ask_many) <= DRY_RUNS
        assert statuses.keys() == {200, 503}
        assert console.browser().get("/doctor").status == 200  # the places are free again


def test_a_dry_run_ends_with_its_browser(engine_server: Server) -> None:
    seek = b"action=seek&names=s&group=g&to=earliest"
    post = b"POST /plan HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(seek), seek)
    with running_console(engine_server.url) as console:
        console.browser().get("/")
        for request in (b"GET /doctor HTTP/1.1\r\nHost: localhost\r\n\r\n", post):
            with console.connect(request):
                until(lambda: console.children() == 1, "no dry run begins")
            gone = time.monotonic()
            until(lambda: console.children() == 0, "the dry run goes on")
            assert time.monotonic() - gone < 0.5  # a dry run takes longer
        assert console.browser().get("/doctor").status == 200


# Python that makes each page take a second of the server, and prints how many read at once.
_SLOW = """
import threading, time
from spark_streams.operations.console import site
connect, lock, running = site.connect, threading.Lock(), []
def slow(address):
    with lock:
        running.append(1)
        print("reads", len(running), flush=True)
    time.sleep(1)
    with lock:
        running.pop()
    return connect(address)
site.connect = slow
"""


def test_a_page_whose_browser_has_gone_leaves_the_queue(engine_server: Server) -> None:
    """Requests without the link share two threads, so another user does not wait for them; nor do later ones."""
    page = "/stream?name=s"
    with running_console(engine_server.url, "--write", before=_SLOW) as console:
        assert console.browser().get("/").status == 200
        with contextlib.ExitStack() as stack:
            for _ in range(90):
                stack.enter_context(console.connect(f"GET {page} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()))
            until(lambda: "reads" in console.output(), "no page is read")
        for cookies in (console.cookies, {}):
            began = time.monotonic()
            assert Browser(console.url, dict(cookies)).get(page).status == 404
            assert time.monotonic() - began < 6
        assert max(int(line.split()[1]) for line in console.output().splitlines() if line.startswith("reads")) <= 4


BROKEN = {
    "a form": b"POST /plan HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\nx",
    "a page": b"GET /doctor HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\r\n\r\n",
}


def test_broken_requests_do_not_fill_the_log(engine_server: Server) -> None:
    with running_console(engine_server.url) as console:
        before = len(console.output())
        for data in BROKEN.values():
            for _ in range(30):
                with console.connect(data):
                    time.sleep(0.01)
        assert console.browser().get("/").status == 200
        assert len(console.output()) - before < 200, console.output()
        assert console.output().count("Invalid HTTP request") == 1


def test_a_page_that_nobody_reads_is_dropped(
    engine_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """(In this process, with a shorter time.)"""
    import asyncio

    monkeypatch.setattr(incoming, "RESPONSE_SECONDS", 1.0)

    async def answer(scope: object, receive: object, send: Callable[[dict[str, object]], object]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[misc]
        await send({"type": "http.response.body", "body": b"x" * (8 << 20)})  # type: ignore[misc]

    async def run() -> float:
        import uvicorn

        config = uvicorn.Config(answer, http=incoming.BrowserConnection, lifespan="off", log_level="error")  # type: ignore[arg-type]
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            task = asyncio.create_task(server.serve([listener]))
            reader, writer = await asyncio.open_connection(*listener.getsockname(), limit=1 << 10)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            began = time.monotonic()
            while not server.server_state.connections or time.monotonic() - began < 0.2:
                await asyncio.sleep(0.05)
            while server.server_state.connections:
                await asyncio.sleep(0.05)
                assert time.monotonic() - began < 20
            took = time.monotonic() - began
            reader._transport.abort()  # type: ignore[attr-defined]
            server.should_exit = True
            await task
            return took

    assert 0.9 < asyncio.run(run()) < 10
