"""Entries that wait for a retry: show them to commands and metrics, and return them to their group.

    → WATCH waiting returned   XINFO STREAM returned   XRANGE waiting - due
    → MULTI   XGROUP CREATE returned   XADD returned …   XDEL waiting …   EXEC     nil if one of them has changed

Both streams are in the slot of the stream that the entries come from. So each entry is in exactly one of them, if a
process dies or if several queries of the group move entries at the same time. The fields do not change. IDs in
`waiting` are the server's time, so entries that are due come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spark_streams.base.ids import StreamId
from spark_streams.base.numbers import parse_number
from spark_streams.base.printable import name_text
from spark_streams.connector.deadletter.post import DEAD_LETTER_LIMITS, DeadLetterLimits, PageSize, watch_and_check_ids
from spark_streams.connector.errors import ServerReplyError, StreamStateError, UnsupportedError
from spark_streams.connector.keys import RetryStream, delays_key, read_retry_stream, retry_stream, returned_stream
from spark_streams.connector.options.parsers import MOST_DELAYS
from spark_streams.connector.wire.connection import Argument, Connection, Reply, ReplyError, Server
from spark_streams.connector.wire.replies import (
    WATCHED_TRIES,
    find_errors,
    is_busy_group,
    is_wrong_type,
    milliseconds,
    transact_each,
)


@dataclass(frozen=True)
class WaitingEntries:
    """Entries of one retry stream or stream of returned entries; the names are JSON fields."""

    waits_in: str  # the stream
    entries: int  # their number
    stream: str  # of their origin
    group: str  # of their origin
    attempt: int | None  # the next one; None: they are returned, and not acknowledged yet
    due: int | None  # when the first one is returned, Unix ms; None: it is returned, or no query returns it
    due_in: int | None  # milliseconds until then by the server's clock, 0 if that is past


def waiting_entries(server: Server, names: Iterable[bytes]) -> list[WaitingEntries]:
    """Return the entries in those of these streams that are retry streams or hold returned entries. Raises
    ServerError."""
    parsed = {name: read_retry_stream(name.decode("utf-8", "replace")) for name in sorted(names)}
    streams = {name: stream for name, stream in parsed.items() if stream is not None}
    lengths = server.execute_all([("XLEN", name) for name in streams], is_wrong_type)
    filled = [(name, stream) for (name, stream), length in zip(streams.items(), lengths, strict=True) if length]
    waiting = [_fetch_waiting(server, name, stream) for name, stream in filled]
    return [entries for entries in waiting if entries is not None]


def waiting_of(server: Server, groups: Iterable[tuple[str, str]]) -> list[WaitingEntries]:
    """Return the returned entries of these (stream, group), and their waiting entries if queries return them. Raises
    ServerError."""
    pairs = list(groups)
    delays = server.execute_all([("GET", delays_key(*pair)) for pair in pairs], is_wrong_type)
    with_delays = [pair for pair, reply in zip(pairs, delays, strict=True) if isinstance(reply, bytes)]
    names = [retry_stream(*pair, attempts).encode() for pair in with_delays for attempts in range(1, MOST_DELAYS + 1)]
    return waiting_entries(server, [*names, *[returned_stream(*pair).encode() for pair in pairs]])


def _fetch_waiting(server: Server, name: bytes, stream: RetryStream) -> WaitingEntries | None:
    """Return the entries of one stream; None if it has none."""
    key = delays_key(stream.stream, stream.group)
    commands: list[tuple[str | bytes | int, ...]] = [
        ("TIME",), ("XLEN", name), ("XRANGE", name, "-", "+", "COUNT", 1), ("GET", key)
    ]  # fmt: skip
    now, length, first, delays = server.connection_for(name).execute_all(commands, is_wrong_type)
    if is_wrong_type(length) or not first:
        return None  # the key has another type by now, or no entry is left
    if is_wrong_type(delays):
        delays = None  # no query has written this key
    shown, attempts = name_text(name), stream.attempts
    if attempts is None:
        return WaitingEntries(shown, length, stream.stream, stream.group, None, None, None)
    delay = delay_after(delays, attempts)
    due = None if delay is None else StreamId.parse(first[0][0]).ms + delay
    due_in = None if due is None else max(0, due - milliseconds(now))
    return WaitingEntries(shown, length, stream.stream, stream.group, attempts + 1, due, due_in)


def delay_after(delays: Reply, attempts: int) -> int | None:
    """Return for how many milliseconds an entry waits after so many attempts; None if no query returns it. delays:
    value of `delays_key`."""
    numbers = [parse_number(word) for word in delays.split()] if isinstance(delays, bytes) else []
    return numbers[min(attempts, len(numbers)) - 1] if numbers else None


def refuse_returned_entries(stream: str) -> None:
    """Raise StreamStateError if a stream holds returned entries: only the query that reads them may change it."""
    parsed = read_retry_stream(stream)
    if parsed is not None and parsed.attempts is None:
        raise StreamStateError(
            f"stream {stream!r} holds returned entries, which queries of group {parsed.group!r} read, so they are not "
            "moved or deleted. Entries that wait for a retry are in streams rstream:retry:…. To list these: rstream "
            "dead list"
        )


def refuse_to_redrive(stream: str) -> None:
    """Raise the same, and UnsupportedError for a retry stream: a query may return an entry between the two transactions
    that move it."""
    refuse_returned_entries(stream)
    if read_retry_stream(stream) is not None:
        raise UnsupportedError(
            f"entries that wait for a retry in stream {stream!r} cannot be redriven. Wait until a query of the group "
            "retries them (a shorter retryDelay helps), or until they are dead letters, and redrive these"
        )


# -- return them -------------------------------------------------------------------------------------------------------

_TRIES = 100  # of a page, while other clients append to these streams
_FIRST_PAGE = 20  # entries; their size decides about the next page


def return_due_entries(
    server: Server,
    waiting: str,
    returned: str,
    group: str,
    due: StreamId,
    limit: int | None = None,
    limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
) -> int:
    """Return entries up to `due` to the group, the oldest first, and create the group on the stream of returned
    entries. Return their number: about `limit` at most, or all.

    May be run again after a lost connection. Raises WrongKeyTypeError, IdsExhaustedError, ServerReplyError.
    """
    node, size, moved, tries = server.connection_for(waiting), PageSize(limits, _FIRST_PAGE), 0, 0
    while limit is None or moved < limit:
        count = size.next()
        ask = ("XRANGE", waiting, "-", bytes(due), "COUNT", count)
        keys = [waiting, returned] if tries < WATCHED_TRIES else [waiting]
        [page] = watch_and_check_ids(node, keys, [returned], count, ask)
        if not page:
            node.execute("UNWATCH")
            break
        if _move(node, waiting, returned, group, page):
            moved, tries = moved + len(page), 0
            size.learn(len(page), sum(sum(map(len, fields)) for _, fields in page), len(page))
            continue
        tries += 1
        if tries == _TRIES:
            raise ServerReplyError(
                f"stream {waiting!r} at {server.address} changes too often: its entries could not be returned"
            )
    return moved


def _move(node: Connection, waiting: str, returned: str, group: str, page: Sequence[tuple[bytes, list[bytes]]]) -> bool:
    """Move a page. Return False if another client was faster. Raises ServerReplyError if the server refuses entries:
    then they are put back, and wait again."""
    create: tuple[Argument, ...] = ("XGROUP", "CREATE", returned, group, "0-0", "MKSTREAM", "ENTRIESREAD", "0")
    added: list[tuple[Argument, ...]] = [("XADD", returned, "*", *fields) for _, fields in page]
    remove: tuple[Argument, ...] = ("XDEL", waiting, *[entry for entry, _ in page])
    replies = transact_each(node, [create, *added, remove])
    if replies is None:
        return False
    node.answer(create, replies[0], is_busy_group)  # the next attempt shows why, or the stream was created all the same
    refused = find_errors(replies[1:-1])
    if refused:
        _put_back(node, waiting, [page[place][1] for place, _ in refused], replies[-1], refused[0][1])
    node.answer(remove, replies[-1])
    return True


def _put_back(
    node: Connection, waiting: str, refused: Sequence[Sequence[bytes]], deleted: Reply, why: ReplyError
) -> None:
    """Put back entries whose refusal could not be foreseen (for example, rights that were revoked in that moment)."""
    if not isinstance(deleted, ReplyError):
        node.execute_all([("XADD", waiting, "*", *fields) for fields in refused])
    raise ServerReplyError(
        f"{len(refused)} entries of stream {waiting!r} could not be returned, and wait there as before: "
        f"{node.error_of(why, ('XADD', waiting)).message}"
    )
