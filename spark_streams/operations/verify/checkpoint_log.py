"""The logs in the checkpoint of the query that `rstream verify` runs."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from spark_streams.base.ids import StreamId
from spark_streams.base.numbers import parse_number
from spark_streams.connector.admin.checkpoint import Offset


class CheckpointLog:
    """The logs of a query that runs. Spark deletes old files, so `ends` is read again and again meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ends: dict[int, dict[str, StreamId]] = {}

    def logged(self) -> int:
        """Return the last batch in the offset log; -1: none."""
        return last_batch(self.folder / "offsets")

    def committed(self) -> int:
        """Return the last batch in the commit log; -1: none."""
        return last_batch(self.folder / "commits")

    def query_id(self) -> str | None:
        """Return Spark's ID of the query; None before its first start."""
        file = self.folder / "metadata"
        return str(json.loads(file.read_text())["id"]) if file.exists() else None

    def ends(self) -> dict[int, dict[str, StreamId]]:
        """Return where each batch so far ends in each stream."""
        for number in set(_batches(self.folder / "offsets")) - self._ends.keys():
            with contextlib.suppress(FileNotFoundError):  # Spark has just deleted it
                text = (self.folder / "offsets" / str(number)).read_text()
                self._ends[number] = dict(Offset.from_json(json.loads(text.splitlines()[2])).positions)
        return self._ends


def last_batch(log: Path) -> int:
    """Return the highest number among the file names of a log of Spark; -1: none."""
    return max(_batches(log), default=-1)


def _batches(log: Path) -> list[int]:
    numbers = [parse_number(file.name) for file in log.iterdir()] if log.is_dir() else []
    return [number for number in numbers if number is not None]
