"""A plugin of pytest (-p tools.counted_tests): how many tests ran, and which legs of scripts/test have the others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

TURNS_LEG = "--both"  # the leg that runs the tests of all turns, on both servers
# Legs that run the tests with a marker, which all others leave out.
LEG_OF_MARKER = {
    "kills": "--kills",
    "cluster": "--cluster",
    "upgrade": "--upgrade",
    "long": "--long",
    "extras": "--extras",
    "browser": "--console",
    "network": "--network",
}
_NOT_RUN = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--counts",
        metavar="FILE",
        help="write JSON into this file: how many tests ran, and how many did not, by their leg of scripts/test",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_NOT_RUN] = Counter()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        legs = [leg for marker, leg in LEG_OF_MARKER.items() if item.get_closest_marker(marker)]
        item.config.stash[_NOT_RUN][next(iter(legs), TURNS_LEG)] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if file := session.config.getoption("--counts"):
        counts = {"ran": session.testscollected, "not_run": session.config.stash[_NOT_RUN]}
        Path(file).write_text(json.dumps(counts))
