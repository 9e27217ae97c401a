"""scripts/bench growth: which sizes are compared, what fits into memory, and what the loaders leave on the server."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tools.bench import growth
from tools.bench.row import run_in_turns
from tools.bench.servers import have_redis, running
from tools.bench.spark import append, load


def measured(figures: dict[int, float], is_rate: bool, available: int = 0, entry: int = 0) -> list[bool | None]:
    """Return whether each row of a measure with these figures meets its target. None: it was skipped."""
    named = {f"size {size}": figure for size, figure in figures.items()}
    measure = growth.Measure(
        "m", "entries", "/s", [*figures], lambda _: named, "", "size ", is_rate, lambda size: size * entry
    )  # fmt: skip
    rows = measure.rows(available)
    run_in_turns(rows, 5, lambda _: None)
    assert [len(row.our_figures) for row in rows] == [0 if row.skipped else 1 for row in rows]
    assert all("GB" in row.skipped for row in rows if row.skipped)
    return [row.meets_target for row in rows]


def test_a_cost_is_linear_if_it_grows_at_most_as_the_size() -> None:
    """Each size is compared with the next smaller one, also if that is a quarter."""
    assert measured({10: 5.0, 100: 50.0, 1000: 501.0}, is_rate=False) == [True, False]
    assert measured({4: 10.0, 16: 40.0, 64: 170.0}, is_rate=False) == [True, False]


def test_a_rate_is_linear_if_nine_tenths_of_it_stay() -> None:
    assert measured({10: 100.0, 100: 90.0, 1000: 80.0}, is_rate=True) == [True, False]


def test_sizes_that_do_not_fit_into_memory_are_skipped() -> None:
    """Half as much again must be available."""
    assert measured({10: 1.0, 100: 1.0, 1000: 1.0}, is_rate=True, available=1500, entry=10) == [True, None]
    assert measured({10: 1.0, 100: 1.0, 1000: 1.0}, is_rate=True, available=15_000, entry=10) == [True, True]


def test_a_run_with_figures_of_several_rows_is_made_once_a_round() -> None:
    """With the sizes that fit into memory."""
    runs: list[list[int]] = []

    def run(sizes: Sequence[int]) -> dict[str, float]:
        runs.append([*sizes])
        return {f"{size}": size * len(runs) for size in sizes}

    rows = growth.Measure("m", "entries", "/s", [1, 2, 4, 8], run, "", memory=lambda size: size, rounds=3).rows(6)
    run_in_turns(rows, 5, lambda _: None)
    assert runs == [[1, 2, 4]] * 3
    assert [row.our_figures for row in rows] == [[2.0, 4.0, 6.0], [4.0, 8.0, 12.0], []]
    assert [row.ratios for row in rows] == [[2.0] * 3, [2.0] * 3, []]


@pytest.mark.skipif(not have_redis(), reason="redis-server and redis-benchmark are not installed")
def test_loaders() -> None:
    """A backlog grows by what is appended, and entries are left pending for one consumer."""
    with running("redis-server") as server, server.client() as client:
        load(server, "s", 10_000)
        append(server, "s", 20_000)
        assert client.call("XLEN", "s") == 30_000
        client.call("XGROUP", "CREATE", "s", "g", "0")
        growth.leave_pending(client, "s", "other", 20_000)
        assert client.call("XPENDING", "s", "g")[3] == [[b"other", b"20000"]]
        load(server, "s", 10_000)
        assert client.call("XLEN", "s") == 10_000
