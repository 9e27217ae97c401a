"""Planning: runs joined to tasks, a limit shared between streams."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.partitioning import ALL, PENDING, By, Part, Task, divide_into_tasks, share


def run(stream: str, after: int, last: int, count: int, by: By = ALL, until: int = 0) -> Part:
    return Part(Range(stream, StreamId(after, 0), StreamId(last, 0), count, until), by)


def runs_of(found: list[Task]) -> list[Range]:
    return [run for task in found for run in task.ranges]


def test_neighbouring_runs_become_one_up_to_a_tasks_size() -> None:
    runs = [run("a", 0, 10, 10), run("a", 10, 20, 10), run("a", 20, 30, 10)]
    assert divide_into_tasks(runs, 20) == [Task((run("a", 0, 20, 20),)), Task((run("a", 20, 30, 10),))]


def test_runs_of_other_streams_with_gaps_or_shared_stay_apart_and_share_a_task() -> None:
    runs = [run("a", 0, 10, 10), run("b", 10, 20, 10), run("b", 25, 30, 5), run("b", 30, 40, 5, by=PENDING)]
    assert divide_into_tasks(runs, 1000) == [Task(tuple(runs))]


def test_runs_of_other_times_or_that_are_read_in_another_way_are_not_joined() -> None:
    runs = [
        run("a", 0, 10, 1, by=PENDING),
        run("a", 10, 20, 1, by=PENDING, until=1700),
        run("a", 20, 30, 1, by=b"$4\r\n22-0\r\n"),
        run("a", 30, 40, 1),
    ]
    assert divide_into_tasks(runs, 1000) == [Task(tuple(runs))]


def test_the_ids_of_neighbours_are_joined_with_them() -> None:
    runs = [
        run("a", 0, 10, 1, by=b"$3\r\n5-0\r\n"),
        run("a", 10, 20, 1, by=b"$4\r\n12-0\r\n"),
    ]
    assert divide_into_tasks(runs, 10) == [Task((run("a", 0, 20, 2, by=b"$3\r\n5-0\r\n$4\r\n12-0\r\n"),))]


def test_runs_without_an_entry_of_ours_make_no_task() -> None:
    assert divide_into_tasks([run("a", 0, 10, 0)], 10) == []


def test_a_thousand_small_streams_are_a_handful_of_tasks() -> None:
    assert len(divide_into_tasks([run(f"s{n}", 0, 10, 10) for n in range(1000)], 100_000)) == 1
    assert [task.count for task in divide_into_tasks([run(f"s{n}", 0, 10, 100) for n in range(1000)], 100_000)] == [
        25_000
    ] * 4


def test_a_batch_of_one_task_is_spread_where_there_is_enough_to_do() -> None:
    runs = [run("a", 10 * n, 10 * n + 10, 5_000) for n in range(12)]
    assert [task.count for task in divide_into_tasks(runs, 100_000)] == [15_000] * 4
    assert [task.count for task in divide_into_tasks(runs[:4], 100_000)] == [10_000] * 2


def test_ordered_is_a_task_for_each_stream_or_for_several_small_ones() -> None:
    runs = [run("a", 0, 10, 50_000), run("a", 10, 20, 50_000), run("b", 0, 1, 1), run("a", 25, 30, 50_000)]
    runs += [run("c", 0, 1, 1), run("a", 30, 40, 5, by=PENDING)]
    assert divide_into_tasks(runs, 1_000, ordered=True) == [
        Task((run("a", 0, 20, 100_000), run("a", 25, 30, 50_000), run("a", 30, 40, 5, by=PENDING))),
        Task((run("b", 0, 1, 1), run("c", 0, 1, 1))),
    ]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.integers(0, 3)), max_size=20),
    st.integers(1, 100),
    st.booleans(),
)
def test_no_entry_is_lost_or_doubled_and_streams_keep_their_order(
    steps: list[tuple[str, int, int]], size: int, ordered: bool
) -> None:
    runs, at = [], dict.fromkeys("abc", 0)
    for stream, count, gap in sorted(steps, key=lambda step: step[0]):
        after = at[stream] + gap
        at[stream] = after + 10
        runs.append(run(stream, after, after + 10, count))
    found = divide_into_tasks(runs, size, ordered)
    assert sum(task.count for task in found) == sum(run.count for run in runs)
    for stream in "abc":
        mine = [run for run in runs_of(found) if run.stream == stream]
        assert all(before.last <= after.after for before, after in itertools.pairwise(mine))
        assert not ordered or sum(any(run.stream == stream for run in task.ranges) for task in found) <= 1


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


@given(
    st.integers(1, 400),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 500), min_size=1),
)
def test_shares_of_some_triggers_serve_every_stream(limit: int, backlog: dict[str, int]) -> None:
    turns = [share(limit, backlog, turn) for turn in range(8)]
    assert all(0 < given <= backlog[stream] for shares in turns for stream, given in shares.items())
    assert all(sum(shares.values()) <= limit for shares in turns)
    if limit >= len(backlog):
        assert all(sum(shares.values()) == min(limit, sum(backlog.values())) for shares in turns)
    assert {stream for shares in turns for stream in shares} == set(backlog)
