"""Time zones in docs/reference/types.md: a time without a zone is UTC in each session; local times are converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tools.servers.server import Server

pytestmark = pytest.mark.spark
PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "types.md"
TIMES = ("2026-07-01T09:30", "2026-07-01 09:30:00.0", "2026-07-01T09:30Z", "2026-07-01T11:30+02:00", "1782898200000")


def conversion() -> str:
    """Return the block of the page."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Time zones\n")[2].partition("\n## ")[0]
    return section.partition("```python\n")[2].partition("```")[0]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_a_time_without_a_zone_is_utc_whatever_the_session_says(spark: SparkSession, server: Server, zone: str) -> None:
    with server.client() as client:
        for text in TIMES:
            client.xadd("s", {"at": text})
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        rows = spark.read.format("rstream").schema("at TIMESTAMP").options(url=server.url, streams="s").load()
        seconds = [row[0] for row in rows.select(F.unix_seconds("at")).collect()]
        assert seconds == [1_782_898_200] * len(TIMES)
        given: dict[str, Any] = {"rows": rows}
        exec(conversion(), given)
        converted = {row[0] for row in given["rows"].select(F.unix_seconds("at")).collect()}
        assert converted == {1_782_898_200 - 2 * 3600}  # Berlin's summer
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
