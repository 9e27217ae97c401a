"""Retries by a clock that a test holds: in the millisecond in which an entry is due, and one beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from spark_streams.connector.deadletter import waiting_entries
from spark_streams.connector.deadletter.waiting_entries import delay_after, waiting_of
from spark_streams.connector.keys import delays_key, retry_stream, returned_stream
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.group import retries
from spark_streams.connector.source.group.retries import Retries
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.wire.connection import Connection
from tools.servers.server import Server

AT = 1_600_000_000_000
SECOND, DELAYS = 1_000, (10_000, 60_000)
BACK = returned_stream("s", "g")


class _Clock:
    """The server's time, as queries and commands read it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = AT
        for module in (retries, waiting_entries):
            monkeypatch.setattr(module, "milliseconds", lambda _: self.now_ms)
        monkeypatch.setattr(retries, "time", SimpleNamespace(monotonic=lambda: 5_000.0, time=lambda: 1e9))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    return _Clock(monkeypatch)


def of_group(server: Server, **given: str) -> Retries:
    options = {"url": server.url, "streams": "s", "group": "g", "consumer": "c", "retryDelay": "10s, 1m"}
    return Retries(
        SourceOptions.parse({**options, "mode": "DEADLETTER", "deadLetterStream": "dead", **given}), Limits()
    )


def wait(client: redis.Redis, attempts: int, *ids: str, group: str = "g") -> None:
    for entry in ids:
        client.xadd(retry_stream("s", group, attempts), {"n": entry}, id=entry)


def returned(client: redis.Redis) -> list[Any]:
    return [fields["n"] for _, fields in client.xrange(BACK)]


@pytest.mark.parametrize(
    ("attempts", "delay"), [(1, DELAYS[0]), (2, DELAYS[1]), (3, DELAYS[1]), (4, DELAYS[1])]
)  # the last delay is that of all later attempts
def test_an_entry_is_returned_in_the_millisecond_in_which_its_delay_is_over(
    server: Server, client: redis.Redis, connection: Connection, clock: _Clock, attempts: int, delay: int
) -> None:
    wait(client, attempts, f"{AT}-0", f"{AT}-7", f"{AT + 1}-0", f"{AT + SECOND}-0")
    one = of_group(server)
    for now_ms, expected in (
        (AT, []),
        (AT + delay - SECOND, []),
        (AT + delay - 1, []),
        (AT + delay, [f"{AT}-0", f"{AT}-7"]),
        (AT + delay + 1, [f"{AT}-0", f"{AT}-7", f"{AT + 1}-0"]),
        (AT + delay + SECOND - 1, [f"{AT}-0", f"{AT}-7", f"{AT + 1}-0"]),
        (AT + delay + SECOND, [f"{AT}-0", f"{AT}-7", f"{AT + 1}-0", f"{AT + SECOND}-0"]),
    ):
        clock.now_ms = now_ms
        one.return_due(connection, ["s"], None, None)
        assert returned(client) == expected, now_ms - AT - delay
        again = of_group(server)  # which has not seen the first entry before
        again.return_due(connection, ["s"], None, None)
        assert returned(client) == expected, now_ms - AT - delay


@pytest.mark.parametrize("first", [1, 2])
def test_the_next_entry_is_due_with_the_first_of_several_delays(
    server: Server, client: redis.Redis, connection: Connection, clock: _Clock, first: int
) -> None:
    """And a query waits until then by the server's clock, which may be years from its own."""
    later = 3 - first
    begun = {first: AT - DELAYS[first - 1], later: AT - DELAYS[later - 1] + 7_000}  # due now, and 7 s later
    for attempts, entry_ms in begun.items():
        wait(client, attempts, f"{entry_ms}-0")
    one, clock.now_ms = of_group(server), AT - 2_000
    one.return_due(connection, ["s"], None, None)
    assert one.waiting() == {"s": {"entries": 2, "due": AT}}
    assert one.seconds_until_due() == pytest.approx(2.0)
    clock.now_ms = AT
    one.return_due(connection, ["s"], None, None)
    assert returned(client) == [f"{begun[first]}-0"]
    one.return_due(connection, ["s"], None, None)
    assert one.waiting() == {"s": {"entries": 1, "due": AT + 7_000}}
    assert one.seconds_until_due() == pytest.approx(7.0)
    clock.now_ms = AT + 7_000
    one.return_due(connection, ["s"], None, None)
    assert (one.waiting(), one.seconds_until_due()) == ({}, math.inf)


def test_after_a_return_the_next_entry_of_the_same_stream_is_looked_at(
    server: Server, client: redis.Redis, connection: Connection, clock: _Clock
) -> None:
    wait(client, 1, f"{AT}-0", f"{AT + 5_000}-0")
    one, clock.now_ms = of_group(server), AT + DELAYS[0]
    one.return_due(connection, ["s"], None, None)
    assert one.seconds_until_due() == 0.0  # when it is due is not known
    one.return_due(connection, ["s"], None, None)
    assert one.waiting() == {"s": {"entries": 1, "due": AT + 5_000 + DELAYS[0]}}
    assert one.seconds_until_due() == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("delays", "waits_ms"),
    [
        (b"10000 60000", (10_000, 60_000, 60_000, 60_000)),
        (b"10000", (10_000,) * 4),
        (b"1 2 3", (1, 2, 3, 3)),
        (b"", (None,) * 4),
        (None, (None,) * 4),
    ],
)
def test_each_attempt_has_its_delay_and_later_ones_the_last(
    delays: bytes | None, waits_ms: Sequence[int | None]
) -> None:
    assert [delay_after(delays, attempts) for attempts in (1, 2, 3, 4)] == [*waits_ms]


def test_commands_say_when_the_first_of_each_stream_is_due(
    client: redis.Redis, connection: Connection, clock: _Clock
) -> None:
    """Of a group whose queries return entries, and of one without."""
    for attempts, ids in ((1, (AT, AT + 1)), (2, (AT + 2, AT + 3))):
        wait(client, attempts, *[f"{entry_ms}-0" for entry_ms in ids])
    wait(client, 1, f"{AT}-0", group="h")
    client.set(delays_key("s", "g"), "10000 60000")
    client.xadd(BACK, {"n": "1"})
    client.xadd(returned_stream("s", "h"), {"n": "1"})
    for now_ms, due_in in ((AT, (10_000, 60_002)), (AT + 10_000, (0, 50_002)), (AT + 60_003, (0, 0))):
        clock.now_ms = now_ms
        found = waiting_of(connection, [("s", "g"), ("s", "h"), ("t", "g")])
        told = [(one.group, one.attempt, one.entries, one.due, one.due_in) for one in found]
        assert told == [
            ("g", 2, 2, AT + 10_000, due_in[0]),
            ("g", 3, 2, AT + 60_002, due_in[1]),
            ("g", None, 1, None, None),
            ("h", None, 1, None, None),
        ]


def test_a_query_waits_by_the_servers_clock(
    server: Server, client: redis.Redis, connection: Connection, clock: _Clock
) -> None:
    """Which is years from its own."""
    wait(client, 1, f"{AT - 4_000}-0")
    one = of_group(server)
    one.return_due(connection, ["s"], None, None)
    assert one.seconds_until_due() == pytest.approx(6.0)
