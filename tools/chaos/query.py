"""A query under test: its source, its sink, and its fault. Plain values that are passed as JSON.

All its files are in one folder:

    checkpoint/     Spark's
    rows/           one file of JSON lines per task attempt of the sink (chaos.sink)
    batches/        one JSON file per batch in the sink: the names of the committed attempts
    acks.jsonl      every XACK that was sent, with the last batch of the commit log just before it
    up              created when the source's Python process on the driver runs
    held            created when the query has reached its kill point: the pid of the process that stands still there
    go              lets a paused query continue; or lets a query that starts at `latest` build its first batch, if its
                    fault is in that batch
    struck          created when a fault in a task has happened; `twin`: when the speculative task has written
    asleep, wake    created when a zombie stands still; lets it continue; `zombie`: its result
    ended           created when the query has ended: the text of the error, or empty
    stop            makes the job stop the query

The files without a suffix are signals between the query and the test. Those of a second driver begin with its name, so
that two drivers can use one folder.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from spark_streams.connector.admin.checkpoint import last_batch
from spark_streams.connector.source.limits import LIMITS

SCHEMA = "p STRING, n LONG, _stream STRING, _id STRING"

# Points at which a query can stand still, to be killed there. `batch` of the fault selects the batch.
KILL_POINTS = {
    "started": "the first offset is known, the first trigger has not created the group (batch 0 only)",
    "looked": "the state of the group is read, the batch is not reserved",
    "reserved": "entries are reserved, the batch is not in the offset log",
    "logged": "the batch is in the offset log, no entry is read",
    "reading": "a task has read `rows` rows",
    "writing": "a task has passed `rows` rows to the sink",
    "closing": "all tasks have written, the batch is not committed in the sink",
    "written": "the batch is in the sink, and not in the commit log",
    "committed": "the batch is in the commit log, no entry of it is acknowledged",
    "acknowledging": "the first XACK of the batch is sent, its reply is not read",
}
SINKS = ("attempts", "stream")  # sinks for any fault
TRIGGERS: dict[str, dict[str, Any]] = {
    "always": {"processingTime": "0 seconds"},
    "now": {"availableNow": True},
    "once": {"once": True},
}


@dataclass(frozen=True)
class Fault:
    """Fault in batch `batch`, after `rows` rows.

    kind: `hold` at a kill point until killed, or `pause` there until `go` exists. Or in the first task that reaches it:
    `raise`, `kill` (its Python process), `wait` (until a speculative task has written) or `zombie` (the attempt fails;
    its process lives on, and writes when `wake` exists). Or `crash`: every task fails in every attempt. Or `orphan`:
    the first task becomes a zombie, all others crash;
    stage: the kill point.
    """

    kind: str
    batch: int = 1
    stage: str = ""
    rows: int = 1


@dataclass(frozen=True)
class Query:
    """A query under test.

    folder: see above; trigger: of TRIGGERS; ahead: minimum of entries for which the next batch is reserved ahead
    (source.trigger.roles).

    sink: `attempts`, `parquet` or `stream`: format("rstream"), exactly once, into stream `out` of out_url (default: the
    server of the source); routed: into one such stream for each input stream. out_options: of that sink; patience:
    seconds that its tasks wait for a server; driver: '', or the name of a second driver that runs the same query.
    """

    name: str
    folder: str
    url: str
    options: dict[str, str] = field(default_factory=dict)
    sink: str = "attempts"
    trigger: str = "always"
    fault: Fault | None = None
    ahead: int = LIMITS.prefetch_entries
    out_url: str = ""
    out_options: dict[str, str] = field(default_factory=dict)
    routed: bool = False
    patience: float | None = None
    driver: str = ""

    def __post_init__(self) -> None:
        Path(self.folder).mkdir(parents=True, exist_ok=True)

    @property
    def path(self) -> Path:
        """Folder of the query."""
        return Path(self.folder)

    @property
    def group(self) -> str:
        """Consumer group of the query."""
        return self.options.get("group", "g")

    @property
    def out(self) -> str:
        """Output stream, or prefix of the output streams."""
        return f"out:{self.name}"

    @property
    def out_address(self) -> str:
        """Address of the server of the sink."""
        return self.out_url or self.url

    def sign(self, name: str) -> Path:
        """Return the path of a signal file."""
        return self.path / f"{self.driver}{name}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields for the job's file and for the options of the data source."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Query:
        """Return the query that `to_json` described."""
        fault = value.get("fault")
        return cls(**{**value, "fault": None if fault is None else Fault(**fault)})

    # -- state that Spark and the query have written to the folder -----------------------------------------------

    def logged(self) -> int:
        """Return the last batch in the offset log; -1: none."""
        return last_batch(self.path / "checkpoint" / "offsets")

    def committed(self) -> int:
        """Return the last batch in the commit log; -1: none."""
        return last_batch(self.path / "checkpoint" / "commits")

    def held(self) -> bool:
        """Whether the query has reached its kill point."""
        return self.sign("held").exists()

    def ended(self) -> str | None:
        """Return the text of the error that ended the query, '' if there was none, or None while it runs."""
        file = self.sign("ended")
        return file.read_text() if file.exists() else None


def into_a_stream(query: Query, random_: random.Random) -> Query:
    """Return the same query with the Redis Streams sink."""
    chunk = str(random_.choice([3, 10, 5000]))
    return replace(query, sink="stream", routed=random_.random() < 0.3, out_options={"chunkSize": chunk})
