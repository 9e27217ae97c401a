"""Five recipes as the queries of tests/legs/killed.py."""

from __future__ import annotations

from tests.legs.killed import Query, run
from tests.legs.recipes.conftest import recipe_of

QUERIES: dict[str, Query] = {
    "totals": lambda spark, url, _: recipe_of("running_totals").totals(spark, url),
    "windows": lambda spark, url, _: recipe_of("late_rows").windows(spark, url),
    "hashes": lambda spark, url, _: recipe_of("latest_in_hashes").into_hashes(spark, url),
    "delta": lambda spark, url, folder: recipe_of("delta_table").into_delta(spark, url, f"{folder}/table"),
    "changes": lambda spark, url, folder: recipe_of("latest_of_changes").into_latest(spark, url, f"{folder}/customers"),
}

if __name__ == "__main__":
    run(QUERIES)
