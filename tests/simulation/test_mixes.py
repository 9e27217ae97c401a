"""Mixes of plans: each leaves the plans of the others as they are, and has what it is for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields

import pytest

from spark_streams.connector.deadletter.post import DeadLetterLimits
from spark_streams.connector.source.limits import LIMITS, Limits
from tools.simulation import mixes
from tools.simulation.mixes import MIXES, SHARES, is_drawn, with_limits
from tools.simulation.plan import make
from tools.simulation.setup import Plan

NAMED = sorted(SHARES)


def digest(plans: Sequence[Plan]) -> str:
    """Of the setup and the steps, as plans without a mix have them."""
    known = "seed", "streams", "sink", "ahead", "pace", "options", "before", "retries", "chunk", "has_values"
    texts = [f"{[getattr(plan.setup, name) for name in known]} {plan.steps}" for plan in plans]
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=8).hexdigest()


@pytest.mark.parametrize(
    ("seeds", "additions", "expected"),
    [
        ((*range(200), 241), (), "62410f6ea100b882"),
        ((3100259, 1738, 40120285, 40120333), ("faults",), "8d681b358afe580f"),
        ((40200148, 40220682, 40220702, 40220847), ("renew",), "bf93e3a60a3d0d84"),
        ((815, 40300222, 40320351, 40320442), ("faults", "renew"), "8e3d74d0a1c36923"),
    ],
)
def test_seeds_keep_their_plans(seeds: Sequence[int], additions: tuple[str, ...], expected: str) -> None:
    """A seed that has failed names a plan for ever: what is new has a generator of its own."""
    assert digest([make(seed, *additions) for seed in seeds]) == expected


@pytest.mark.parametrize("name", NAMED)
def test_a_mix_makes_the_same_plan_of_the_same_seed(name: str) -> None:
    for seed in range(20):
        assert make(seed, name) == make(seed, name)


def test_drawn_has_each_mix_in_its_share_of_the_plans() -> None:
    """As the mix itself makes them, one after the other."""
    seeds, drivers = range(2_000), 0
    found = dict.fromkeys(SHARES, 0)
    for seed in seeds:
        plan = make(seed, "drawn")
        has = [name for name in SHARES if is_drawn(seed, name)]
        if plan.setup.drivers > 1:
            drivers += 1
            assert plan == make(seed, "driver")
            continue
        assert plan == make(seed, *has)
        for name in has:
            found[name] += 1
    for name, share in SHARES.items():
        assert found[name] / (len(seeds) - drivers) == pytest.approx(share, rel=0.35), name
    assert drivers / len(seeds) == pytest.approx(0.1, rel=0.35)


def test_streams_leave_the_list_and_come_back() -> None:
    """In each plan, but those that read an archive; and runs are without maxDeliveries and with it."""
    plans = [make(seed, "lists") for seed in range(200)]
    kinds = [{step.kind for step in plan.steps} for plan in plans if "archivePath" not in plan.setup.options]
    assert len(kinds) > 150
    assert all({"leave_out", "put_back"} <= one for one in kinds)
    for kind in ("crash", "kill", "rollback", "lose_commits", "deliver_often", "deliver_seldom"):
        assert sum(kind in one for one in kinds) > 20, kind


def test_each_size_is_drawn() -> None:
    """A new limit is drawn, or it is no size."""
    no_sizes = {"pattern_interval", "pattern_interval_each", "idle_wait", "idle_check", "idle_check_each", "lag_check"}
    no_sizes |= {"role_check", "pattern_streams"}  # seconds; a bound, whose streams beyond it are left out
    others = {
        "prefetch_entries",
        "sample_entries",
        "sample_bytes",
        "dead_letters",
        "lease",
    }  # of the setup, or no query
    own = {one.name for one in fields(Limits)} - no_sizes - others
    letters = {f"dead_letters.{one.name}" for one in fields(DeadLetterLimits)}
    assert {*mixes.LIMITS} == own | letters


def test_drawn_limits_are_those_of_the_reader() -> None:
    changed = with_limits(LIMITS, {"claim_page": 1, "dead_letters.post_entries": 2})
    assert (changed.claim_page, changed.dead_letters.post_entries) == (1, 2)
    assert changed.pending_page == LIMITS.pending_page


def test_plans_with_limits_have_larger_batches() -> None:
    plans = [make(seed, "limits") for seed in range(50)]
    assert all(plan.setup.limits for plan in plans)
    assert all(any(step.kind == "pour" for step in plan.steps) for plan in plans)


def test_each_plan_with_lost_writes_has_a_failover() -> None:
    for seed in range(50):
        assert {step.kind for step in make(seed, "lost").steps} & {"fail_over", "lag"}


def test_unmarked_changes_only_what_is_judged() -> None:
    plan = make(17, "unmarked")
    assert (plan.steps, plan.setup.judges_marks) == (make(17).steps, False)
    assert "unmarked" in MIXES
