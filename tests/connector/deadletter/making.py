"""Letters for tests, and what became of them."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any, cast

import redis

from spark_streams.connector.deadletter.envelope import MARK, dead_letter_fields, open_envelope
from spark_streams.connector.deadletter.post import DEAD_LETTER_LIMITS
from spark_streams.connector.deadletter.redrive import DeadLetterRedrive, RedriveReport
from spark_streams.connector.deadletter.redrive_plan import RedriveOptions
from spark_streams.connector.keys import origin_field, origins_key
from spark_streams.connector.wire.address import Address
from tools.servers.server import Server

DEAD = "dead"
SMALL = replace(DEAD_LETTER_LIMITS, first_page=7, largest_page=50)  # so that a few hundred letters cross every boundary


def fill(
    server: Server, count: int, first: int = 0, into: str = DEAD, has_group: bool = True, **told: str
) -> list[str]:
    """Letters n = first, first+1, … of stream `s`, every third one with reason `decode`; their ids.

    has_group: the stream exists with the group, and is recorded as an origin, so that a redrive sends them back."""
    with server.client() as client:
        stream = told.get("stream", "s")
        if has_group and stream not in ("", into) and not stream.startswith("rstream:"):
            with contextlib.suppress(redis.ResponseError):  # the group that has given them up is there
                client.xgroup_create(stream, told.get("group", "g"), id="0", mkstream=True)
            record_origin(client, into, stream, told.get("group", "g"))
        pipe = client.pipeline(transaction=False)
        for n in range(first, first + count):
            entry = [b"n", b"%d" % n, b"raw", b"\xff\r\n"]
            envelope = {
                "stream": "s",
                "id": f"{n + 1}-0",
                "group": "g",
                "stage": "read",
                "reason": "decode" if n % 3 == 0 else "odd",
                "first-failed": "2026-01-01T00:00:00.000000Z",
                "last-failed": "2026-01-01T00:00:00.000000Z",
                **told,
            }
            pipe.execute_command("XADD", into, "*", *dead_letter_fields(entry, envelope))
        return [found.decode() for found in pipe.execute()]


def record_origin(client: redis.Redis, into: str, stream: str, group: str) -> None:
    """Record an origin as a query does that writes dead letters."""
    client.hset(cast("Any", origins_key(into)), mapping={origin_field(stream, group): b""})


def words(client: redis.Redis, stream: str) -> list[tuple[str, list[bytes]]]:
    """(id, fields in order) of all entries."""
    found: Any = client.execute_command("XRANGE", stream, "-", "+", NEVER_DECODE=True)
    return [
        (one.decode(), list(fields) if isinstance(fields, list) else [word for pair in fields.items() for word in pair])
        for one, fields in found
    ]


def numbers(server: Server, stream: str = "s") -> list[int]:
    """Field n of all entries."""
    with server.client() as client:
        return [int(dict(zip(fields[0::2], fields[1::2], strict=True))[b"n"]) for _, fields in words(client, stream)]


def marks(server: Server, stream: str = "s") -> list[bytes]:
    """The marks of all entries."""
    with server.client() as client:
        return [dict(zip(f[0::2], f[1::2], strict=True))[MARK] for _, f in words(client, stream)]


def envelopes(server: Server, stream: str = DEAD) -> list[dict[str, str]]:
    """What all letters say."""
    with server.client() as client:
        return [open_envelope(fields)[1] for _, fields in words(client, stream)]


def redrive(server: Server, dry_run: bool = False, **options: Any) -> RedriveReport:
    """Run one to its end."""
    return DeadLetterRedrive(
        Address.parse(server.url), RedriveOptions(**{"stream": DEAD, **options}), limits=SMALL
    ).run(dry_run)
