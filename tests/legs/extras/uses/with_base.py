"""What a consumer without Spark uses: an engine, commands of rstream, and dead letters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import redis

from spark_streams import dead_letters
from spark_streams.engine import LocalEngine

with LocalEngine() as engine, redis.Redis.from_url(engine.url, decode_responses=True) as client:
    rstream = Path(sys.executable).with_name("rstream")

    def run(*words: str, code: int = 0) -> str:
        ended = subprocess.run([rstream, *words, "--url", engine.url], capture_output=True, text=True, check=False)
        assert ended.returncode == code, (words, ended)
        return ended.stdout + ended.stderr

    run("add", "orders", "customer=ann", "amount=7")
    client.xgroup_create("orders", "billing", 0)
    [[_, [(entry_id, fields)]]] = client.xreadgroup("billing", "one", {"orders": ">"})
    dead_letters.write(client, "orders", "billing", entry_id, fields, to="orders:dead", error=ValueError("no"))
    for words in ("streams", "show orders", "groups orders", "lag", "pending orders --group billing"):
        run(*words.split())
    run("init", "etl")
    run("doctor", code=3)  # it warns that this engine has no persistence
    run("groups", "seek", "orders", "--group", "billing", "--to", "earliest", "--even-active", "--yes")
    run("groups", "seek", "orders", "--group", "billing", "--to", "-1", "--even-active", "--yes")
    assert client.xinfo_groups("orders")[0]["lag"] == 1
    said = run("dead", "list", code=1)
    assert "needs numpy" in said or "needs pyarrow" in said
    assert "pip install 'spark-streams[cluster]'" in said
    print("dead:", client.xlen("orders:dead"))
