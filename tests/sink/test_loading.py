"""A load that is killed, doubled, cut off or started again appends every row of its input once, in order."""

from __future__ import annotations

import random
import threading
import time

import pytest

from spark_streams.errors import LedgerError, WrongKeyTypeError
from spark_streams.sink.counts import Load, counts_of, forget_counts
from spark_streams.sink.loading import append_in_order
from spark_streams.wire.address import Address
from spark_streams.wire.connection import Connection
from tests.proxy import Proxy
from tests.sending import KilledError, before_sending
from tests.servers import Server
from tests.sink.writing import dying, frame, options

ROWS = list(range(500))
FLIGHTS = Load("flights", "a.csv")


def order(server: Server) -> list[int]:
    """The stream's rows, in its order."""
    with server.client() as client:
        return [int(fields[b"n"]) for _, fields in client.xrange("out")]


def test_a_killed_load_goes_on_where_it_was(server: Server) -> None:
    """Whatever batches and chunks the rows come in the second time."""
    with pytest.raises(KilledError):
        append_in_order(dying([frame(ROWS[:230])]), options(server.url, chunkSize="64"), FLIGHTS)
    assert order(server) == ROWS[:230]
    rows = append_in_order([frame(ROWS[:300]), frame(ROWS[300:])], options(server.url, chunkSize="70"), FLIGHTS)
    assert (rows, order(server)) == (len(ROWS), ROWS)


def test_a_finished_load_adds_nothing_and_an_input_that_has_grown_what_is_new(server: Server) -> None:
    for rows in (ROWS[:400], ROWS[:400], ROWS):
        append_in_order([frame(rows)], options(server.url, chunkSize="64"), FLIGHTS)
    assert order(server) == ROWS
    with Connection(Address.parse(server.url)) as connection:
        assert counts_of(connection, "out", "flights")["a.csv"].rows == len(ROWS)
        connection.execute("DEL", "out")
        assert counts_of(connection, "out", "flights") == {}, "what was loaded is gone with the stream"


def test_each_input_and_each_name_is_counted_for_itself(server: Server) -> None:
    checked = options(server.url)
    for load in (FLIGHTS, Load("flights", "b.csv"), Load("again", "a.csv"), FLIGHTS):
        append_in_order([frame(ROWS[:10])], checked, load)
    with Connection(Address.parse(server.url)) as connection:
        forget_counts(connection, "out", "again")
    append_in_order([frame(ROWS[:10])], checked, Load("again", "a.csv"))
    assert order(server) == ROWS[:10] * 4


@pytest.mark.parametrize(
    ("now", "message"), [([7, *ROWS[1:]], "has other rows there now"), (ROWS[:199], "has only 199 rows")]
)
def test_an_input_that_has_changed_is_an_error(server: Server, now: list[int], message: str) -> None:
    with pytest.raises(KilledError):
        append_in_order(dying([frame(ROWS[:200])]), options(server.url), FLIGHTS)
    with pytest.raises(
        LedgerError, match=f"200 rows of a.csv were loaded into stream 'out' as 'flights', and .*{message}"
    ):
        append_in_order([frame(now)], options(server.url), FLIGHTS)
    assert order(server) == ROWS[:200]


def test_loads_side_by_side_append_each_row_once(server: Server) -> None:
    """A speculative twin, or two processes that load the same."""
    checked = [options(server.url, chunkSize=str(size)) for size in (7, 16, 33)]
    failed: list[BaseException] = []

    def load(which: int) -> None:
        try:
            append_in_order([frame(ROWS)], checked[which], FLIGHTS)
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    twins = [threading.Thread(target=load, args=(which,)) for which in range(3)]
    for twin in twins:
        twin.start()
    for twin in twins:
        twin.join()
    assert not failed
    assert order(server) == ROWS


@pytest.mark.parametrize("seed", range(3))
def test_connections_that_are_cut_double_nothing(server: Server, seed: int) -> None:
    """Cut at any byte, also between EXEC and its reply."""
    chance = random.Random(seed)
    rows = list(range(1500))
    with Proxy(server.url) as proxy:
        for _ in range(12):
            proxy.cut(*chance.choice([("up", chance.randrange(1, 30_000)), ("down", chance.randrange(1, 9_000))]))
        append_in_order([frame(rows[:700]), frame(rows[700:])], options(proxy.url, chunkSize="150"), FLIGHTS)
        assert proxy.cut_so_far >= 3
    assert order(server) == rows


def test_a_full_server_is_waited_for(server: Server) -> None:
    with server.client() as admin:

        def batches():  # type: ignore[no-untyped-def]
            yield frame(ROWS[:100])
            admin.config_set("maxmemory", 1_000_000 if server.kind == "redis" else 1_000)
            threading.Timer(0.4, lambda: admin.config_set("maxmemory", 0)).start()
            yield frame(ROWS[100:])

        append_in_order(batches(), options(server.url, chunkSize="40"), FLIGHTS)
    assert order(server) == ROWS


def test_a_rate_is_kept(server: Server) -> None:
    """100 rows a second: after the first ten, ten more each tenth of a second."""
    began = time.monotonic()
    append_in_order([frame(ROWS[:60])], options(server.url), Load("slow", "a.csv", rate=100))
    assert 0.5 <= time.monotonic() - began < 30
    assert order(server) == ROWS[:60]


def test_rows_that_the_server_refuses_are_not_counted(server: Server) -> None:
    """The stream's ids come to their end in the middle of a chunk: what is in it is counted, the rest is an error."""
    with server.client() as client:
        client.xadd("out", {"n": 0}, id=f"{2**64 - 1}-{2**64 - 4}")
    with pytest.raises(Exception, match="exhausted the last possible ID|equal or smaller"):
        append_in_order([frame(ROWS[1:])], options(server.url, chunkSize="100"), FLIGHTS)
    assert order(server) == [0, 1, 2, 3]
    with Connection(Address.parse(server.url)) as connection:
        assert counts_of(connection, "out", "flights")["a.csv"].rows == 3


def test_a_key_of_another_type_is_seen_before_a_row_is_counted(server: Server) -> None:
    """A load that is killed when its rows are refused has not counted them."""

    def killed(connection: Connection, request: bytes) -> None:
        if b"MULTI" not in request:  # the count is corrected
            raise KilledError

    with server.client() as client:
        client.set("out", "text")
        with before_sending(b"HSET", act=killed), pytest.raises(WrongKeyTypeError):
            append_in_order([frame(ROWS)], options(server.url), FLIGHTS)
        client.delete("out")
    append_in_order([frame(ROWS)], options(server.url), FLIGHTS)
    assert order(server) == ROWS
