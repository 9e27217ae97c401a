"""What strangers can make the server of metrics do is bounded: connections, Host, groups."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest
import redis
from prometheus_client.core import Metric

from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.lag.group_metrics import server_up
from spark_streams.connector.watch import metrics_page
from spark_streams.connector.watch.metrics_page import CONNECTIONS, SCRAPES, SECONDS, MetricsPage, answers_to
from tests.operations.monitor.test_exporter import once, read, samples_of
from tools.servers.server import Server
from tools.waiting import until


class Up:
    """One metric; a scrape waits until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.size = 0  # bytes of the page, about

    def collect(self) -> object:
        assert self.go.wait(30)
        return [*server_up(True), Metric("large", "-" * self.size, "gauge")]


@pytest.fixture
def served() -> Iterator[tuple[Up, int]]:
    up = Up()
    page = MetricsPage(up, port=0)  # type: ignore[arg-type]
    assert page.port is not None
    yield up, page.port
    up.go.set()
    page.close()


def status(port: int, host: str | None, method: str = "GET") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, "/metrics", skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    with contextlib.closing(connection):
        return connection.getresponse().status


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9405", "127.0.0.1:9405", "[::1]:9405", "10.1.2.3", None])
def test_a_request_to_this_machine_is_answered(served: tuple[Up, int], host: str | None) -> None:
    assert status(served[1], host) == 200


OTHER_SITES = ["evil.example", "evil.example:9405", "localhost.evil.example"]
NO_HOSTS = ["localhost:/x", "a b", "localhost:123456", "[::1", "@"]


@pytest.mark.parametrize("host", [*OTHER_SITES, *NO_HOSTS])
def test_a_page_of_another_site_cannot_read_metrics(served: tuple[Up, int], host: str) -> None:
    """Its name resolves to 127.0.0.1, but the browser sends it as Host."""
    assert status(served[1], host) == 421


def test_health_is_a_page_of_its_own() -> None:
    """200, or 503 with the reason. It is for this machine, too, and the metrics stay where they are."""
    reasons: list[str | None] = [None, "query '\ud800' hangs\n"]
    page = MetricsPage(Up(), port=0, trouble=lambda: reasons.pop(0))  # type: ignore[arg-type]
    assert page.port is not None
    try:
        found = [healthz(page.port), healthz(page.port), healthz(page.port, "evil.example")]
        assert found[:2] == [(200, "ok\n"), (503, "query '\\ud800' hangs\n")]
        assert found[2][0] == 421
        assert status(page.port, "localhost") == 200
    finally:
        page.close()


def healthz(port: int, host: str = "localhost") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", "/healthz", headers={"Host": host})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


def test_a_server_for_other_machines_answers_to_any_name() -> None:
    """Prometheus scrapes it by its name; only what is no name is refused."""
    hosts = ("metrics.internal:9405", "10.0.0.7", "[fd00::1]:9405", "", "a b", "x/y", "x:y")
    assert [answers_to(host, is_local=False) for host in hosts] == [True, True, True, True, False, False, False]


def test_scrapes_at_once_are_bounded(served: tuple[Up, int]) -> None:
    """Further ones are refused, and are served when some have ended."""
    up, port = served
    up.go.clear()
    waiting = [requesting(port) for _ in range(SCRAPES)]
    until(lambda: threading.active_count() > SCRAPES, "not all are served")
    time.sleep(0.2)
    for _ in range(5):
        assert status(port, "localhost") == 503
    up.go.set()
    for one in waiting:
        assert one.recv(15).startswith(b"HTTP/1.0 200")
        one.close()
    until(lambda: status(port, "localhost") == 200, "it does not serve again")


def requesting(port: int) -> socket.socket:
    """A client that has asked for metrics, and reads nothing yet."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # what the kernel keeps is not left unread
    client.settimeout(20)
    client.connect(("127.0.0.1", port))
    with contextlib.suppress(ConnectionError):  # it was closed for a later one
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    return client


def test_clients_that_do_not_read_delay_no_probe() -> None:
    """Neither those that wait for metrics nor those that leave a large page unread: the oldest makes room."""
    up = Up()
    page = MetricsPage(up, port=0, trouble=lambda: None)  # type: ignore[arg-type]
    assert page.port is not None
    up.size = 8_000_000
    unread = [requesting(page.port) for _ in range(2 * CONNECTIONS)]
    up.go.clear()
    unread += [requesting(page.port) for _ in range(CONNECTIONS)]
    try:
        for _ in range(8):
            begun = time.monotonic()
            assert healthz(page.port) == (200, "ok\n")
            assert time.monotonic() - begun < SECONDS / 4
    finally:
        up.go.set()
        page.close()
        for one in unread:
            one.close()


def test_unfinished_requests_delay_no_scrape(served: tuple[Up, int]) -> None:
    """They take all places, and the oldest one makes room, however many there are."""
    _, port = served
    for sent in (b"", b"GET /metrics HTTP/1.1\r\nHost: loc", b"GET"):
        waiting = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(3 * CONNECTIONS)]
        for one in waiting:
            with contextlib.suppress(ConnectionError):  # it was closed for a later one
                one.sendall(sent)
        time.sleep(0.2)
        for _ in range(3):
            begun = time.monotonic()
            assert status(port, "localhost") == 200
            assert time.monotonic() - begun < SECONDS / 4
        for one in waiting:
            one.close()


def test_an_unfinished_request_is_given_up(monkeypatch: pytest.MonkeyPatch, served: tuple[Up, int]) -> None:
    monkeypatch.setattr(metrics_page._MetricsHandler, "timeout", 0.3)
    with socket.create_connection(("127.0.0.1", served[1]), timeout=20) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: loc")
        begun = time.monotonic()
        assert slow.recv(100) == b""
        assert time.monotonic() - begun < 10
    assert status(served[1], "localhost") == 200


def test_a_request_byte_by_byte_is_given_up(monkeypatch: pytest.MonkeyPatch, served: tuple[Up, int]) -> None:
    monkeypatch.setattr(metrics_page, "MOST_SECONDS", 1.0)
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", served[1]), timeout=20) as slow, contextlib.suppress(ConnectionError):
        while time.monotonic() - begun < 15:
            slow.sendall(b"G")
            time.sleep(0.1)
    assert time.monotonic() - begun < 14


def test_it_serves_on_ipv6() -> None:
    if not socket.has_ipv6:
        # A container may have it switched off. There is no address to serve on then.
        pytest.skip("this machine has no IPv6")
    try:
        page = MetricsPage(Up(), port=0, host="::1")  # type: ignore[arg-type]
    except InvalidOptionError as error:
        # Python has IPv6, and the loopback device has no address of it.
        pytest.skip(f"this machine has no IPv6 address: {error}")
    with urllib.request.urlopen(f"http://[::1]:{page.port}/metrics", timeout=20) as reply:
        assert b"rstream_server_up 1.0" in reply.read()
    page.close()


def test_groups_are_bounded(server: Server, client: redis.Redis) -> None:
    """The first ones have metrics, the others are counted and named once."""
    for stream in ("a", "b"):
        client.xadd(stream, {"n": 1})
        for number in range(30):
            client.xgroup_create(stream, f"g{number}", id="0")
    ran = once(server.url, "--max-groups", "40")
    page = read(ran.stdout)
    assert len(samples_of(page, "rstream_lag_entries")) == len(samples_of(page, "rstream_consumers")) == 40
    assert page["rstream_groups_left_out"] == 20
    assert "20 more groups at " in ran.stderr
    assert "use --max-groups" in ran.stderr
    whole = read(once(server.url).stdout)
    assert len(samples_of(whole, "rstream_lag_entries")) == 60
    assert whole["rstream_groups_left_out"] == 0
