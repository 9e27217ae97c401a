"""Fourteen days run each row of each test on both servers, and each day runs a part of each test."""

from __future__ import annotations

from collections import Counter

from tests.turns import EACH_TURN, TURNS, rows_of_turn, turn_of_file
from tools.day_seed import seed_of_day
from tools.servers.server import KINDS
from tools.side_by_side import ROOT

ROWS = [
    *(f"test_a.py::test_rows[{kind}-{n}-true]" for kind in KINDS for n in range(7)),
    *(f"test_a.py::test_two[{n}]" for n in (1, 2)),
    "test_a.py::test_alone",
]


def test_each_test_runs_in_each_turn_with_a_part_of_its_rows() -> None:
    for seed in range(12):
        counts = Counter(name.partition("[")[0].partition("::")[2] for name in rows_of_turn(ROWS, seed))
        assert (counts["test_two"], counts["test_alone"]) == (1, 1)
        assert counts["test_rows"] == 2


def test_fourteen_days_run_each_row_on_both_servers() -> None:
    """A row runs on one of them when the seed is even, and on the other one when it is odd."""

    def ran(seed: int) -> set[str]:
        return {name for name in rows_of_turn(ROWS, seed) if f"[{KINDS[seed % 2]}-" not in name}

    for first in range(20_000, 20_014):
        seeds = map(seed_of_day, range(first, first + 2 * TURNS))
        assert set().union(*map(ran, seeds)) == {*ROWS}


def test_seven_days_have_each_turn() -> None:
    for first in range(20_000, 20_007):
        assert {seed_of_day(day) % TURNS for day in range(first, first + TURNS)} == {*range(TURNS)}


def test_what_takes_long_is_spread_over_the_turns() -> None:
    files = [str(path.relative_to(ROOT)) for path in ROOT.glob("tests/connector/spark/**/test_*.py")]
    assert {turn_of_file(file) for file in files} == {*range(TURNS)}


def test_what_runs_in_each_turn_is_there() -> None:
    assert all((ROOT / path).exists() for path in EACH_TURN)
