"""The diagnosis is pure: random states are judged by a model that knows each entry, and what to do is a whole table."""

from __future__ import annotations

import pytest

from spark_streams.model.ids import StreamId
from spark_streams.source.findings import balance, diagnosis
from spark_streams.source.findings.finding import Finding, GroupUse, Kind, Start
from spark_streams.source.findings.messages import PROBLEMS, Place
from spark_streams.source.findings.remedies import REMEDIES, Act, Key, Strictness, error_of
from tools.simulation.core import MEMBER, faults, outcome_of, world_of

STATES = 3000
# Of one stream that is named. The other kinds are found elsewhere.
DIAGNOSED = {
    *(Kind.STREAM_GONE, Kind.STREAM_REPLACED, Kind.GROUP_GONE, Kind.SERVER_RESTORED, Kind.DELIVERIES_LOST),
    *(Kind.GROUP_BEHIND, Kind.CHECKPOINT_OLDER, Kind.CONSUMER_GONE, Kind.GROUP_AHEAD, Kind.CHECKPOINT_OLDER_UNMARKED),
    *(Kind.OTHERS_LEFT, Kind.REREAD_ASKED),
}


def test_random_states_are_mended_or_named() -> None:
    """More of them: python -m tools.simulation.core --states 5000000"""
    assert [fault for seed in range(1, STATES) for fault in faults(seed)] == []


@pytest.mark.parametrize("blind_to", ["_above", "_restored", "_replaced", "explained"])
def test_a_diagnosis_that_is_blind_somewhere_is_found(monkeypatch: pytest.MonkeyPatch, blind_to: str) -> None:
    nothing = [] if blind_to == "explained" else None
    monkeypatch.setattr(diagnosis._Stream, blind_to, lambda *given: nothing)
    assert any(True for seed in range(1, 2 * STATES) for _ in faults(seed))


@pytest.mark.parametrize("lost", [0, 1])
def test_an_account_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    monkeypatch.setattr(balance, "_missing", lambda *given: lost)
    assert any(True for seed in range(1, STATES) for _ in faults(seed))


def test_the_random_states_have_each_finding() -> None:
    found = {
        one.kind
        for seed in range(1, STATES)
        for lenient in (False, True)
        for one in outcome_of(world_of(seed), lenient).findings
    }
    assert found == DIAGNOSED


def test_there_is_a_remedy_for_each_finding() -> None:
    """A finding that is not of a group is one of a group that the query has for itself."""
    assert {key.kind for key in REMEDIES} == set(Kind) == set(PROBLEMS)
    assert {(key.kind, key.group_use) for key in REMEDIES if key.strictness is Strictness.STRICT} == {
        (key.kind, key.group_use) for key in REMEDIES if key.strictness is Strictness.LENIENT
    }
    assert all(Key(kind, Strictness.STRICT, GroupUse.EXCLUSIVE) in REMEDIES for kind in Kind)


@pytest.mark.parametrize("key", list(REMEDIES), ids=lambda key: "-".join(one.name.lower() for one in key))
def test_a_remedy_stops_the_query_with_an_advice_or_says_what_it_does(key: Key) -> None:
    remedy = REMEDIES[key]
    at = StreamId(5, 0)
    finding = Finding(key.kind, "s", key.group_use, at, at, at, Start(at), None, None, other="bob")
    if remedy.error is None:
        assert remedy.does
        assert remedy.advice is None
        assert Act.PUT_GROUP not in remedy.acts or Act.DROP_MARK in remedy.acts or key.kind is Kind.DELIVERIES_LOST
    else:
        told = str(error_of(finding, remedy, Place(MEMBER, "unix:///there")))
        assert remedy.advice is not None
        assert remedy.advice.short
        assert "stream 's'" in told
        assert "{" not in told.replace("{s}", "")
        assert not remedy.acts


def test_a_loss_stops_a_strict_query_wherever_a_lenient_one_counts_it() -> None:
    """But for a stream from which nothing was lost, and where nothing can be stopped any more."""
    for key, remedy in REMEDIES.items():
        if Act.COUNT in remedy.acts and key.kind is not Kind.LETTER_GONE:
            assert REMEDIES[key._replace(strictness=Strictness.STRICT)].error is not None
