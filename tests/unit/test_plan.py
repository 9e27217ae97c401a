"""Planning: runs joined to tasks, a limit shared between streams."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from spark_streams.ids import StreamId
from spark_streams.source.plan import Run, share, tasks


def run(stream: str, after: int, last: int, count: int, owned: bool = True) -> Run:
    return Run(stream, StreamId(after, 0), StreamId(last, 0), count, owned)


def test_neighbouring_runs_become_one_task_up_to_its_size() -> None:
    runs = [run("a", 0, 10, 10), run("a", 10, 20, 10), run("a", 20, 30, 10)]
    assert tasks(runs, 20) == [run("a", 0, 20, 20), run("a", 20, 30, 10)]


def test_runs_of_other_streams_with_gaps_or_shared_stay_apart() -> None:
    runs = [run("a", 0, 10, 10), run("b", 10, 20, 10), run("b", 25, 30, 5), run("b", 30, 40, 5, owned=False)]
    assert tasks(runs, 1000) == runs


def test_runs_without_an_entry_of_ours_make_no_task() -> None:
    assert tasks([run("a", 0, 10, 0)], 10) == []


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 100))
def test_no_entry_is_lost_or_doubled_by_joining(counts: list[int], size: int) -> None:
    runs = [run("a", 10 * i, 10 * (i + 1), count) for i, count in enumerate(counts)]
    joined = tasks(runs, size)
    assert sum(task.count for task in joined) == sum(counts)
    for before, after in itertools.pairwise(joined):
        assert before.last <= after.after


@given(
    st.integers(1, 1000),
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(1, 500), max_size=8),
    st.integers(0, 50),
)
def test_a_share_is_fair(limit: int, backlog: dict[str, int], turn: int) -> None:
    shares = dict.fromkeys(backlog, 0) | share(limit, backlog, turn)
    assert sum(shares.values()) == min(limit, sum(backlog.values()))
    assert all(0 <= shares[stream] <= backlog[stream] for stream in backlog)
    # Whoever got less than it wanted got at least as much as anybody else, give or take the rounding.
    most = max(shares.values(), default=0)
    assert all(shares[stream] >= most - 1 for stream in backlog if shares[stream] < backlog[stream])
