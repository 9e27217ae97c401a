"""Entries that fail and are tried again, while the driver is killed at random moments: `python -m tools.chaos.retries
FILE` is the query, as a job that can be killed.

An entry is right at its first try, its second, its third, or never, by a rule of the query; or its number is none, so
that it does not fit. In the end each that comes right is one row, each other one dead letter, and nothing waits.

FILE: {"url": …, "folder": …, "delays": "50ms,100ms"}, and what chaos.process writes; the query ends when `folder` has a
file `stop`.
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
from spark_streams.model.keys import retry_stream, returned_stream
from tools.chaos.checker import Report
from tools.chaos.history import History
from tools.chaos.job import session
from tools.chaos.process import PATIENCE, Job, JobFailed
from tools.chaos.scene import Outcome, Scene

SCHEMA = (
    "p STRING, n LONG, right_at INT, _stream STRING, _id STRING, _attempt INT, _first_failed TIMESTAMP, "
    "_fields MAP<BINARY, BINARY>"
)
TRIES = 3
NEVER = 99


def main(plan: dict[str, str]) -> None:
    """Run the query until it is told to stop."""
    url, folder, delays = plan["url"], Path(plan["folder"]), plan["delays"]
    spark = session("local[2]", {})
    spark_streams.register(spark)
    given = {"url": url, "streams": "s", "group": "g", "startingOffsets": "earliest", "maxEntriesPerTrigger": "40"}
    given |= {"mode": "DEADLETTER", "deadLetterStream": "dead", "retryDelay": delays}
    rows = spark.readStream.format("rstream").schema(SCHEMA).options(**given).load().withColumn(
        "now", F.current_timestamp()
    )  # fmt: skip

    def write(batch: DataFrame, number: int) -> None:
        batch = batch.persist()
        good, letters = route_of(batch, delays)
        good = good.select("p", F.col("_attempt").alias("attempt"))
        to = {"url": url, "stream": "out", "transaction": "rows"}
        good.write.format("rstream").mode("append").options(**to).save()
        to = {"url": url, "stream": "dead", "streamColumn": "_to", "transaction": "letters"}
        letters.write.format("rstream").mode("append").options(**to).save()
        batch.unpersist()

    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint")).start()
    (folder / "up").touch()
    while query.isActive and not (folder / "stop").exists():
        time.sleep(0.05)
    if query.exception() is not None:
        raise SystemExit(str(query.exception()))
    query.stop()


def route_of(batch: DataFrame, delays: str) -> tuple[DataFrame, DataFrame]:
    """Good rows, and those that are refused."""
    at = F.col("now")
    return spark_streams.route_dead_letters(
        batch, "_attempt < right_at", "not yet", group="g", consumer="spark", at=at, retry_delay=delays
    )


def killed(scene: Scene) -> Outcome:
    """A few times at any moment, with entries that come meanwhile; then it runs to its end."""
    chance, client, folder = scene.random, scene.client, scene.folder / "tried again"
    folder.mkdir(parents=True, exist_ok=True)
    plan = {"url": scene.url, "folder": str(folder), "delays": chance.choice(["50ms,100ms", "1ms,2s", "500ms,1ms"])}
    expected: dict[str, int] = {}  # by name, at which try it is right
    kills = chance.randint(2, 4)

    def add() -> None:
        for _ in range(chance.randint(20, 60)):
            name, right_at = f"e{len(expected)}", chance.choice([1, 1, 2, 3, NEVER])
            fits = chance.random() < 0.9
            expected[name] = right_at if fits else NEVER
            client.xadd("s", {"p": name, "n": len(expected) if fits else "none", "right_at": right_at})

    for turn in range(kills + 1):
        add()
        (folder / "up").unlink(missing_ok=True)
        with Job(folder, [], program="tools.chaos.retries", more=plan) as job:
            job.wait_for((folder / "up").exists, "the query")
            if turn < kills:
                time.sleep(chance.uniform(0, 8))
                add()
                time.sleep(chance.uniform(0, 2))
            else:
                job.wait_for(lambda: _is_over(scene, expected), "the end of all tries")
                (folder / "stop").touch()
                deadline = time.monotonic() + PATIENCE
                while job.process.poll() is None:
                    if time.monotonic() > deadline:
                        raise JobFailed(f"it does not stop:\n{job.log()}")
                    time.sleep(0.05)
    return _judged(scene, expected, f"{kills} kills, delays {plan['delays']}")


def _waiting(scene: Scene) -> int:
    names = [*[retry_stream("s", "g", n) for n in range(1, TRIES)], returned_stream("s", "g")]
    return sum(scene.client.xlen(name) for name in names)


def _is_over(scene: Scene, expected: dict[str, int]) -> bool:
    client = scene.client
    ended = client.xlen("out") + client.xlen("dead")
    return bool(ended >= len(expected) and not _waiting(scene) and not client.xpending("s", "g")["pending"])


def _judged(scene: Scene, expected: dict[str, int], chosen: str) -> Outcome:
    outcome = Outcome(History(), Report(), chosen=f"{len(expected)} entries, {chosen}")
    rows = [fields for _, fields in scene.client.xrange("out")]
    letters = [fields for _, fields in scene.client.xrange("dead")]
    found = Counter((row["p"], int(row["attempt"])) for row in rows)
    outcome.expect("rows", found, Counter((name, n) for name, n in expected.items() if n <= TRIES))
    dead = Counter(letter["p"] for letter in letters)
    outcome.expect("dead letters", dead, Counter(name for name, n in expected.items() if n > TRIES))
    outcome.expect("tries", {letter["dl.deliveries"] for letter in letters} - {str(TRIES)}, set())
    outcome.expect("waiting", _waiting(scene), 0)
    for stream in ("s", returned_stream("s", "g")):
        outcome.expect(f"pending in {stream}", scene.client.xpending(stream, "g")["pending"], 0)
    return outcome


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
