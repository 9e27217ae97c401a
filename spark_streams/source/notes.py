"""What tasks leave for the driver: entries that do not fit the schema, and how many entries were gone.

Tasks must not move the group or append to streams: they may run twice (FACTS S7). So they write notes into a hash
beside the stream, `rstream:notes:…`, one field for each entry, named by the batch's token and the entry: a second run
writes the same fields. When the batch is proved committed, the driver turns the notes into dead letters; each letter,
its acknowledgement and the removal of its note are one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import hiredis

from spark_streams.deadletter.letter import LETTERS_A_TRANSACTION, Letter, now, post
from spark_streams.errors import DecodeError, InvalidOptionError
from spark_streams.ids import StreamId
from spark_streams.source.dead import Dead
from spark_streams.source.group import Membership
from spark_streams.source.plan import Run
from spark_streams.wire.connection import Argument, Connection, ReplyError, pack
from spark_streams.wire.slots import key_beside

_LETTER, _LOST = b"letter", b"lost"


def notes_key(stream: str, member: Membership) -> bytes:
    """The hash that holds the notes on one stream."""
    return key_beside(stream, "notes", member.group, member.consumer)


@dataclass(frozen=True)
class Writer:
    """A task's side. token: the batch's; query, batch: Spark's own names for it."""

    server: Connection
    member: Membership
    token: str
    query: str
    batch: str

    def dead(self, streams: Sequence[str], dead: Dead) -> None:
        """Note rows that do not fit; streams: each one's stream."""
        ids, offsets, names, values = dead.entries()
        bounds = offsets.to_pylist()
        requests = []
        for row, (stream, entry, reason) in enumerate(zip(streams, ids.to_pylist(), dead.reasons, strict=True)):
            inside = slice(bounds[row], bounds[row + 1])
            pairs = zip(names[inside].to_pylist(), values[inside].to_pylist(), strict=True)
            words = [self.query, self.batch, now(), reason, *[word for pair in pairs for word in pair]]
            field = b"%b %b %b" % (self.token.encode(), _LETTER, entry)
            requests.append(("HSET", notes_key(stream, self.member), field, pack(*words)))
            if len(requests) == LETTERS_A_TRANSACTION:
                self._send(requests)
                requests = []
        self._send(requests)

    def lost(self, run: Run, count: int) -> None:
        """Note that entries of a run are gone."""
        field = b"%b %b %b" % (self.token.encode(), _LOST, bytes(run.after))
        self._send([("HSET", notes_key(run.stream, self.member), field, str(count))])

    def _send(self, requests: Sequence[tuple[str | bytes, ...]]) -> None:
        for request, reply in zip(requests, self.server.pipeline(requests), strict=True):
            if isinstance(reply, ReplyError):
                raise self.server.error_of(reply, request[:2])


@dataclass(frozen=True)
class Collected:
    """lost: entries that were gone, per stream; letters: how many were posted, per stream."""

    lost: Mapping[str, int]
    letters: Mapping[str, int]


def collect(
    server: Connection, member: Membership, streams: Sequence[str], token: str, letters_to: str | None
) -> Collected:
    """Take the notes of the batch with this token, which is committed; what other batches left is void.

    Raises ServerError, InvalidOptionError where there are letters and nothing says where they go; then the notes that
    were not yet taken are still there.
    """
    lost: dict[str, int] = {}
    letters: dict[str, int] = {}
    there = server.pipeline([("EXISTS", notes_key(stream, member)) for stream in streams])
    for stream in [stream for stream, reply in zip(streams, there, strict=True) if reply == 1]:
        key = notes_key(stream, member)
        for page in _pages(server, key):
            mine = {field: value for field, value in page.items() if field.startswith(token.encode() + b" ")}
            notes = [_read(member, stream, field, value) for field, value in mine.items()]
            found = sorted((n for n in notes if isinstance(n, Letter)), key=lambda letter: StreamId.parse(letter.id))
            lost[stream] = lost.get(stream, 0) + sum(note for note in notes if isinstance(note, int))
            letters[stream] = letters.get(stream, 0) + len(found)
            forget: list[Argument] = ["HDEL", key, *page]
            if found:
                if letters_to is None:
                    raise InvalidOptionError(
                        f"stream {stream!r}: entries of the last batch were set aside in mode=DEADLETTER and are not "
                        "in a dead-letter stream yet; set mode=DEADLETTER and deadLetterStream again for one more run"
                    )
                post(server, letters_to, member.group, found, also=[forget])
            else:
                server.execute(*forget)
    return Collected(lost, letters)


def void(server: Connection, member: Membership, streams: Sequence[str]) -> None:
    """The batch is read again: what tasks of an earlier run noted counts no more. They may have had another schema,
    another mode, other runs; and the notes of the batch before this one were taken when this one was made."""
    keys = [notes_key(stream, member) for stream in streams]
    if keys:
        server.execute("DEL", *keys)


def _pages(server: Connection, key: bytes) -> Iterator[dict[bytes, bytes]]:
    """The hash a page at a time, until it is empty: every page is removed by whoever takes it."""
    while server.execute("EXISTS", key):
        cursor = b"0"
        while True:
            cursor, flat = server.execute("HSCAN", key, cursor, "COUNT", LETTERS_A_TRANSACTION)
            if flat:
                yield dict(zip(flat[0::2], flat[1::2], strict=True))
            if cursor == b"0":
                break


def _read(member: Membership, stream: str, field: bytes, value: bytes) -> Letter | int:
    _, kind, entry = field.split(b" ")
    if kind == _LOST:
        return int(value)
    reader = hiredis.Reader()
    reader.feed(value)
    query, batch, when, reason, *fields = reader.gets()
    return Letter(
        stream,
        entry,
        fields,
        {
            "stream": stream,
            "id": entry.decode(),
            "group": member.group,
            "consumer": member.consumer,
            "query": query.decode(),
            "batch": batch.decode(),
            "stage": "read",
            "reason": "decode",
            "error": DecodeError.condition,
            "message": reason.decode(),
            "first-failed": when.decode(),
            "last-failed": when.decode(),
        },
    )
