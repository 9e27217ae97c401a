"""What a source makes of a promoted replica that lagged, row by row of docs/reference/data-loss.md: the same
tests for one server with a replica (tests/legs/sentinel) and for a cluster (tests/legs/redis_cluster)."""

from __future__ import annotations

from typing import Any

import pytest

from spark_streams.connector.errors import DataLossError, StreamStateError
from spark_streams.connector.operator_commands import seek_command
from spark_streams.connector.source.stream_reader import StreamReader
from tests.lagging import Lagging, ask
from tools.driving import ALL, NEVER_AHEAD, begin, drain, positions, read, reader, stop_all

LENIENT = {"failOnDataLoss": "false"}
RUNS = pytest.mark.parametrize("restarted", [False, True], ids=["going on", "restarted"])


def add(lagging: Lagging, count: int, first: int = 0) -> None:
    """Entries n = first, first+1, …"""
    ask(lagging, *[("XADD", "s", "*", "n", n) for n in range(first, first + count)])


def pending(lagging: Lagging) -> int:
    return int(ask(lagging, ("XPENDING", "s", "g"))[0][0])


def lost(one: StreamReader) -> int:
    counts: Any = one.reportLatestOffset().get("lost", {})
    return int(counts.get("s", 0))


def started_again(lagging: Lagging, **options: str) -> StreamReader:
    """The query's process has died, and its lease with it."""
    stop_all()
    ask(lagging, ("DEL", "rstream:lease:{s}:g:spark"))
    return reader(lagging.server, limits=NEVER_AHEAD, **options)


def batch(one: StreamReader, at: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """The next batch, read, as if in Spark's commit log now."""
    end = one.latestOffset(at, ALL)
    return end, read(one, at, end)


class LossesOfEntries:
    """Fixture `lagging` is the subclass' own."""

    @RUNS
    def test_acknowledgements_are_made_again(self, lagging: Lagging, restarted: bool) -> None:
        add(lagging, 20)
        one = reader(lagging.server)
        end, _ = batch(one, begin(one))
        lagging.cut_off("s")
        assert one.latestOffset(end, ALL) == end
        assert pending(lagging) == 0
        lagging.promote()
        assert pending(lagging) == 20
        one = started_again(lagging) if restarted else one
        assert one.latestOffset(end, ALL) == end
        assert pending(lagging) == 0

    def test_entries_that_were_claimed_are_claimed_and_read_again(self, lagging: Lagging) -> None:
        """Nobody but the replica knows of them any more: they are pending for the dead consumer."""
        add(lagging, 20)
        one = reader(lagging.server)
        start = begin(one)
        ask(lagging, ("XREADGROUP", "GROUP", "g", "bob", "COUNT", 5, "STREAMS", "s", ">"))
        before, _ = batch(one, start)
        assert one.latestOffset(before, ALL) == before
        one = started_again(lagging, claimIdle="1 ms")
        lagging.cut_off("s")
        end, first = batch(one, before)
        assert one.latestOffset(end, ALL) == end
        assert (first, pending(lagging)) == ([0, 1, 2, 3, 4], 0)
        lagging.promote()
        assert drain(one, None, end) == [first]
        assert pending(lagging) == 0

    @RUNS
    def test_a_batch_whose_deliveries_are_lost_is_read_again(self, lagging: Lagging, restarted: bool) -> None:
        add(lagging, 20)
        one = reader(lagging.server)
        start = begin(one)
        lagging.cut_off("s")
        end = one.latestOffset(start, ALL)
        lagging.promote()
        assert pending(lagging) == 0
        one = started_again(lagging) if restarted else one
        assert read(one, start, end) == list(range(20))
        add(lagging, 3, 20)
        assert drain(one, None, end) == [[20, 21, 22]]
        assert lost(one) == 0

    @RUNS
    @pytest.mark.parametrize("options", [{}, LENIENT, {"noAck": "true"}], ids=str)
    def test_where_deliveries_of_a_committed_batch_are_lost_the_group_is_set_forward(
        self, lagging: Lagging, restarted: bool, options: dict[str, str]
    ) -> None:
        """The checkpoint knows that they were read, and the stream has them: nothing is lost."""
        add(lagging, 30)
        one = reader(lagging.server, limits=NEVER_AHEAD, **options)
        before, _ = batch(one, begin(one))
        assert one.latestOffset(before, ALL) == before
        add(lagging, 20, 30)
        lagging.cut_off("s")
        end, second = batch(one, before)
        assert second == list(range(30, 50))
        lagging.promote()
        one = started_again(lagging, **options) if restarted else one
        assert one.latestOffset(end, ALL) == end
        add(lagging, 3, 50)
        assert drain(one, None, end) == [[50, 51, 52]]
        assert (lost(one), pending(lagging)) == (0, 0)

    def test_in_the_first_batch_too(self, lagging: Lagging) -> None:
        add(lagging, 30)
        one = reader(lagging.server, limits=NEVER_AHEAD)
        start = begin(one)
        lagging.cut_off("s")
        end, _ = batch(one, start)
        assert one.latestOffset(end, ALL) == end
        lagging.promote()
        add(lagging, 3, 30)
        assert drain(started_again(lagging), None, end) == [[30, 31, 32]]
        assert pending(lagging) == 0

    @pytest.mark.parametrize("options", [{}, LENIENT], ids=str)
    def test_where_others_read_from_the_group_an_error_says_what_to_do(
        self, lagging: Lagging, options: dict[str, str]
    ) -> None:
        """With failOnDataLoss=false the group decides: the entries are read again."""
        add(lagging, 30)
        one = reader(lagging.server, limits=NEVER_AHEAD, **options)
        start = begin(one)
        ask(lagging, ("XGROUP", "CREATECONSUMER", "s", "g", "bob"))
        lagging.cut_off("s")
        end, _ = batch(one, start)
        lagging.promote()
        if options:
            assert drain(one, None, end) == [list(range(30))]
            return
        with pytest.raises(StreamStateError, match="Other consumers use this group") as error:
            one.latestOffset(end, ALL)
        position = positions(end)["s"]
        assert f"({seek_command('s', 'g', position, 'spark')})" in str(error.value)
        ask(lagging, ("XGROUP", "SETID", "s", "g", position))
        add(lagging, 3, 30)
        assert drain(started_again(lagging, **options), None, end) == [[30, 31, 32]]

    @RUNS
    @pytest.mark.parametrize("then", ["nothing", "new entries"])
    def test_a_replica_that_does_not_know_how_much_a_shared_group_has_read_is_no_loss(
        self, lagging: Lagging, restarted: bool, then: str
    ) -> None:
        """Redis 7.0 does not tell its replicas (R90)."""
        add(lagging, 30)
        one = reader(lagging.server, limits=NEVER_AHEAD)
        start = begin(one)
        ask(lagging, ("XREADGROUP", "GROUP", "g", "bob", "COUNT", 5, "STREAMS", "s", ">"))
        end, first = batch(one, start)
        assert first == list(range(5, 30))
        if then == "new entries":
            add(lagging, 10, 30)
        assert one.latestOffset(end, ALL) != end or then == "nothing"
        lagging.cut_off("s")
        lagging.promote()
        one = started_again(lagging) if restarted else one
        add(lagging, 3, 40)
        new = [n for some in drain(one, None, end) for n in some]
        assert new == ([*range(30, 40)] if then == "new entries" else []) + [40, 41, 42]
        assert lost(one) == 0

    @RUNS
    @pytest.mark.parametrize("then", ["nothing", "new entries"])
    def test_lost_entries_of_a_committed_batch_are_named_or_counted(
        self, lagging: Lagging, restarted: bool, then: str
    ) -> None:
        add(lagging, 10)
        one = reader(lagging.server, limits=NEVER_AHEAD)
        before, _ = batch(one, begin(one))
        lagging.cut_off("s")
        add(lagging, 20, 10)
        end, _ = batch(one, before)
        assert one.latestOffset(end, ALL) == end
        lagging.promote()
        if then == "new entries":
            add(lagging, 5, 100)
        one = started_again(lagging) if restarted else one
        with pytest.raises(DataLossError, match="the server has lost at least .* entries that it had"):
            one.latestOffset(end, ALL)
        lenient = started_again(lagging, **LENIENT)
        new = drain(lenient, None, end)
        assert [n for some in new for n in some] == ([100, 101, 102, 103, 104] if then == "new entries" else [])
        assert lost(lenient) == (15 if then == "new entries" else 20)  # at least
        add(lagging, 3, 200)
        lenient.latestOffset(end, ALL)
        assert pending(lagging) >= 3

    def test_lost_entries_that_were_not_read_are_seen_by_nobody(self, lagging: Lagging) -> None:
        add(lagging, 10)
        one = reader(lagging.server, limits=NEVER_AHEAD)
        end, _ = batch(one, begin(one))
        assert one.latestOffset(end, ALL) == end
        lagging.cut_off("s")
        add(lagging, 20, 10)
        lagging.promote()
        add(lagging, 3, 100)
        assert drain(one, None, end) == [[100, 101, 102]]
        assert lost(one) == 0
