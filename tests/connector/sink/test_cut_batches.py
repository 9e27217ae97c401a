"""A batch that the source cuts because it kills the query: what is written of it belongs to its pieces, each once."""

from __future__ import annotations

import random

import pytest

from spark_streams.connector.errors import LedgerError
from spark_streams.connector.keys import NARROWED, MicroBatchName
from spark_streams.connector.source.stream_reader import report_batch_kind
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tests.connector.sink.writing import (
    KilledError,
    batch_of,
    came_before,
    close,
    dying,
    frame,
    killed_before_chunk,
    ledger_keys,
    numbers,
    options,
    write,
)
from tools.servers.server import Server


def tell(server: Server, number: int) -> None:
    """Batch `number` of the query is a piece."""
    with Connection(Address.parse(server.url)) as connection:
        report_batch_kind(connection, NARROWED, MicroBatchName("q", number))


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_a_failed_whole_are_claimed_by_its_pieces(server: Server, seed: int) -> None:
    came_before(server, 7)
    chance = random.Random(seed)
    rows = list(range(300))
    checked = options(server.url, chunkSize="16")
    for _ in range(2):  # the whole batch, two runs, each dies somewhere
        with pytest.raises(KilledError):
            write(dying([frame(chance.sample(rows, 300)[: chance.randrange(150)])]), checked,
                  batch_of(7))  # fmt: skip
    pieces = [rows[start : start + 50] for start in range(0, 300, 50)]
    for number, piece in enumerate(pieces, start=7):
        tell(server, number)
        for _ in range(chance.randrange(2)):  # a piece may be killed, too
            with pytest.raises(KilledError):
                write(dying([frame(piece[: chance.randrange(50)])]), checked, batch_of(number))
        tell(server, number)
        batch = batch_of(number)
        close(checked, batch, write([frame(piece)], checked, batch))
    assert numbers(server) == dict.fromkeys(rows, 1)
    batch = batch_of(7 + len(pieces))
    close(checked, batch, write([frame([1000])], checked, batch))
    assert ledger_keys(server) == {"rstream:sink:{out}:q", "rstream:sink:q", "rstream:told:q"}


def test_a_cut_batch_that_comes_to_nothing_leaves_its_rows_to_the_next_piece(server: Server) -> None:
    """Its only entry was the one that kills: no task, nothing to close."""
    checked = options(server.url, chunkSize="16")
    with pytest.raises(KilledError):
        write(dying([frame(range(1, 100))]), checked, batch_of(0))
    tell(server, 1)
    batch = batch_of(1)
    close(checked, batch, write([frame(range(1, 60))], checked, batch))
    tell(server, 2)
    batch = batch_of(2)
    close(checked, batch, write([frame(range(60, 120))], checked, batch))
    assert numbers(server) == dict.fromkeys(range(1, 120), 1)


def test_several_streams_wait_for_their_pieces(server: Server) -> None:
    checked = options(server.url, chunkSize="16", streamColumn="to")
    streams = ["a" if n % 2 else "b" for n in range(80)]
    with pytest.raises(KilledError):
        write(dying([frame(range(64), streams[:64])]), checked, batch_of(0))
    for number, wanted in enumerate(("a", "b")):
        tell(server, number)
        mine = [n for n in range(80) if streams[n] == wanted]
        batch = batch_of(number)
        close(checked, batch, write([frame(mine, [wanted] * len(mine))], checked, batch))
    assert numbers(server, "a") + numbers(server, "b") == dict.fromkeys(range(80), 1)


def test_without_a_cut_what_is_missing_is_still_an_error(server: Server) -> None:
    came_before(server, 1)
    checked = options(server.url, chunkSize="16")
    killed_before_chunk(4, [frame(range(64))], checked, batch_of(1))
    tell(server, 0)  # an earlier batch was a piece
    batch = batch_of(1)
    with pytest.raises(LedgerError, match="wrote 16 rows to stream 'out' that this run does not have"):
        close(checked, batch, write([frame(range(32))], checked, batch))


def test_rows_that_nobody_claims_are_dropped_from_the_ledger_when_the_cutting_is_over(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    checked = options(server.url, chunkSize="16")
    killed_before_chunk(4, [frame(range(64))], checked, batch_of(0))
    tell(server, 0)
    batch = batch_of(0)
    close(checked, batch, write([frame(range(44))], checked, batch))
    batch = batch_of(1)
    close(checked, batch, write([frame([100])], checked, batch))
    assert "4 rows of entries that killed the query" in caplog.text
    assert "rstream:sink:{out}:q:carried" not in ledger_keys(server)
