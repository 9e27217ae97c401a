"""The checker sees every kind of wrong, and nothing where nothing is: histories made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.checker import Report, check
from chaos.history import Acknowledged, Added, History, Outcome, Row


def good() -> History:
    """Three batches of two entries of one stream, in two partitions each, acknowledged after their commits."""
    history = History()
    for n in range(6):
        place = ("s", f"{100 + n}-0")
        history.added.append(Added("s", ("p", n), Outcome.OK, place[1]))
        history.rows.append(Row(place, ("p", n), batch=n // 2, partition=n % 2, attempt=0, position=0))
        history.acknowledged.append(Acknowledged(place, committed=n // 2))
    return history


def faults(history: History) -> dict[str, int]:
    return check(history).faults()


def test_a_good_history_has_no_faults() -> None:
    report = check(good())
    assert not report
    assert report == Report()
    assert str(report) == "nothing is wrong"


def test_a_missing_row_is_lost_unless_the_entry_was_taken_away() -> None:
    history = good()
    missing = history.rows.pop()
    history.acknowledged.pop()
    assert check(history).lost == [missing.value]
    history.gone = {missing.place}
    assert not check(history)
    history.gone, history.taken = set(), {missing.place}
    assert not check(history)


def test_what_only_an_attempt_wrote_that_does_not_count_is_lost() -> None:
    history = good()
    history.rows[-1] = replace(history.rows[-1], kept=False)
    assert faults(history) == {"lost": 1, "changed": 1, "early": 1}


def test_an_xadd_of_unknown_outcome_may_arrive_once_and_one_that_failed_may_not() -> None:
    history = good()
    history.added[0] = Added("s", ("p", 0), Outcome.UNKNOWN)
    assert not check(history)
    history.rows = history.rows[1:]
    history.acknowledged = history.acknowledged[1:]
    assert not check(history)
    history = good()
    history.added[0] = Added("s", ("p", 0), Outcome.FAILED)
    assert check(history).phantom == [("p", 0)]


def test_a_row_twice_is_duplicated_whether_in_one_batch_or_in_two() -> None:
    for batch in (1, 2):
        history = good()
        history.rows.append(replace(history.rows[2], batch=batch, partition=1, position=1))
        assert check(history).duplicated == [("p", 2)]


def test_a_value_under_two_ids_is_duplicated() -> None:
    history = good()
    history.added[0] = Added("s", ("p", 0), Outcome.UNKNOWN)
    history.rows.append(replace(history.rows[0], place=("s", "99-0"), batch=3))
    assert set(faults(history)) == {"duplicated", "reordered", "unseen"}


def test_rows_below_an_earlier_one_of_their_stream_are_reordered_unless_claimed() -> None:
    history = good()
    history.rows[2], history.rows[3] = (
        replace(history.rows[2], partition=1),
        replace(history.rows[3], partition=0),
    )
    assert check(history).reordered == [history.rows[2].place]
    history.unordered = {history.rows[2].place}
    assert not check(history)
    # Streams have no order between them.
    history = good()
    history.added[0] = replace(history.added[0], stream="t", id="999-0")
    history.rows[0] = replace(history.rows[0], place=("t", "999-0"))
    history.acknowledged[0] = replace(history.acknowledged[0], place=("t", "999-0"))
    assert not check(history)


def test_a_row_that_nobody_sent_or_that_another_consumer_has_is_a_phantom() -> None:
    history = good()
    history.added = history.added[1:]
    assert check(history).phantom == [("p", 0)]
    history = good()
    history.taken = {history.rows[3].place}
    assert check(history).phantom == [("p", 3)]


def test_an_acknowledgement_before_the_commit_log_or_without_a_row_is_early() -> None:
    history = good()
    history.acknowledged[2] = replace(history.acknowledged[2], committed=0)
    assert check(history).early == [history.rows[2].place]
    history = good()
    history.acknowledged.append(Acknowledged(("s", "500-0"), committed=2))
    assert check(history).early == [("s", "500-0")]
    history.gone = {("s", "500-0")}
    assert not check(history)


def test_a_row_that_is_neither_pending_nor_seen_acknowledged_is_unseen() -> None:
    history = good()
    history.acknowledged.pop()
    assert check(history).unseen == [history.rows[-1].place]
    history.forgotten = {history.rows[-1].place}
    assert not check(history)
    history.forgotten = set()
    history.acks_seen = False
    assert not check(history)


def test_a_replay_that_holds_other_rows_has_changed() -> None:
    history = good()
    history.rows.append(replace(history.rows[0], batch=2, kept=False))
    assert check(history).changed == [(2, history.rows[0].place)]


def test_a_failed_attempt_that_wrote_the_same_rows_is_fine() -> None:
    history = good()
    history.rows.append(replace(history.rows[0], attempt=1, kept=False))
    assert not check(history)


@pytest.mark.parametrize("kind", ["pending", "letters"])
def test_what_is_left_pending_and_what_is_buried_twice_is_named(kind: str) -> None:
    history = good()
    place = history.rows[0].place
    if kind == "pending":
        history.pending = [place]
        assert str(check(history)) == f"pending: {place}"
    else:
        history.letters = [place, place]
        assert check(history).buried_twice == [place]
