"""The checker sees every kind of wrong, and nothing where nothing is: histories made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_streams.operations.verify.history import Added, Row
from spark_streams.operations.verify.history import Outcome as Sent
from spark_streams.operations.verify.judge import Fault, Judgement
from tools.chaos.stage import rows_of_entries
from tools.history import Acknowledged, History, check_history


def good() -> History:
    """Three batches of two entries of one stream, in two partitions each, acknowledged after their commits."""
    history = History()
    for n in range(6):
        place = ("s", f"{100 + n}-0")
        history.added.append(Added("s", ("p", n), Sent.OK, place[1]))
        history.rows.append(Row(place, ("p", n), batch=n // 2, partition=n % 2, attempt=0, position=0))
        history.acknowledged.append(Acknowledged(place, committed=n // 2))
    return history


def named(history: History, fault: Fault) -> list[str]:
    return check_history(history).named(fault)


def at(*rows: Row) -> list[str]:
    """Their places, as the judge names them."""
    return [" ".join(row.place) for row in rows]


def faults(history: History) -> dict[str, int]:
    return check_history(history).counts()


def test_a_good_history_has_no_faults() -> None:
    report = check_history(good())
    assert not report
    assert report == Judgement()
    assert str(report) == "nothing is wrong"


def test_a_missing_row_is_lost_unless_the_entry_was_taken_away() -> None:
    history = good()
    missing = history.rows.pop()
    history.acknowledged.pop()
    assert named(history, Fault.LOST) == ["p 5"]
    history.removed = {missing.place}
    assert not check_history(history)


def test_what_only_an_attempt_wrote_that_does_not_count_is_lost() -> None:
    history = good()
    history.rows[-1] = replace(history.rows[-1], kept=False)
    assert faults(history) == {"lost": 1, "changed replay": 1, "early": 1}


def test_an_xadd_of_unknown_outcome_may_arrive_once_and_one_that_failed_may_not() -> None:
    history = good()
    history.added[0] = Added("s", ("p", 0), Sent.UNKNOWN)
    assert not check_history(history)
    history.rows = history.rows[1:]
    history.acknowledged = history.acknowledged[1:]
    assert not check_history(history)
    history = good()
    history.added[0] = Added("s", ("p", 0), Sent.FAILED)
    assert named(history, Fault.PHANTOM) == ["p 0"]


def test_a_row_twice_is_duplicated_whether_in_one_batch_or_in_two() -> None:
    for batch in (1, 2):
        history = good()
        history.rows.append(replace(history.rows[2], batch=batch, partition=1, position=1))
        assert named(history, Fault.TWICE) == ["p 2"]


def test_a_value_under_two_ids_is_duplicated() -> None:
    history = good()
    history.added[0] = Added("s", ("p", 0), Sent.UNKNOWN)
    history.rows.append(replace(history.rows[0], place=("s", "99-0"), batch=3))
    assert set(faults(history)) == {"twice", "reordered", "unseen"}


def test_rows_below_an_earlier_one_of_their_stream_are_reordered_unless_claimed() -> None:
    history = good()
    history.rows[2], history.rows[3] = (
        replace(history.rows[2], partition=1),
        replace(history.rows[3], partition=0),
    )
    assert named(history, Fault.REORDERED) == at(history.rows[2])
    history.unordered = {history.rows[2].place}
    assert not check_history(history)
    # Streams have no order between them.
    history = good()
    history.added[0] = replace(history.added[0], stream="t", id="999-0")
    history.rows[0] = replace(history.rows[0], place=("t", "999-0"))
    history.acknowledged[0] = replace(history.acknowledged[0], place=("t", "999-0"))
    assert not check_history(history)


def test_a_row_that_nobody_sent_is_a_phantom() -> None:
    history = good()
    history.added = history.added[1:]
    assert named(history, Fault.PHANTOM) == ["p 0"]


def test_an_acknowledgement_before_the_commit_log_or_without_a_row_is_early() -> None:
    history = good()
    history.acknowledged[2] = replace(history.acknowledged[2], committed=0)
    assert named(history, Fault.EARLY) == at(history.rows[2])
    history = good()
    history.acknowledged.append(Acknowledged(("s", "500-0"), committed=2))
    assert named(history, Fault.EARLY) == ["s 500-0"]
    history.removed = {("s", "500-0")}
    assert not check_history(history)


def test_a_row_that_is_neither_pending_nor_seen_acknowledged_is_unseen() -> None:
    history = good()
    history.acknowledged.pop()
    assert named(history, Fault.UNSEEN) == at(history.rows[-1])
    history.acks_seen = False
    assert not check_history(history)


def test_a_replay_that_holds_other_rows_has_changed() -> None:
    history = good()
    history.rows.append(replace(history.rows[0], batch=2, kept=False))
    assert named(history, Fault.CHANGED) == at(history.rows[0])


def test_a_failed_attempt_that_wrote_the_same_rows_is_fine() -> None:
    history = good()
    history.rows.append(replace(history.rows[0], attempt=1, kept=False))
    assert not check_history(history)


@pytest.mark.parametrize("kind", ["pending", "letters"])
def test_what_is_left_pending_and_what_is_buried_twice_is_named(kind: str) -> None:
    history = good()
    place = history.rows[0].place
    if kind == "pending":
        history.pending = [place]
        assert str(check_history(history)) == f"pending: {' '.join(place)}"
    else:
        history.dead_letters = [place, place]
        assert named(history, Fault.TWICE) == ["p 0"]


def streamed() -> History:
    """The good history with a stream for a sink: two tasks a batch have written into it side by side."""
    history = good()
    lanes = [replace(row, lane=("out", row.partition, row.partition)) for row in history.rows]
    history.rows = [replace(lanes[at], position=n) for n, at in enumerate([1, 0, 2, 3, 5, 4])]
    return history


def test_in_a_stream_only_rows_of_one_task_and_of_two_batches_have_an_order() -> None:
    assert not check_history(streamed())
    history = streamed()
    late, early = history.rows[0], history.rows[2]  # of batches 0 and 1
    history.rows[0], history.rows[2] = replace(late, position=2), replace(early, position=0)
    assert named(history, Fault.REORDERED) == at(history.rows[1], late)
    history = streamed()
    history.rows[1] = replace(history.rows[1], lane=("out", 1, 1))  # one task wrote both
    assert named(history, Fault.REORDERED) == at(history.rows[1])
    # A batch that was run again by a driver that cut it otherwise: together in one of the two.
    history.rows[1] = replace(history.rows[1], lane=("out", 0, 1))
    assert not check_history(history)


def test_a_row_twice_in_a_stream_is_duplicated_and_one_that_no_task_had_is_a_phantom() -> None:
    history = streamed()
    history.rows.append(replace(history.rows[0], position=6))
    assert set(faults(history)) == {"twice", "reordered"}
    history = streamed()
    history.rows.append(Row(("s", "7-0"), ("x", 1), -1, -1, -1, 6, lane=("out", -1, -1)))
    assert named(history, Fault.PHANTOM) == ["x 1"]


def test_the_entries_of_a_stream_are_rows_of_the_batch_that_had_them() -> None:
    """As it was run last; in the lane of the partitions that had them first and last."""

    def attempt(run: int, partition: int, numbers: list[int]) -> list[Row]:
        return [Row(("s", f"{n}-0"), ("p", n), 4, partition, run, at, kept=False) for at, n in enumerate(numbers)]

    tried = [*attempt(1, 0, [1, 2]), *attempt(1, 1, [3]), *attempt(2, 0, [1]), *attempt(2, 1, [2, 3])]
    entries = [{"p": "p", "n": str(n), "source": "s", "entry": f"{n}-0"} for n in (1, 3, 2, 3)]
    rows = rows_of_entries("out", entries, tried)
    assert [row.value[1] for row in rows] == [1, 3, 2, 3]
    assert [row.position for row in rows] == [0, 1, 2, 3]
    assert [row.lane for row in rows] == [("out", 0, 0), ("out", 1, 1), ("out", 0, 1), ("out", 1, 1)]
    assert {(row.batch, row.attempt, row.kept) for row in rows} == {(4, 2, True)}
    assert rows_of_entries("out", [{**entries[0], "entry": "9-0"}], tried)[0].batch == -1


def test_a_good_entry_that_became_a_dead_letter_is_buried() -> None:
    history = good()
    place = history.rows.pop().place
    history.dead_letters = [place]
    assert faults(history) == {"buried": 1}


def test_an_entry_that_no_column_takes_must_become_one_dead_letter() -> None:
    history = good()
    place = history.rows.pop().place
    history.acknowledged = [one for one in history.acknowledged if one.place != place]
    assert faults(history) == {"lost": 1}
    history.dead_letters, history.bad = [place], {place}
    assert faults(history) == {}
