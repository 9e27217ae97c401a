"""Five recipes at once, as a process that is killed: `python killed_program.py URL FOLDER [drain]`.

Without `drain` until somebody ends it; with it to the end of what is there.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from tests.legs.recipes.conftest import recipe_of
from tools.chaos.program import JAVA_OPTIONS

url, folder, *drain = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", 1)
    .config("spark.sql.streaming.pollingDelay", "100ms")
    .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
    .getOrCreate()
)
writers = {
    "totals": recipe_of("running_totals").totals(spark, url),
    "windows": recipe_of("late_rows").windows(spark, url),
    "hashes": recipe_of("latest_in_hashes").into_hashes(spark, url),
    "delta": recipe_of("delta_table").into_delta(spark, url, f"{folder}/table"),
    "changes": recipe_of("latest_of_changes").into_latest(spark, url, f"{folder}/customers"),
}
placed = {name: one.option("checkpointLocation", f"{folder}/{name}") for name, one in writers.items()}
if drain:
    for query in [writer.trigger(availableNow=True).start() for writer in placed.values()]:
        query.awaitTermination()
else:
    for writer in placed.values():
        writer.trigger(processingTime="100 milliseconds").start()
    spark.streams.awaitAnyTermination()
