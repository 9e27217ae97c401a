"""Entries that fail and are retried, while the driver is killed at random moments.

`python -m tools.chaos.retries FILE` runs the query, as a job that can be killed. A rule of the query accepts an entry
at its first, second or third attempt, or never; the number of some entries cannot be decoded. In the end each accepted
entry is one row, each other entry is one dead letter, and no entry waits for a retry.

FILE: {"url": …, "folder": …, "delays": "50ms,100ms"}, and the fields that chaos.process writes. The query ends when the
file `stop` exists in `folder`.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import spark_streams
from spark_streams.connector.keys import retry_stream, returned_stream
from spark_streams.operations.verify.history import History, Report
from spark_streams.operations.verify.running_query import PATIENCE
from tools.chaos.job import Job, JobFailed, session
from tools.chaos.scene import Outcome, Scene

SCHEMA = (
    "p STRING, n LONG, right_at INT, _stream STRING, _id STRING, _attempt INT, _first_failed TIMESTAMP, "
    "_fields MAP<BINARY, BINARY>"
)
TRIES = 3
NEVER = 99


def main(plan: dict[str, str]) -> None:
    """Run the query until its file `stop` exists."""
    url, folder, delays = plan["url"], Path(plan["folder"]), plan["delays"]
    spark = session("local[2]", {})
    spark_streams.register(spark)
    settings = {"url": url, "streams": "s", "group": "g", "startingOffsets": "earliest", "maxEntriesPerTrigger": "40"}
    settings |= {"mode": "DEADLETTER", "deadLetterStream": "dead", "retryDelay": delays}
    rows = spark.readStream.format("rstream").schema(SCHEMA).options(**settings).load().withColumn(
        "now", F.current_timestamp()
    )  # fmt: skip

    def write(batch: DataFrame, number: int) -> None:
        batch = batch.persist()
        good, dead_letters = route_batch(batch, delays)
        good = good.select("p", F.col("_attempt").alias("attempt"))
        sink = {"url": url, "stream": "out", "transaction": "rows"}
        good.write.format("rstream").mode("append").options(**sink).save()
        sink = {"url": url, "stream": "dead", "streamColumn": "_to", "transaction": "letters"}
        dead_letters.write.format("rstream").mode("append").options(**sink).save()
        batch.unpersist()

    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint")).start()
    (folder / "up").touch()
    while query.isActive and not (folder / "stop").exists():
        time.sleep(0.05)
    if query.exception() is not None:
        raise SystemExit(str(query.exception()))
    query.stop()


def route_batch(batch: DataFrame, delays: str) -> tuple[DataFrame, DataFrame]:
    """Return accepted rows, and dead letters of the others."""
    failed_at = F.col("now")
    return spark_streams.route_dead_letters(
        batch, "_attempt < right_at", "not yet", group="g", consumer="spark", at=failed_at, retry_delay=delays
    )


def killed(scene: Scene) -> Outcome:
    """Kill the driver a few times at random moments, while entries arrive; then let the query finish."""
    chance, client, folder = scene.random, scene.client, scene.folder / "retried"
    folder.mkdir(parents=True, exist_ok=True)
    plan = {"url": scene.url, "folder": str(folder), "delays": chance.choice(["50ms,100ms", "1ms,2s", "500ms,1ms"])}
    expected: dict[str, int] = {}  # name → attempt at which it is accepted
    kills = chance.randint(2, 4)

    def add() -> None:
        for _ in range(chance.randint(20, 60)):
            name, right_at = f"e{len(expected)}", chance.choice([1, 1, 2, 3, NEVER])
            fits = chance.random() < 0.9
            expected[name] = right_at if fits else NEVER
            client.xadd("s", {"p": name, "n": len(expected) if fits else "none", "right_at": right_at})

    for round_number in range(kills + 1):
        add()
        (folder / "up").unlink(missing_ok=True)
        with Job(folder, [], program="tools.chaos.retries", more=plan) as job:
            job.wait_for((folder / "up").exists, "the query")
            if round_number < kills:
                time.sleep(chance.uniform(0, 8))
                add()
                time.sleep(chance.uniform(0, 2))
            else:
                job.wait_for(lambda: _is_over(scene, expected), "the end of all retries")
                (folder / "stop").touch()
                deadline = time.monotonic() + PATIENCE
                while job.process.poll() is None:
                    if time.monotonic() > deadline:
                        raise JobFailed(f"the query does not stop within {PATIENCE:g} s:\n{job.log()}")
                    time.sleep(0.05)
    return _judged(scene, expected, f"{kills} kills, delays {plan['delays']}")


def _waiting(scene: Scene) -> int:
    names = [*[retry_stream("s", "g", n) for n in range(1, TRIES)], returned_stream("s", "g")]
    return sum(scene.client.xlen(name) for name in names)


def _is_over(scene: Scene, expected: dict[str, int]) -> bool:
    client = scene.client
    ended = client.xlen("out") + client.xlen("dead")
    return bool(ended >= len(expected) and not _waiting(scene) and not client.xpending("s", "g")["pending"])


def _judged(scene: Scene, expected: dict[str, int], choices: str) -> Outcome:
    outcome = Outcome(History(), Report(), choices=f"{len(expected)} entries, {choices}")
    rows = [fields for _, fields in scene.client.xrange("out")]
    dead_letters = [fields for _, fields in scene.client.xrange("dead")]
    attempts = Counter((row["p"], int(row["attempt"])) for row in rows)
    outcome.expect("rows", attempts, Counter((name, n) for name, n in expected.items() if n <= TRIES))
    dead = Counter(dead_letter["p"] for dead_letter in dead_letters)
    outcome.expect("dead letters", dead, Counter(name for name, n in expected.items() if n > TRIES))
    deliveries = {dead_letter["dl.deliveries"] for dead_letter in dead_letters}
    outcome.expect("deliveries", deliveries - {str(TRIES)}, set())
    outcome.expect("entries waiting for retry", _waiting(scene), 0)
    for stream in ("s", returned_stream("s", "g")):
        outcome.expect(f"pending in {stream}", scene.client.xpending(stream, "g")["pending"], 0)
    return outcome


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
