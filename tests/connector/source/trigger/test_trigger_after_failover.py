"""A replica that becomes the master has the state after a prefix of the master's commands. Here it ends after each
command: the append-only file of a redis-server has the commands in the order in which replicas get them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.source.group_client import lease_key
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.spark.data_source import ReadMaxRows
from tools.driving import NEVER_AHEAD, SMALL, add, begin, drain, read, reader, stop_all
from tools.servers.server import Server, running_redis, skip_without_redis

LEASE = lease_key("s", "g", "spark")  # the master's end has released it
LIMIT, BATCHES, ENTRIES = 8, 4, 60


def commands_in(file: bytes) -> list[bytes]:
    """Return the commands of an append-only file, each in the form in which a client sends it."""
    found, at = [], 0
    while at < len(file):
        begin, end = at, file.index(b"\r\n", at)
        count, at = int(file[at + 1 : end]), end + 2
        for _ in range(count):
            end = file.index(b"\r\n", at)
            at = end + 2 + int(file[at + 1 : end]) + 2
        found.append(file[begin:at])
    return found


def words(command: bytes) -> list[bytes]:
    return command.split(b"\r\n")[2::2]


def restore(server: Server, commands: Sequence[bytes]) -> None:
    """Run the commands on an empty server. An open transaction is dropped, as a replica drops it."""
    host, _, port = server.url.removeprefix("redis://").partition("/")[0].partition(":")
    last_multi = max((n for n, one in enumerate(commands) if words(one)[0].upper() == b"MULTI"), default=-1)
    is_open = last_multi >= 0 and all(words(one)[0].upper() != b"EXEC" for one in commands[last_multi:])
    kept = [one for one in (commands[:last_multi] if is_open else commands) if LEASE not in words(one)]
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"FLUSHALL\r\n" + b"".join(kept) + b"QUIT\r\n")
        while connection.recv(1 << 16):
            pass


@contextlib.contextmanager
def with_log(folder: Path) -> Iterator[tuple[Server, Any]]:
    """Run a redis-server with an append-only file. Also return a function that returns its commands."""
    skip_without_redis()
    arguments = ["--appendonly", "yes", "--appendfsync", "always", "--dir", str(folder)]
    with running_redis(*arguments) as server:

        def commands() -> list[bytes]:
            [file] = (folder / "appendonlydir").glob("*.incr.aof")
            return [one for one in commands_in(file.read_bytes()) if words(one)[0].upper() != b"SELECT"]

        yield server, commands


@pytest.mark.parametrize("since", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "limits",
    [NEVER_AHEAD, SMALL, replace(NEVER_AHEAD, pending_page=3)],
    ids=["", "reserved ahead", "many pages"],
)
def test_after_a_failover_committed_entries_are_not_read_again(tmp_path: Path, limits: Limits, since: int) -> None:
    """A strict query that is alone in its group goes on with the entries that it has not read. since: batches of a next
    run with noAck. A failover may have lost all that it did."""
    options = {"noAck": "true"} if since else {}
    with with_log(tmp_path) as (server, commands), running_redis() as promoted:
        client = redis.Redis.from_url(server.url, decode_responses=True)
        add(client, ENTRIES)
        one = reader(server, limits=limits)
        log = [begin(one)]
        begun = len(commands())
        for n in range(BATCHES + since):
            if n == BATCHES:
                stop_all()
                one = reader(server, limits=limits, **options)
            log.append(one.latestOffset(log[-1], ReadMaxRows(LIMIT)))
            assert read(one, *log[-2:]) == list(range(n * LIMIT, (n + 1) * LIMIT))
        stop_all()
        client.close()
        recorded = commands()
        assert any(words(one)[0].upper() == b"XACK" for one in recorded)
        for cut in range(begun, len(recorded) + 1):
            restore(promoted, recorded[:cut])
            shown = b" ".join(words(recorded[cut - 1]))
            again = reader(promoted, limits=limits, **options)
            try:
                found = [n for batch in drain(again, LIMIT, log[-1]) for n in batch]
            except StreamStateError as error:
                raise AssertionError(f"cut after {shown!r}: {error}") from None
            assert found == list(range((BATCHES + since) * LIMIT, ENTRIES)), f"cut after {shown!r}"
            stop_all()
