"""A query under test: what it reads, where it writes, and the fault that waits in it. Plain values that travel as JSON.

Everything about it is in one folder:

    checkpoint/     Spark's
    rows/           one file of JSON lines per task attempt of the sink (chaos.attempts)
    batches/        one JSON file per batch that the sink keeps: the names of the attempts that count
    acks.jsonl      every XACK as it was sent, with the last batch of the commit log just before it
    up              made when the source's Python process on the driver is there
    held            made when the query has come to its kill point: the pid of the process that stands still there
    go              made when a query that has paused may go on; or when one that begins at `latest` may build its first
                    batch, if its fault is in that
    struck          made when a fault in a task has happened; `twin`: when the task's twin has written meanwhile
    asleep, wake    made when a zombie stands still; made when it is to go on; `zombie`: what became of it
    ended           made when the query has ended: the error's text, or nothing
    stop            makes the job stop the query

The files without an ending are signs between the query and the test. The names of those of a second driver begin with
its own, so that two can have one folder.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from spark_streams.source.limits import LIMITS

SCHEMA = "p STRING, n LONG, _stream STRING, _id STRING"

# Where a query can be made to stand still, to be killed there. `batch` of the fault says in which batch.
KILL_POINTS = {
    "started": "the group is made, nothing is reserved yet (batch 0 only)",
    "looked": "the group was looked at, the batch is about to be reserved",
    "reserved": "entries are reserved, the offset log has not the batch yet",
    "logged": "the offset log has the batch, nothing is read yet",
    "reading": "a task has read so many rows",
    "writing": "a task has handed so many rows to the sink",
    "closing": "all tasks have written, the sink has not closed the batch",
    "written": "the sink has the batch, the commit log has not",
    "committed": "the commit log has the batch, nothing of it is acknowledged",
    "acknowledging": "the first XACK of the batch is sent, its reply not read",
}
SINKS = ("attempts", "stream")  # that any fault can be put under
TRIGGERS: dict[str, dict[str, Any]] = {
    "always": {"processingTime": "0 seconds"},
    "now": {"availableNow": True},
    "once": {"once": True},
}


@dataclass(frozen=True)
class Fault:
    """What happens in `batch`.

    kind: `hold` at a kill point for ever, or `pause` there until `go` is made; or in the task that meets it first
    `raise`, `kill` (its Python process), `wait` (until a twin of it has written) or `zombie` (the attempt fails, its
    process lives on and writes when `wake` is made), after `rows` rows; or `crash`: every task, in every attempt; or
    `orphan`: the first one a zombie, all others crash;
    stage: the kill point.
    """

    kind: str
    batch: int = 1
    stage: str = ""
    rows: int = 1


@dataclass(frozen=True)
class Query:
    """folder: see above; trigger: of TRIGGERS; ahead: from how many entries on the next batch is reserved ahead
    (source.microbatch.prefetch).

    sink: `attempts`, `parquet` or `stream`: format("rstream"), exactly once, into stream `out` of out_url (where the
    source is, unless said), or routed: into one such stream for each that is read. out_options: of that sink; patience:
    seconds that its tasks wait for a server; driver: '', or the name of a second one that runs the same query.
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
        """The folder."""
        return Path(self.folder)

    @property
    def group(self) -> str:
        """The consumer group that it reads through."""
        return self.options.get("group", "g")

    @property
    def out(self) -> str:
        """The stream that it writes to, or what the names of these streams begin with."""
        return f"out:{self.name}"

    @property
    def out_at(self) -> str:
        """The address of the server that it writes to."""
        return self.out_url or self.url

    def sign(self, name: str) -> Path:
        """A file that says something by being there."""
        return self.path / f"{self.driver}{name}"

    def to_json(self) -> dict[str, Any]:
        """For the job's command line and for the options of the data source."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Query:
        """The reverse."""
        fault = value.get("fault")
        return cls(**{**value, "fault": None if fault is None else Fault(**fault)})

    # -- what Spark and the query have noted in the folder -------------------------------------------------------

    def logged(self) -> int:
        """The last batch in the offset log; -1: none."""
        return _last(self.path / "checkpoint" / "offsets")

    def committed(self) -> int:
        """The last batch in the commit log; -1: none."""
        return _last(self.path / "checkpoint" / "commits")

    def offset(self, batch: int) -> dict[str, Any]:
        """The offset at the end of a batch."""
        lines = (self.path / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    def held(self) -> bool:
        """Whether it stands at its kill point."""
        return self.sign("held").exists()

    def ended(self) -> str | None:
        """None while it runs; then the text of the error that ended it, '' where there was none."""
        file = self.sign("ended")
        return file.read_text() if file.exists() else None


def into_a_stream(query: Query, random_: random.Random) -> Query:
    """The same query with the product's own sink."""
    chunk = str(random_.choice([3, 10, 5000]))
    return replace(query, sink="stream", routed=random_.random() < 0.3, out_options={"chunkSize": chunk})


def _last(folder: Path) -> int:
    """The highest number that is a file name in a log of Spark."""
    try:
        return max((int(file.name) for file in folder.iterdir() if file.name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1
