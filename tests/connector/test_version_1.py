"""Samples of what version 1 keeps on a server: later versions read them.

The offset's is in source/test_offset.py, the commit mark's in source/test_commit_mark.py.
"""

from __future__ import annotations

import numpy as np

from spark_streams.base.ids import StreamId
from spark_streams.connector.deadletter.envelope import RedriveMark, ReturnedEntry, dead_letter_fields, open_envelope
from spark_streams.connector.deadletter.mover import RedriveState
from spark_streams.connector.sink.ledger import LedgerHead, MarkKey, QueryRecord, pack_mark, read_mark
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.pending.poison_record import Piece, PoisonState

DEAD_LETTER = [
    *(b"n", b"7"),
    *(b"dl.stream", b"orders", b"dl.id", b"1795440000250-0", b"dl.group", b"billing", b"dl.consumer", b"spark"),
    *(b"dl.query", b"5f1c", b"dl.batch", b"12", b"dl.stage", b"read", b"dl.reason", b"decode"),
    *(b"dl.error", b"RSTREAM_DECODE", b"dl.message", b"no INT", b"dl.deliveries", b"1"),
    *(b"dl.first-failed", b"2026-11-23T13:20:00.000000Z", b"dl.last-failed", b"2026-11-23T13:20:00.000000Z"),
    *(b"dl.redrives", b"0", b"dl.previous", b""),
]


def test_an_envelope() -> None:
    fields, envelope = open_envelope(DEAD_LETTER)
    assert fields == [b"n", b"7"]
    values = {name: value for name, value in envelope.items() if name not in ("redrives", "previous")}
    assert dead_letter_fields([b"n", b"7"], values) == DEAD_LETTER


def test_the_mark_of_a_redriven_entry() -> None:
    value = b"1 2026-11-23T13:20:00.000000Z orders:dead/1795440000250-0"
    mark = RedriveMark.parse(value)
    assert mark == RedriveMark(1, "2026-11-23T13:20:00.000000Z", "orders:dead/1795440000250-0")
    assert bytes(mark) == value


def test_an_entry_that_waits_for_a_retry() -> None:
    entry = ReturnedEntry.parse(DEAD_LETTER)
    assert entry is not None
    assert (entry.fields, entry.attempts) == ([b"n", b"7"], 1)


def test_the_state_of_a_redrive() -> None:
    value = (
        b'{"run": "5a7345c1e76592db", "serial": 4, "orders": "2f54b71eb89f5dfc", "bound": "1795440000250-0", '
        b'"moved": 7, "parked": 1, "to": ["orders"]}'
    )
    state = RedriveState.parse(value)
    assert state == RedriveState("5a7345c1e76592db", 4, "2f54b71eb89f5dfc", "1795440000250-0", 7, 1, ("orders",))
    assert bytes(state) == value


def test_the_ledger_of_a_sink() -> None:
    assert QueryRecord.read([b"", b"5", b"out", b"5", b"late", b"3"]) == QueryRecord(5, {b"out": 5, b"late": 3})
    head = LedgerHead.read([b"5", b"3,4", b"4", b"60", b"17241709254077376921"])
    assert head == LedgerHead(5, ("3", "4"), 4, 60, 17241709254077376921)
    assert MarkKey.read(b"5:3:0") == MarkKey("5:3:0", 5, "3", "0")
    assert MarkKey.read(b"5:3:written").kind == "written"
    mark = bytes.fromhex("01000000010000000100000000000000ffffffffffffffff")
    written, claimed = read_mark(mark)
    assert (written.tolist(), claimed.tolist()) == ([1], [2**64 - 1])
    assert pack_mark(np.array([1], np.uint64), np.array([2**64 - 1], np.uint64)) == mark


def test_batches_that_killed_a_query() -> None:
    value = (
        '{"token": "5f1c9a0be37d", "runs": 2, "run": "a1", "narrowed": false, "clean": 70, "pieces": {"5-0~5f.0000": '
        '{"parts": {"s": ["4-0 6-0 2 1700"]}, "died": 1, "since": 2, "began": 2, "is_suspect": true, "error": "", '
        '"message": "", "given_up": false}}, "commits": 3, "counted": "", "failures_in_a_row": 1}'
    )
    state = PoisonState.from_json(value)
    piece = Piece({"s": ["4-0 6-0 2 1700"]}, died=1, since=2, began=2, is_suspect=True)
    pieces = {"5-0~5f.0000": piece}
    assert state == PoisonState("5f1c9a0be37d", 2, "a1", clean=70, pieces=pieces, commits=3, failures_in_a_row=1)
    assert piece.ranges() == {"s": (Range("s", StreamId(4, 0), StreamId(6, 0), 2, 1700),)}
    assert state.to_json() == value
