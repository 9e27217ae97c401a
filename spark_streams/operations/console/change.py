"""A change, and how a command of `rstream` has ended. Values."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from spark_streams.base.untyped import Json


@dataclass(frozen=True)
class Outcome:
    """The end of a command. output: its JSON document, None if it printed none; error: what it printed to standard
    error; code: its exit code."""

    code: int
    output: Json
    error: str

    @property
    def refused(self) -> list[str]:
        """Why the change would be refused now."""
        reasons = self.output.get("refused") if isinstance(self.output, dict) else None
        return reasons if isinstance(reasons, list) else []


@dataclass
class Change:
    """A change that runs or has run. progress: (done, total, note) of a command that reports it; total is 0
    if it is not known."""

    number: int
    user: str
    arguments: Sequence[str]
    began: datetime
    progress: tuple[int, int, str] | None = None
    outcome: Outcome | None = None
    _process: asyncio.subprocess.Process | None = field(default=None, repr=False)
