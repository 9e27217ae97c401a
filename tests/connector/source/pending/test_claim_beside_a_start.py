"""A claim looks at the lease of a consumer, and then takes its entries: what becomes a running query in between, keeps
them (claimIdle)."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
import redis

from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.wire.connection import Connection
from tools.driving import ALL, NEVER_AHEAD, add, another_reader, drain, pending_count, read
from tools.sending import before_sending
from tools.servers.server import Server

IDLE = "50ms"


@pytest.fixture
def logged(server: Server, client: redis.Redis) -> tuple[dict[str, Any], dict[str, Any]]:
    """Six entries in a batch that consumer `first` has logged before it died. They are idle."""
    add(client, 6)
    first = another_reader(server, limits=NEVER_AHEAD, consumer="first")
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    first.stop()
    time.sleep(0.08)
    return start, end


def claiming(server: Server, **limits: Any) -> StreamReader:
    """A query that claims."""
    return another_reader(server, limits=replace(NEVER_AHEAD, **limits), consumer="second", claimIdle=IDLE)


def pending_for(client: redis.Redis, consumer: str) -> int:
    return sum(one["pending"] for one in client.xinfo_consumers("s", "g") if one["name"] == consumer)


def test_a_claim_takes_nothing_of_a_query_that_starts_just_before_it(
    server: Server, client: redis.Redis, logged: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    """The holder's lease appears between the look at it and XCLAIM. The holder reads its batch, whole."""
    started: list[StreamReader] = []

    def starts(connection: Connection, request: bytes) -> None:
        started.append(another_reader(server, limits=NEVER_AHEAD, consumer="first"))
        assert read(started[0], *logged) == list(range(6))

    second = claiming(server)
    with before_sending(b"XCLAIM", act=starts, times=1) as requests:
        assert drain(second) == []
    assert requests, "nothing was claimed: the test proves nothing"
    assert (pending_for(client, "first"), pending_for(client, "second")) == (6, 0)
    started[0].stop()
    time.sleep(0.08)
    assert sorted(n for batch in drain(second) for n in batch) == list(range(6)), "a later trigger claims them"
    assert pending_count(client) == 0


def test_a_claim_of_several_pages_stops_when_their_holder_starts(
    server: Server, client: redis.Redis, logged: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    """The lease appears before the second page: what the first page has taken is the claiming query's, once."""
    second = claiming(server, claim_page=2)
    sent: list[bytes] = []
    started: list[StreamReader] = []

    def starts_at_the_second(connection: Connection, request: bytes) -> None:
        sent.append(request)
        if len(sent) == 2:
            started.append(another_reader(server, limits=NEVER_AHEAD, consumer="first"))
            started[0].initialOffset()
            started[0].latestOffset(started[0].initialOffset(), ALL)

    with before_sending(b"XCLAIM", act=starts_at_the_second):
        assert drain(second) == [[0, 1]]
    assert started
    assert pending_for(client, "first") == 4


@pytest.mark.parametrize("kept", ["another session that is over", "gone"])
def test_a_claim_takes_entries_of_a_holder_whose_lease_was_only_removed_meanwhile(
    server: Server, client: redis.Redis, logged: tuple[dict[str, Any], dict[str, Any]], kept: str
) -> None:
    """The lease key changes between the look and XCLAIM, but nobody runs: the entries are claimed in the end."""
    key = "rstream:lease:{s}:g:first"
    left = {"session": "rstream:session:g:0", "host": "elsewhere", "space": "another", "pid": 1, "born": "1"}
    client.set(key, json.dumps(left))

    def changes(connection: Connection, request: bytes) -> None:
        client.delete(key) if kept == "gone" else client.set(key, json.dumps({**left, "pid": 2}))

    second = claiming(server)
    with before_sending(b"XCLAIM", act=changes, times=1):
        found = drain(second)
    found += drain(second)
    assert [n for batch in found for n in batch] == list(range(6))
    assert pending_count(client) == 0
