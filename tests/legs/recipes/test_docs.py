"""docs/guide/recipes*.md and cdc.md name each program of examples/recipes, and no other."""

from __future__ import annotations

import re

from tests.legs.recipes.conftest import RECIPES

GUIDE = RECIPES.parents[1] / "docs" / "guide"
PAGES = [*sorted(GUIDE.glob("recipes*.md")), GUIDE / "cdc.md"]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def test_each_program_is_named() -> None:
    assert set(re.findall(r"examples/recipes/(\w+)\.py", TEXT)) == {path.stem for path in RECIPES.glob("*.py")}
