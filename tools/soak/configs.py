"""Configurations of the two jobs of a soak."""

from __future__ import annotations

from pathlib import Path
from string import Template

STREAM, DEAD = "orders", "orders:dead"
ETL, ARCHIVE = "etl", "archive"

_SPARK = """
[spark]
master = "local[1]"
"spark.driver.memory" = "600m"
"spark.driver.extraJavaOptions" = "-XX:+UseSerialGC -Xms600m -XX:+AlwaysPreTouch"
"spark.ui.enabled" = "false"
# Spark keeps the last 1,000 of each: at a trigger of 5 s, the heap would grow for 25 minutes.
"spark.sql.ui.retainedExecutions" = 100
"spark.ui.retainedJobs" = 100
"spark.ui.retainedStages" = 100
"spark.sql.streaming.minBatchesToRetain" = 20
"""
_ETL = Template("""\
url = "$url"

[source]
streams = "$stream"
group = "etl"
startingOffsets = "earliest"
maxDeliveries = 5
deadLetterStream = "$dead"
retryDelay = "20s,1m"

[columns]
number = "BIGINT"
amount = "DECIMAL(12,2)"
customer = "STRING"
note = "STRING"

[table]
format = "deltalake"
path = "$folder/table"
compact_every = 60
keep = "1h"

[dead_letters]
stream = "$dead"

[job]
checkpoint = "$folder/checkpoints/etl"
trigger = "5s"
""")

_ARCHIVE = Template("""\
url = "$url"

[source]
streams = "$stream"
group = "archive"

[table]
format = "parquet"
path = "$folder/archive"

[trim]
enabled = true
every = "30s"

[job]
checkpoint = "$folder/checkpoints/archive"
trigger = "60s"
""")


def write_configs(url: str, folder: Path) -> dict[str, Path]:
    """Write both configurations. Return the file of each job."""
    files = {}
    for name, text in ((ETL, _ETL), (ARCHIVE, _ARCHIVE)):
        files[name] = folder / f"{name}.toml"
        files[name].write_text(text.substitute(url=url, folder=folder, stream=STREAM, dead=DEAD) + _SPARK)
    return files
