"""Healthy streams are recognized by a few comparisons. The result is always that of the complete examination."""

import random

from spark_streams.model.commit_mark import Mark
from spark_streams.model.ids import StreamId
from spark_streams.source.findings.balance import Known, StreamFacts, balance, expected_count
from spark_streams.source.findings.diagnosis import _is_at_checkpoint, _Stream
from spark_streams.source.findings.group_state import GroupState, OtherConsumer
from spark_streams.source.findings.snapshot import Run, Snapshot
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Count, Offset
from spark_streams.wire.replies.xinfo import StreamState
from tests.seeds import TIMES, first_seed

MEMBER = Membership(("s",), "g", "spark")


def some_id(chance: random.Random) -> StreamId:
    return StreamId(chance.randint(0, 4), 0)


def some_head(chance: random.Random) -> StreamState:
    first = chance.choice([None, some_id(chance)])
    added = chance.choice([None, 2, 3, 4])
    return StreamState(some_id(chance), chance.randint(0, 4), added, first, chance.random() < 0.9)


def some_group(chance: random.Random) -> GroupState:
    read, lag = chance.choice([None, 1, 2, 3]), chance.choice([None, 0, 1, 2])
    others = chance.choice([(), (), (), (OtherConsumer("other", 0),)])
    released = chance.choice([0, 0, 1])
    return GroupState(some_id(chance), read, lag, 0, chance.random() < 0.9, others, read is not None, released)


def some_count(chance: random.Random) -> Count:
    flags = [chance.random() < 0.1 for _ in range(2)]
    return Count(chance.randint(0, 4), chance.randint(0, 4), chance.choice([0, 0, 1]), *flags)


def test_the_account_of_a_healthy_stream_is_that_of_balance() -> None:
    chance = random.Random(first_seed())
    healthy = 0
    for _ in range(50_000 * TIMES):
        head, state, logged_at = some_head(chance), some_group(chance), some_id(chance)
        known = Known(
            some_count(chance), chance.choice([None, some_id(chance)]), chance.choice([None, some_id(chance)])
        )
        expected = expected_count(known, head, state)
        if expected is None or state.last_delivered < logged_at:
            continue
        healthy += 1
        shared = state.is_shared(MEMBER)
        facts = StreamFacts(head, state, lambda position: None, known, some_count(chance), logged_at, is_shared=shared)
        result = balance(facts)
        assert (result.count, result.jumps_at, result.lost) == (expected.counts, expected.jumps_at, 0), facts
    assert healthy > 100


def test_a_stream_at_its_checkpoint_has_no_finding() -> None:
    chance = random.Random(first_seed())
    healthy = 0
    for _ in range(50_000 * TIMES):
        head, state, logged = some_head(chance), some_group(chance), some_id(chance)
        mark = chance.choice([None, Mark(some_id(chance)), Mark(some_id(chance), committed_before=some_id(chance))])
        counts = {"s": some_count(chance)}
        checkpoint = Offset("g", "spark", {"s": logged}, token=chance.choice(["", "token"]), counts=counts)
        bookmarks = chance.choice([None, None, {"s": some_id(chance)}])
        run = Run(MEMBER, {"s": some_count(chance)}, (), bookmarks, chance.random() < 0.5)
        snapshot = Snapshot({"s": head}, {"s": state}, {} if mark is None else {"s": mark})
        if _is_at_checkpoint("s", snapshot, checkpoint, run):
            healthy += 1
            assert _Stream("s", head, state, mark, checkpoint, run, None).findings() == []
    assert healthy > 100
