"""[letters]: which dead letters of a stream are sent back."""

from __future__ import annotations

from spark_streams.connector.deadletter.criteria import parse_criteria
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.lag.survey import view_streams
from spark_streams.connector.wire.connect import connect
from spark_streams.jobs.job import Job
from spark_streams.jobs.part import Facts, Part
from spark_streams.jobs.settings.config import FREE


class Letters(Part):
    """Selection of the dead letters of a stream.

    Args:
        job: The job, with its configuration.

    Attributes:
        stream: The stream of dead letters.
        criteria: What a dead letter must fulfil.

    Raises:
        ConfigError: A key of `[letters]` has the wrong type.
        InvalidOptionError: A value cannot be used.
    """

    KEYS = {
        "letters": {
            "stream": str,
            "of_streams": list,
            "reasons": list,
            "stages": list,
            "errors": list,
            "fields": FREE,
            "older": str,
            "newer": str,
            "first_id": str,
            "last_id": str,
        },
    }
    REQUIRED = ("letters.stream",)

    def __init__(self, job: Job) -> None:
        self._job = job
        self.stream: str = job.get("letters.stream")
        lists: dict[str, list[str]] = {}
        for name in ("of_streams", "reasons", "stages", "errors"):
            lists[name.removeprefix("of_")] = values = job.get(f"letters.{name}", [])
            if not all(isinstance(value, str) for value in values):
                raise ConfigError(f"letters.{name} must be a list of strings, not {values!r}")
        self.criteria = parse_criteria(
            **lists,
            fields=[f"{name}={value}" for name, value in job.plain_options("letters.fields").items()],
            first=job.get("letters.first_id"),
            last=job.get("letters.last_id"),
            older=job.get("letters.older"),
            newer=job.get("letters.newer"),
        )

    def plan(self) -> Facts:
        with connect(self._job.address) as server:
            count = sum(view.length for view in view_streams(server, [self.stream]))
            return {"read": f"{self.stream} at {server.address} ({count:,} dead letters)"}
