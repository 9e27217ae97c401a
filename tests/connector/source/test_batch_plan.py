"""Where a batch read of one stream begins and ends, without a server and without Spark."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.source.batch_plan import Narrowing, StreamHead, part_of
from tests.connector.source.held_ids import IDS, head_of, inside


@given(st.sets(IDS, max_size=20), IDS, IDS)
def test_a_run_holds_exactly_what_lies_above_its_start_up_to_its_end(
    ids: set[StreamId], after: StreamId, last: StreamId
) -> None:
    held = sorted(ids)
    run = part_of("s", head_of(held), after, last, Narrowing())
    assert inside(run, held) == [one for one in held if after < one <= last]
    assert run is None or 1 <= run.count <= len(held)


def test_a_run_ends_at_the_newest_entry_and_knows_the_size_of_a_whole_stream() -> None:
    head = StreamHead(StreamId(5, 0), StreamId(9, 3), 700, 20)
    whole = part_of("s", head, MIN_ID, MAX_ID, Narrowing())
    assert whole is not None
    assert (whole.range.after, whole.range.last, whole.count) == (StreamId(5, 0).previous(), StreamId(9, 3), 700)


def test_an_empty_stream_has_no_run() -> None:
    assert part_of("s", StreamHead(None, None, 0), MIN_ID, MAX_ID, Narrowing()) is None
