"""Weeks of a query on the plan's clock: nothing that a server or a driver keeps grows with the days."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tools.simulation.month import growth, live


def test_a_month_leaves_nothing_behind() -> None:
    outcome, evenings = live(30)
    assert outcome.failures == []
    assert outcome.batches > 100
    assert growth(evenings) == []


def test_a_day_that_leaves_a_key_behind_is_found() -> None:
    _, evenings = live(20)
    grown = [replace(evening, keys=evening.keys + evening.day) for evening in evenings]
    assert growth(grown) == [f"keys: {grown[11].keys} … {grown[-1].keys}"]
    with pytest.raises(ValueError, match="after 20 days"):
        growth(grown[:19])
