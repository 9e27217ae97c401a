"""Entries that are to be tried again, for programs that look from outside; and what may not be done to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_streams.errors import StreamStateError, UnsupportedError
from spark_streams.model.ids import StreamId
from spark_streams.model.keys import RetryStream, delays_key, read_retry_stream, retry_stream, returned_stream
from spark_streams.model.numbers import parse_number
from spark_streams.options.values import MOST_DELAYS
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.replies import milliseconds
from spark_streams.wire.replies.reply_errors import is_wrong_type


@dataclass(frozen=True)
class WaitingEntries:
    """Entries of one retry stream or returned stream; the names are those of its JSON. waits_in: the stream; entries:
    how many; stream, group: whose; attempt: the next one, None: they have come back, and the group has still to
    acknowledge them; due: when the first of them comes back, milliseconds since the epoch, None: it has come back, or
    no query brings it back; due_in: milliseconds until then by the server's clock, 0 if that is past."""

    waits_in: str
    entries: int
    stream: str
    group: str
    attempt: int | None
    due: int | None
    due_in: int | None


def waiting_entries(server: Server, names: Iterable[bytes]) -> list[WaitingEntries]:
    """Return what stands in those of these streams that are retry streams or returned streams. Raises ServerError."""
    told = {name: read_retry_stream(name.decode("utf-8", "replace")) for name in sorted(names)}
    asked = {name: one for name, one in told.items() if one is not None}
    lengths = server.pipeline([("XLEN", name) for name in asked])
    some = [(name, one) for (name, one), length in zip(asked.items(), lengths, strict=True) if length]
    looked = [_look(server, name, one) for name, one in some]
    return [one for one in looked if one is not None]


def waiting_of(server: Server, groups: Iterable[tuple[str, str]]) -> list[WaitingEntries]:
    """Return what has come back of these (stream, group), and what waits if queries bring it back. Raises
    ServerError."""
    asked = list(groups)
    questions = [("GET", delays_key(*one)) for one in asked]
    with_some: list[tuple[str, str]] = []
    for one, question, reply in zip(asked, questions, server.pipeline(questions), strict=True):
        if isinstance(reply, ReplyError) and not is_wrong_type(reply):
            raise server.error_of(reply, question)
        if isinstance(reply, bytes):
            with_some.append(one)
    names = [retry_stream(*one, attempts).encode() for one in with_some for attempts in range(1, MOST_DELAYS + 1)]
    return waiting_entries(server, [*names, *[returned_stream(*one).encode() for one in asked]])


def _look(server: Server, name: bytes, told: RetryStream) -> WaitingEntries | None:
    """Return what stands in one stream; None if that is nothing."""
    asked: list[tuple[str | bytes | int, ...]] = [
        ("TIME",), ("XLEN", name), ("XRANGE", name, "-", "+", "COUNT", 1), ("GET", delays_key(told.stream, told.group))
    ]  # fmt: skip
    there = server.of(name)
    replies = there.pipeline(asked)
    if is_wrong_type(replies[1]):
        return None  # something else by now
    if is_wrong_type(replies[3]):
        replies[3] = None  # no query has written that
    for command, reply in zip(asked, replies, strict=True):
        if isinstance(reply, ReplyError):
            raise there.error_of(reply, command)
    now, length, first, delays = replies
    if not first:
        return None
    shown, attempts = name.decode("utf-8", "backslashreplace"), told.attempts
    if attempts is None:
        return WaitingEntries(shown, length, told.stream, told.group, None, None, None)
    due = None
    if delays:
        each = [parse_number(delay) for delay in delays.split()]
        delay = each[min(attempts, len(each)) - 1] if each else None
        due = None if delay is None else StreamId.parse(first[0][0]).ms + delay
    due_in = None if due is None else max(0, due - milliseconds(now))
    return WaitingEntries(shown, length, told.stream, told.group, attempts + 1, due, due_in)


def refuse_what_is_read(stream: str) -> None:
    """Raises StreamStateError where a stream holds what has come back and a query reads: nothing else may touch it."""
    told = read_retry_stream(stream)
    if told is not None and told.attempts is None:
        raise StreamStateError(
            f"stream {stream!r} holds what has come back for another try, and queries of group {told.group!r} read it: "
            "nothing is moved or deleted there. What still waits is in the streams rstream:retry:… that rstream dead "
            "list names"
        )


def refuse_to_redrive(address: Address, stream: str) -> None:
    """The same, and UnsupportedError in a cluster for what waits: a query may bring an entry back meanwhile, and there
    no transaction would notice."""
    refuse_what_is_read(stream)
    if address.is_cluster and read_retry_stream(stream) is not None:
        raise UnsupportedError(
            f"in a cluster what waits in stream {stream!r} cannot be sent back by hand: let it come back by itself "
            "(option retryDelay, shorter maybe), or let it become dead letters, and send those back"
        )
