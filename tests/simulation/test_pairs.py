"""Options of the source in plans: each pair of those that the product takes together is drawn."""

from __future__ import annotations

from tools.simulation import plan
from tools.simulation.plan import make


def test_each_source_option_is_drawn_or_left_out_for_a_reason() -> None:
    assert not plan.unknown()


def test_two_thousand_plans_have_each_pair_of_options() -> None:
    drawn = {pair for seed in range(1, 2001) for pair in plan.of(make(seed))}
    possible = plan.possible()
    assert len(possible) > 150
    assert not possible - drawn
    assert not drawn - possible
