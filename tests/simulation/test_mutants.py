"""The product with one decisive line changed: the table of mutants fits the product, and plans find them."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from tools.simulation.mutants import reach
from tools.simulation.mutants.hunt import Hunt
from tools.simulation.mutants.mutant import Mutant
from tools.simulation.mutants.table import MUTANTS, NAMED

FOUND_SOON = ("xack-before-commit", "reserved-ahead-is-forgotten", "second-backlog-is-forgotten", "no-limit-of-bytes")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_of_the_product(mutant: Mutant) -> None:
    """Its text occurs once, and what stands in its place is Python."""
    changed = mutant.source()
    assert mutant.text != mutant.instead
    compile(changed, mutant.file, "exec", dont_inherit=True)
    reach.note(ast.parse(mutant.whole()), mutant)


def test_each_mutant_has_a_name_and_says_what_it_breaks() -> None:
    assert len(NAMED) == len(MUTANTS) >= 40
    assert all(mutant.breaks.endswith(".") for mutant in MUTANTS)


def test_a_condition_is_reached_only_with_the_other_outcome() -> None:
    """A plan whose conditions have the outcome that they have in the mutant runs as it does without it."""
    tree = ast.parse("def half(n):\n    if n > 1:\n        n = n / 2\n    return n\n")
    mutant = _InMemory("half", "half.py", "if n > 1:", "if False:", "Nothing is halved.")
    reach.note(tree, mutant)
    names, namespace = set[str](), dict[str, Any]()
    reach.prepare(namespace, names)
    exec(compile(ast.fix_missing_locations(tree), "half.py", "exec"), namespace)
    assert (namespace["half"](1), names) == (1, set())
    assert (namespace["half"](4), names) == (2, {"half"})


class _InMemory(Mutant):
    TEXT = "def half(n):\n    if n > 1:\n        n = n / 2\n    return n\n"

    def whole(self) -> str:
        return self.TEXT


@pytest.mark.in_turn
def test_plans_find_mutants_and_pass_without_a_change() -> None:
    """Without a change they all run, because they all reach it."""
    mutant = NAMED["xack-before-commit"]
    same = Mutant("nothing", mutant.file, mutant.text, mutant.text, "Nothing.")
    hunt = Hunt([same, *[NAMED[name] for name in FOUND_SOON]], range(1, 41), jobs=2)
    nothing, *searches = sorted(hunt.run(), key=lambda search: search.mutant.name != "nothing")
    assert not hunt.failing
    assert nothing.first is None
    assert nothing.tried == len(hunt.reached["nothing"]) > 10
    assert not [str(search) for search in searches if search.first is None]
