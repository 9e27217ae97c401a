"""A query that comes to the exactly-once sink with a later batch than its first, and that the server knows nothing of:
its checkpoint may have lost its file `metadata`, and with it the query's id, under which the ledger stands."""

from __future__ import annotations

import re

import pytest

from spark_streams.connector.errors import LedgerError
from tests.connector.sink.writing import batch_of, close, frame, ledger_keys, numbers, options, write
from tools.servers.server import Server

ROWS = list(range(5))


def test_a_batch_under_a_new_query_id_is_refused_before_it_is_written_twice(server: Server) -> None:
    """As the message says: with the id that the query had, the ledger knows the batch."""
    checked = options(server.url)
    for number in (0, 1):
        batch = batch_of(number)
        close(checked, batch, write([frame(ROWS)], checked, batch))
    with pytest.raises(LedgerError, match="file metadata is missing"):
        write([frame(ROWS)], checked, batch_of(1, query="new"))
    assert numbers(server) == dict.fromkeys(ROWS, 2)
    assert not [key for key in ledger_keys(server) if "new" in key]
    again = batch_of(1, query="q")
    close(checked, again, write([frame(ROWS)], checked, again))
    assert numbers(server) == dict.fromkeys(ROWS, 2)


def test_a_query_that_wrote_elsewhere_before_goes_on_as_the_error_says(server: Server) -> None:
    checked = options(server.url)
    with pytest.raises(LedgerError) as raised:
        write([frame(ROWS)], checked, batch_of(7))
    command = re.search(r'HSET (\S+) "" (\d+) to go on', str(raised.value))
    assert command is not None
    with server.client() as client:
        client.hset(command[1], "", command[2])
    for number in (7, 8):
        batch = batch_of(number)
        close(checked, batch, write([frame(ROWS)], checked, batch))
    assert numbers(server) == dict.fromkeys(ROWS, 2)


def test_a_later_batch_without_rows_does_not_make_an_unknown_query_known(server: Server) -> None:
    checked = options(server.url)
    with pytest.raises(LedgerError, match="is the first batch of the query on this server"):
        close(checked, batch_of(7))
    assert not ledger_keys(server)


def test_what_stands_beside_its_stream_is_enough_to_know_a_query(server: Server) -> None:
    """Only its record is gone."""
    checked = options(server.url)
    first, second = batch_of(0), batch_of(1)
    close(checked, first, write([frame(ROWS)], checked, first))
    with server.client() as client:
        client.delete(first.record)
    close(checked, second, write([frame(ROWS)], checked, second))
    assert numbers(server) == dict.fromkeys(ROWS, 2)


def test_a_named_write_may_begin_with_any_batch(server: Server) -> None:
    """The function of foreachBatch decides when it is written."""
    checked = options(server.url)
    batch = batch_of(7, query="q.totals")
    close(checked, batch, write([frame(ROWS)], checked, batch))
    assert numbers(server) == dict.fromkeys(ROWS, 1)
