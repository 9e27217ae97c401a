"""Turns of tests: what runs today, of what takes too long for each day. A seed, the number of the day, chooses.

Seven days run each test on one of both servers, fourteen days on both.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from tools.servers.server import KINDS
from tools.side_by_side import SHORT

TURNS = 7  # days: of tests that need Spark, or are marked in_turn, and of rows
# Tests of Spark that run each day: a query from end to end, and how it ends.
EACH_TURN = frozenset(path for paths in SHORT.values() for path in paths)


def turn_of_file(file: str) -> int:
    """Return the turn of the tests of this file that do not run in each. They share what takes long."""
    return zlib.crc32(file.encode()) % TURNS


def test_and_row(name: str) -> tuple[str, str]:
    """Split a test's name: the test, and its parameters without the server."""
    test, _, parameters = name.partition("[")
    return test, "-".join(part for part in parameters.removesuffix("]").split("-") if part not in KINDS)


def rows_of_turn(names: Iterable[str], seed: int) -> set[str]:
    """Return the rows that run in this turn: at least one of each test, and a seventh of many.

    A row's server depends on whether the seed is even. So that each row comes to both servers, its turn depends on half
    of the seed.
    """
    tests = dict[str, dict[str, list[str]]]()
    for name in names:
        test, row = test_and_row(name)
        tests.setdefault(test, {}).setdefault(row, []).append(name)
    chosen = set[str]()
    for test, rows in tests.items():
        turns = min(TURNS, len(rows))
        first = (seed // 2 + zlib.crc32(test.encode())) % turns
        chosen.update(name for row in list(rows.values())[first::turns] for name in row)
    return chosen
