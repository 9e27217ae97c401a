"""What the exactly-once sink makes of a promoted replica that lagged, row by row of docs/reference/data-loss.md: the
same tests for one server with a replica (tests/legs/sentinel) and for a cluster (tests/legs/redis_cluster)."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_streams.connector.errors import LedgerError, ReplicationError, RetriesExhaustedError
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.wire.address import Patience
from tests.connector.sink.writing import batch_of, close, frame, options, write
from tests.lagging import Lagging, ask
from tests.remedies import hset_of
from tools.patience import with_patience

ROWS = list(range(100, 160))
ALL_ROWS = Counter([1, 2, 3, *ROWS, 7, 8])
IMPATIENT = Patience(first_pause=0.001, limit=0.5, replicas=0.3)


def sink(lagging: Lagging, **given: str) -> SinkOptions:
    return options(lagging.server.url, chunkSize="20", **given)


def batch_done(lagging: Lagging, number: int, rows: list[int], query: str = "q", **given: str) -> None:
    """One batch, as Spark writes it, all of it by one task."""
    checked, batch = sink(lagging, **given), batch_of(number, query)
    close(checked, batch, write([frame(rows)] if rows else [], checked, batch))


def rows_in(lagging: Lagging, *streams: str) -> Counter[int]:
    """What is in the streams."""
    found: Counter[int] = Counter()
    for entries in ask(lagging, *[("XRANGE", stream, "-", "+") for stream in streams or ("out",)]):
        found.update(int(dict(zip(fields[::2], fields[1::2], strict=True))[b"n"]) for _, fields in entries)
    return found


def obey(lagging: Lagging, error: pytest.ExceptionInfo[LedgerError]) -> None:
    """Do what the error says, but for adding what is missing."""
    ask(lagging, ("HSET", *hset_of(error.value.message)))


class LossesOfRows:
    """Fixture `lagging` is the subclass' own. lost: what is said of a batch of which everything is lost."""

    lost = r"batch 1 of query q\d+ came before batch 2, but the server has no batch after batch 0. Cause: a replica"

    def query(self, lagging: Lagging) -> str:
        """A query whose record stands on the master of stream `out`."""
        return next(f"q{n}" for n in range(1000) if lagging.has_both("out", f"rstream:sink:q{n}"))

    def test_rows_of_a_batch_that_is_not_closed_are_written_again(self, lagging: Lagging) -> None:
        batch_done(lagging, 0, [1, 2, 3])
        checked, batch = sink(lagging), batch_of(1)
        first = write([frame(ROWS[:20])], checked, batch, partition=0)
        lagging.cut_off("out")
        second = write([frame(ROWS[20:])], checked, batch, partition=1)
        lagging.promote()
        with pytest.raises(LedgerError, match=r"60 rows .* the ledger has 20. Cause: a replica that lagged behind"):
            close(checked, batch, first, second)
        batch_done(lagging, 1, ROWS)
        batch_done(lagging, 2, [7, 8])
        assert rows_in(lagging) == ALL_ROWS

    @pytest.mark.parametrize("first", [True, False], ids=["the stream's first batch", "a later batch"])
    @pytest.mark.parametrize("then", ["out", "{out}2"])
    def test_rows_that_are_lost_together_with_the_end_of_their_batch_are_noticed(
        self, lagging: Lagging, first: bool, then: str
    ) -> None:
        """Also where all that the stream's node knows of the query is lost with them."""
        query = self.query(lagging)
        batch_done(lagging, 0, [1, 2, 3], query, stream="{out}0" if first else "out")
        lagging.cut_off("out")
        batch_done(lagging, 1, ROWS, query)
        lagging.promote()
        for _ in range(2):
            with pytest.raises(LedgerError, match=self.lost) as error:
                batch_done(lagging, 2, [7, 8], query, stream=then)
        obey(lagging, error)
        batch_done(lagging, 2, [7, 8], query, stream=then)
        batch_done(lagging, 3, [9], query, stream=then)
        assert rows_in(lagging, "{out}0", "out", "{out}2") == Counter([1, 2, 3, 7, 8, 9])

    def test_a_closed_batch_that_is_run_again_says_what_is_lost_and_writes_it(self, lagging: Lagging) -> None:
        """Its driver died before Spark's commit log had it."""
        query = self.query(lagging)
        batch_done(lagging, 0, [1, 2, 3], query)
        lagging.cut_off("out")
        batch_done(lagging, 1, ROWS, query)
        lagging.promote()
        if not lagging.has_both("out", f"rstream:sink:{query}"):  # what says that it is closed
            with pytest.raises(LedgerError, match=r"batch 1 .* was complete, with 60 rows") as error:
                batch_done(lagging, 1, ROWS, query)
            obey(lagging, error)
        batch_done(lagging, 1, ROWS, query)
        batch_done(lagging, 2, [7, 8], query)
        assert rows_in(lagging) == ALL_ROWS

    def test_a_lost_closing_alone_is_no_lost_row(self, lagging: Lagging) -> None:
        query = self.query(lagging)
        for number in range(3):
            batch_done(lagging, number, [number], query)
        lagging.cut_off("out")
        batch_done(lagging, 3, [], query)
        lagging.promote()
        batch_done(lagging, 3, [], query)
        batch_done(lagging, 4, [4], query)
        assert rows_in(lagging) == Counter([0, 1, 2, 4])

    def test_wait_replicas_ends_neither_task_nor_batch_that_no_replica_has(self, lagging: Lagging) -> None:
        batch_done(lagging, 0, [1, 2, 3], waitReplicas="1")
        checked, batch = with_patience(sink(lagging, waitReplicas="1"), IMPATIENT), batch_of(1)
        written = write([frame(ROWS[:20])], checked, batch)
        lagging.cut_off("out", "rstream:sink:q")
        with pytest.raises(ReplicationError, match="0 of 1 replicas"):
            close(checked, batch, written)
        with pytest.raises(ReplicationError, match="0 of 1 replicas"):
            write([frame(ROWS[20:])], checked, batch, partition=1)
        lagging.promote()
        batch_done(lagging, 1, ROWS)
        batch_done(lagging, 2, [7, 8])
        assert rows_in(lagging) == ALL_ROWS


class RowsThatAreRefused:
    """Fixture `lagging` is the subclass' own, of servers with min-replicas-to-write."""

    def test_a_master_without_replica_takes_none(self, lagging: Lagging) -> None:
        batch_done(lagging, 0, [1, 2, 3])
        lagging.cut_off("out")
        batch = batch_of(1)
        with pytest.raises(RetriesExhaustedError, match="NOREPLICAS"):
            write([frame(ROWS)], with_patience(sink(lagging), IMPATIENT), batch)
        lagging.promote()
        batch_done(lagging, 1, ROWS)
        batch_done(lagging, 2, [7, 8])
        assert rows_in(lagging) == ALL_ROWS
