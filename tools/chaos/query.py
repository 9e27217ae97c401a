"""A query under test: its source, its sink, and its fault. Plain values that are passed as JSON.

All its files are in one folder:

    checkpoint/     Spark's
    rows/           one file of JSON lines per task attempt (tools.chaos.struck)
    batches/        one JSON file per batch in the sink: the names of the committed attempts
    acks.jsonl      every XACK that was sent, with the last batch of the commit log just before it
    up              created when the source's Python process on the driver runs
    held            created when the query has reached its kill point: the pid of the process that stands still there
    go              lets a paused query continue; or lets a query that starts at `latest` build its first batch, if its
                    fault is in that batch
    struck          created when a fault in a task has happened; `twin`: when the speculative task has written
    asleep, wake    created when a zombie stands still; lets it continue; `zombie`: its result
    stop            makes the query read what is there, and stop
    ended           created when the query has ended: the text of the error, or empty

The files without a suffix are signals between the query and the scene. Those of a second driver begin with its name, so
that two drivers can use one folder.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spark_streams.connector.source.limits import LIMITS
from spark_streams.operations.verify.checkpoint_log import last_batch

SIGNS = ("up", "held", "go", "struck", "twin", "asleep", "wake", "zombie", "stop", "ended")
SINKS = ("attempts", "stream")  # sinks for any fault


@dataclass(frozen=True)
class Fault:
    """What happens to a query, once. Stages:

    started         the first offset is known, the first trigger has not created the group (batch 0 only)
    looked          the state of the group is read, the batch is not reserved
    reserved        entries are reserved, the batch is not in the offset log
    logged          the batch is in the offset log, no entry is read
    reading         a task has read `rows` rows
    writing         a task has passed `rows` rows to the sink
    closing         all tasks have written, the batch is not committed in the sink
    written         the batch is in the sink, and not in the commit log
    committed       the batch is in the commit log, no entry of it is acknowledged
    acknowledging   the first XACK of the batch is sent, its reply is not read
    """

    # `hold` until killed, or `pause` until `go` exists. In the first task that reaches the stage: `raise`, `kill` (its
    # Python process), `wait` (until a speculative task has written) or `zombie` (the attempt fails; its process lives
    # on, and writes when `wake` exists). `crash`: every task fails in every attempt. `orphan`: the first task becomes a
    # zombie, all others crash.
    kind: str
    batch: int = 1
    stage: str = ""
    rows: int = 1


@dataclass(frozen=True)
class Query:
    """A query under test."""

    folder: str
    url: str
    options: dict[str, str] = field(default_factory=dict)  # of the source
    sink: str = "attempts"  # or `parquet`, `stream`, `retries`, `shards` (tools.chaos.program)
    trigger: str = "always"  # or `now`, `once`
    fault: Fault | None = None
    ahead: int = LIMITS.prefetch_entries  # entries for which the next batch is reserved ahead
    out: str = "out"  # output stream, or prefix of the output streams
    out_url: str = ""  # "": the server of the source
    out_options: dict[str, str] = field(default_factory=dict)
    routed: bool = False  # into an output stream for each input stream
    patience: float | None = None  # seconds that its sink waits for a server
    driver: str = ""  # name of a second driver that runs the same query

    @property
    def path(self) -> Path:
        """Folder of the query."""
        return Path(self.folder)

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.path.name

    @property
    def group(self) -> str:
        """Consumer group of the query."""
        return self.options["group"]

    @property
    def out_address(self) -> str:
        """URL of the server of the sink."""
        return self.out_url or self.url

    def sign(self, name: str) -> Path:
        """Return the path of a signal file."""
        return self.path / f"{self.driver}{name}"

    def has(self, name: str) -> bool:
        """Whether a signal file exists."""
        return self.sign(name).exists()

    def ended(self) -> str | None:
        """Return the text of the error that ended the query, '' if there was none, or None while it runs."""
        return self.sign("ended").read_text() if self.has("ended") else None

    def logged(self) -> int:
        """Return the last batch in the offset log; -1: none."""
        return last_batch(self.path / "checkpoint" / "offsets")

    def committed(self) -> int:
        """Return the last batch in the commit log; -1: none."""
        return last_batch(self.path / "checkpoint" / "commits")

    def to_json(self) -> str:
        """Return the fields for the job's file and for the options of the data source."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Query:
        """Return the query that `to_json` described."""
        value: dict[str, Any] = json.loads(text)
        return cls(**value | {"fault": value["fault"] and Fault(**value["fault"])})
