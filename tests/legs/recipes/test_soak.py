"""A soak counts what is lost or twice, in the table and in the archive."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tools.servers.server import Server
from tools.soak.job_process import ARCHIVE, CLAIMED, DEAD, ETL, STREAM
from tools.soak.report import judge

deltalake = pytest.importorskip("deltalake")


def test_the_verdict_counts_lost_and_twice(server: Server, tmp_path: Path) -> None:
    client = server.client()
    ids = [cast("bytes", client.xadd(STREAM, {"number": n})) for n in range(6)]
    for group in (ETL, ARCHIVE):
        client.xgroup_create(STREAM, group, id="0")
    client.xreadgroup(ETL, "c", {STREAM: ">"}, 1)
    client.xadd(DEAD, {"x": 1})
    client.hset(CLAIMED, mapping={"0": 1, "5": 1})
    deltalake.write_deltalake(tmp_path / "table", pa.table({"number": [0, 0, 0, 1, 1, 3, 5, 5]}))
    folder = tmp_path / "archive" / "date=2026-11-28" / "batch=0"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [i.decode() for i in [*ids[:5], ids[0]]]}), folder / "part.parquet")
    verdict = judge(client, tmp_path, 6)
    assert (verdict.added, verdict.rows, verdict.lost, verdict.twice, verdict.claimed) == (6, 8, 2, 2, 1)
    assert (verdict.entries, verdict.not_archived, verdict.archived_twice) == (6, 1, 1)
    assert verdict.left == 2
    assert not verdict.is_right


@pytest.mark.long
@pytest.mark.spark
def test_three_minutes_with_kills_and_redrives_lose_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = ["--hours", "0.05", "--sample", "0.2", "--redrive", "1", "--kill", "1.2", "--rate", "100"]
    from tools.soak.__main__ import main

    code = main([*times, "--folder", str(tmp_path / "soak")])
    printed = capsys.readouterr().out
    assert "lost 0 · twice 0" in printed
    assert "not archived 0 · archived twice 0" in printed
    assert "killed the job" in printed
    assert code in (0, 1)  # three minutes are too short to tell what grows
    assert (tmp_path / "soak" / "soak.html").stat().st_size > 10_000
