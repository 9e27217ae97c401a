"""Runs commands of `rstream`: dry runs, checks, and changes with their progress. Each change leaves one audit line.

The command runs in a process of its own with the console's settings: a page does exactly what the command line does,
and a command that fails or hangs does not stop the console.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from spark_streams.console.actions import with_options
from spark_streams.model.own_python import python_command, python_environment
from spark_streams.model.printable import json_text
from spark_streams.model.untyped import Json

KEPT = 100  # changes
_RSTREAM = "from spark_streams.cli import main; main(prog_name='rstream')"
_SECONDS = 120.0  # that a dry run may take
_LINE = 1 << 20  # bytes of a line of output
_COUNTS = ("entries", "moved", "parked", "deleted", "read_again", "skipped", "pending")  # of a command's JSON output


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
    """A change that runs or has run. progress: (done, total, note) of a command that reports it."""

    number: int
    user: str
    arguments: Sequence[str]
    began: datetime
    progress: tuple[int, int, str] | None = None
    outcome: Outcome | None = None
    _process: asyncio.subprocess.Process | None = field(default=None, repr=False)


class Changes:
    """The last changes. environment: of the commands; audit: receives a line for each change."""

    def __init__(self, environment: Mapping[str, str], audit: Callable[[str], None]) -> None:
        self._environment, self._audit = dict(environment), audit
        self._changes: deque[Change] = deque(maxlen=KEPT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0

    async def dry_run(self, arguments: Sequence[str]) -> Outcome:
        """Run a command that changes nothing, and return how it ended."""
        process = await self._start(arguments)
        try:
            async with asyncio.timeout(_SECONDS):
                output, error = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return Outcome(1, None, f"no answer within {_SECONDS:g} s")
        lines = error.decode("utf-8", "replace").splitlines()
        return _outcome(process.returncode, output, "\n".join(line for line in lines if _progress(line) is None))

    def start(self, user: str, arguments: Sequence[str]) -> Change:
        """Begin a change."""
        self._number += 1
        change = Change(self._number, user, list(arguments), datetime.now(UTC))
        self._changes.append(change)
        task = asyncio.create_task(self._run(change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return change

    def get(self, number: int) -> Change | None:
        """Return one of the last changes."""
        return next((change for change in self._changes if change.number == number), None)

    @property
    def last(self) -> list[Change]:
        """The last changes, the newest first."""
        return list(reversed(self._changes))

    async def close(self) -> None:
        """Stop running changes as Ctrl-C does, and wait for their end."""
        for change in self._changes:
            if change._process is not None and change.outcome is None:
                change._process.terminate()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _start(self, arguments: Sequence[str]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *python_command("-c", _RSTREAM, *with_options(arguments, "--json")),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE,
            env=python_environment(self._environment),
        )

    async def _run(self, change: Change) -> None:
        try:
            change._process = process = await self._start(change.arguments)
            assert process.stdout is not None
            assert process.stderr is not None
            output, error = await asyncio.gather(process.stdout.read(), self._read_progress(change, process.stderr))
            change.outcome = _outcome(await process.wait(), output, error)
        except (OSError, ValueError) as error:  # the command could not be started, or printed an endless line
            change.outcome = Outcome(1, None, f"the command could not be run: {error}")
        finally:
            self._audit(audit_line(change))

    @staticmethod
    async def _read_progress(change: Change, stream: asyncio.StreamReader) -> str:
        """Read standard error: lines of progress, and other lines, which are returned."""
        lines: deque[str] = deque(maxlen=50)
        while line := await stream.readline():
            text = line.decode("utf-8", "replace").rstrip()
            progress = _progress(text)
            if progress is None:
                lines.append(text)
            else:
                change.progress = progress
        return "\n".join(lines)


def _progress(line: str) -> tuple[int, int, str] | None:
    """Return (done, total, note) of a line of progress (RSTREAM_PROGRESS=json); None if it is none."""
    try:
        value = json.loads(line) if line.startswith("{") else None
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("done"), int) or not isinstance(value.get("total"), int):
        return None
    return value["done"], value["total"], str(value.get("note", ""))


def _outcome(code: int | None, output: bytes, error: str) -> Outcome:
    try:
        document = json.loads(output) if output.strip() else None
    except ValueError:
        document = None
        error = f"{error}\n{output.decode('utf-8', 'replace')}".strip()
    text = error.strip()
    if text.startswith("Usage: "):  # what Click prints before an error
        text = text.partition("\nError: ")[2] or text
    return Outcome(1 if code is None else code, document, text.removeprefix("Error: "))


def audit_line(change: Change) -> str:
    """Return the line of a change: when, who, what, how many."""
    outcome = change.outcome
    counts = {} if outcome is None or not isinstance(outcome.output, dict) else _counts(outcome.output)
    line = {
        "at": change.began.isoformat(timespec="milliseconds"),
        "user": change.user,
        "command": ["rstream", *change.arguments],
        "exit_code": None if outcome is None else outcome.code,
        **counts,
    }
    if outcome is not None and outcome.code:
        line["error"] = outcome.error[:500]
    return json_text(line)


def _counts(output: dict[str, Json]) -> dict[str, int]:
    """Return the numbers of a command's output: its own, or the sums of its streams."""
    rows = [output, *[row for row in output.get("streams", ()) if isinstance(row, dict)]]
    counts: dict[str, int] = {}
    for row in rows:
        for name in _COUNTS:
            if isinstance(row.get(name), int):
                counts[name] = counts.get(name, 0) + row[name]
    return counts
