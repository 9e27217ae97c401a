"""Going back by one minor version: what is written today has a form that the samples of the version before have.

A form that is new there is one that the version before may not read. Either write the old form, or let the new one need
a new option, and name it in NEW with that option. tests/project/written_formats.py makes the samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from spark_streams.base.export_lines import read_export
from spark_streams.connector.deadletter.envelope import dead_letter_fields, open_envelope
from spark_streams.connector.deadletter.mover import RedriveState, begin_or_continue, redrive_key
from spark_streams.connector.errors import LedgerError, OffsetError, RStreamError, ShardsError, StreamStateError
from spark_streams.connector.keys import shards_key
from spark_streams.connector.shards.shard_sets import ShardSet, fetch_shard_sets
from spark_streams.connector.sink.ledger import LedgerHead, MarkKey, QueryRecord, pack_mark, read_mark
from spark_streams.connector.source.commit_mark import Mark
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.source.pending.poison_record import PoisonState
from spark_streams.connector.source.rows.column_report import ColumnReport
from spark_streams.connector.wire.connection import Connection, parse_replies
from spark_streams.connector.wire.lease import Processes
from tests.project.written_formats import FOLDER, MINOR, form_of, live, recording
from tools.driving import ALL, add, forget_all, reader
from tools.servers.server import Server

NEW: Mapping[tuple[str, ...], str] = {}  # form: the new option that writes it


def minor_before(minor: str) -> str:
    major, number = map(int, minor.split("."))
    return f"{major}.{number - 1}"


def words_of(file: Path) -> list[list[bytes]]:
    return [[word.encode("latin-1") for word in words] for words in json.loads(file.read_text(encoding="utf-8"))]


KEPT = [file for minor in (minor_before(MINOR), MINOR) if (file := FOLDER / f"{minor}.json").exists()]


def form(words: Sequence[bytes]) -> tuple[str, ...]:
    """The form of a sample."""
    if words[0] == b"JSON":
        with recording() as found:
            Offset.from_json(json.loads(words[2])).to_json()
        return next(iter(found))
    of_command = form_of(words)
    assert of_command is not None
    return of_command


@pytest.mark.in_turn
def test_what_is_written_today_is_read_by_the_version_before(server: Server) -> None:
    with recording() as found:
        live(server)
    assert KEPT, f"python -m {live.__module__}"
    for file in KEPT:
        forms = {form(words) for words in words_of(file)}
        assert {one: found[one] for one in found if one not in forms and one not in NEW} == {}, file.name
    assert {one[0] for one in found} == {form(words)[0] for words in words_of(KEPT[-1])}, "a kind is not reached"


def _mark(words: Sequence[bytes]) -> bool:
    return str(Mark.parse(words[2])).encode() == words[2]


def _lease(words: Sequence[bytes]) -> bool:
    return set(json.loads(words[2])) >= set(Processes().this())


def _notes(words: Sequence[bytes]) -> bool:
    name, value = words[2:4]
    if b" columns " in name:
        return bool(json.loads(ColumnReport.from_json(value).to_json()) == json.loads(value))
    return not value or name == b"batch" or len(parse_replies(value)[0]) >= 6


def _letter(words: Sequence[bytes]) -> bool:
    fields = list(words[words.index(b"*") + 1 :])
    kept, envelope = open_envelope(fields)
    told = {name: value for name, value in envelope.items() if name not in ("redrives", "previous")}
    return dead_letter_fields(kept, told) == fields


def _sink(words: Sequence[bytes]) -> bool:
    fields = dict(zip(words[2::2], words[3::2], strict=True))
    if b"batch" in fields:
        head = LedgerHead.read([fields.get(name) for name in (b"batch", b"runs", b"done", b"rows", b"total")])
        return head.batch == int(fields[b"batch"])
    if words[1].count(b":") > 3:
        return all(pack_mark(*read_mark(mark)) == mark for mark in fields.values())
    record = QueryRecord.read(words[2:])
    return len(record.streams) + (record.closed == int(fields.get(b"", b"-9"))) == len(fields)


READERS: Mapping[str, Callable[[Sequence[bytes]], bool]] = {
    "attempts": lambda words: PoisonState.from_json(words[2]).to_json().encode() == words[2],
    "committed": _mark,
    "lease": _lease,
    "session": _lease,
    "letter": _letter,
    "retry": _letter,
    "notes": _notes,
    "offset": lambda words: Offset.from_json(json.loads(words[2])).to_json() == json.loads(words[2]),
    "redrive": lambda words: bytes(RedriveState.parse(words[2]) or b"") == words[2],
    "shards": lambda words: words[2] == b"made" or ShardSet.read("s", list(words[2:])) is not None,
    "sink": _sink,
    "sink:parts": lambda words: all(MarkKey.read(name).name.encode() == name for name in words[2:]),
}
# Numbers, IDs and names that are written as they are.
PLAIN = {"begun", "delays", "first", "missing", "origins", "pace", "redriven", "sink:claims", "sink:written"}


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.stem)
def test_the_samples_are_read(file: Path) -> None:
    samples = [(form(words), words) for words in words_of(file)]
    assert {kind for (kind, *_), _ in samples} == READERS.keys() | PLAIN
    assert [words for (kind, *_), words in samples if kind in READERS and not READERS[kind](words)] == []


def test_an_older_version_would_be_met(server: Server) -> None:
    """The comparison finds a field that is new, and a value of another form."""
    kept = {form(words) for words in words_of(KEPT[-1])}
    assert form_of([b"SET", b"rstream:committed:{s}:g:spark", b"5-0 3.5f1c9a0b-e37d41aa"]) in kept
    for words in (
        [b"SET", b"rstream:committed:{s}:g:spark", b"5-0 3.5f1c9a0b-e37d41aa newer"],
        [b"HSET", b"rstream:shards:{s}", b"shards", b"3", b"rule", b"crc32", b"by", b"key", b"order", b"1"],
        [b"HSET", b"rstream:newer:{s}", b"a", b"b"],
        [b"SET", b"rstream:attempts:{s}:g:spark", b'{"token": "5f1c9a0b-e37d41aa", "newer": 1}'],
    ):
        assert form_of(words) not in kept


def _committed(connection: Connection, client: redis.Redis, server: Server) -> None:
    add(client, 3)
    query = reader(server)
    start = query.initialOffset()
    end = query.latestOffset(start, ALL)
    query.latestOffset(end, ALL)
    forget_all()
    [key] = client.keys("rstream:committed:*")
    client.append(key, " newer")
    reader(server).latestOffset(end, ALL)


def _attempts(connection: Connection, client: redis.Redis, server: Server) -> None:
    given: dict[str, Any] = {"maxDeliveries": "2", "deadLetterStream": "dead"}
    add(client, 3)
    query = reader(server, **given)
    start = query.initialOffset()
    end = query.latestOffset(start, ALL)
    query.partitions(start, end)
    forget_all()
    [key] = client.keys("rstream:attempts:*")
    client.set(key, json.dumps({**json.loads(str(client.get(key))), "newer": 1}))
    reader(server, **given).partitions(start, end)


def _redrive(connection: Connection, client: redis.Redis, server: Server) -> None:
    state = RedriveState("5a7345c1e76592db", 4, "2f54b71eb89f5dfc", "1795440000250-0", 7, 1, ("orders",))
    client.set(redrive_key("dead"), json.dumps({**json.loads(bytes(state)), "newer": 1}))
    begin_or_continue(connection, "dead", state)


def _shards(connection: Connection, client: redis.Redis, server: Server) -> None:
    client.hset(shards_key("s").decode(), mapping={"shards": 3, "rule": "newer"})
    fetch_shard_sets(connection, ["s"])


def _offset(connection: Connection, client: redis.Redis, server: Server) -> None:
    Offset.from_json({"format": 2})


def _ledger(connection: Connection, client: redis.Redis, server: Server) -> None:
    QueryRecord.read([b"out", b"5 newer"])


def _export(connection: Connection, client: redis.Redis, server: Server) -> None:
    read_export([b'{"export": {"version": 2, "stream": "s"}}\n'])


@pytest.mark.parametrize(
    ("meet", "error", "words"),
    [
        (_offset, OffsetError, "has format 2, and this spark-streams reads format 1"),
        (_committed, RStreamError, "no commit mark"),
        (_attempts, StreamStateError, "the record of failed batches, cannot be read"),
        (_redrive, StreamStateError, "a redrive by another version of spark-streams"),
        (_shards, ShardsError, "Another version wrote the key"),
        (_ledger, LedgerError, "newer"),
        (_export, ValueError, "the file has version 2"),
    ],
)
def test_what_this_version_does_not_know_is_refused_by_name(
    server: Server,
    client: redis.Redis,
    connection: Connection,
    meet: Callable[[Connection, redis.Redis, Server], None],
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        meet(connection, client, server)
    forget_all()
