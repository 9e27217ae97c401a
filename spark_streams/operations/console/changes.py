"""Runs commands of `rstream`: dry runs, checks, and changes with their progress. The audit log has each change.

The command runs in a process of its own with the console's settings: a page does exactly what the command line does,
and a command that fails or hangs does not stop the console. The number of processes is bounded.

The audit log has two lines of JSON for each change, at its begin and end. The file can be read by its owner only. A
change whose first line cannot be written does not begin.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from spark_streams.base.extras import python_command, python_environment
from spark_streams.base.printable import json_text
from spark_streams.base.untyped import Json
from spark_streams.connector.deadletter.envelope import raw
from spark_streams.connector.errors import ConfigError, OptionError, RStreamError, TakenError
from spark_streams.operations.console.actions import with_options
from spark_streams.operations.console.allow_list import AllowList
from spark_streams.operations.console.incoming import CHANGES, COMMAND_BYTES, DRY_RUNS


@dataclass(frozen=True)
class CommandOutcome:
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

    def shown(self, allowed: AllowList, arguments: Sequence[str]) -> CommandOutcome:
        """Return it as it is shown. arguments: of the command."""
        output, error = allowed.printed(arguments, self.output, self.error)
        return replace(self, output=output, error=error)


@dataclass
class Change:
    """A change that runs or has run."""

    number: int  # since the console was started
    user: str
    arguments: Sequence[str]  # words after `rstream`
    began: datetime
    progress: tuple[int, int, str] | None = None  # (done, total, note) of a command that reports it; total 0: unknown
    outcome: CommandOutcome | None = None  # None: it runs
    _process: asyncio.subprocess.Process | None = field(default=None, repr=False)

    def shown(self, allowed: AllowList) -> Change:
        """Return it as it is shown."""
        outcome = None if self.outcome is None else self.outcome.shown(allowed, self.arguments)
        return replace(self, arguments=allowed.words(self.arguments), outcome=outcome)


# Of a command's JSON output.
_COUNTS = ("added", "entries", "moved", "parked", "deleted", "read_again", "skipped", "pending")


def open_audit(path: Path) -> Callable[[str], None]:
    """Return a function that appends a line to the file. Raises ConfigError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, 0o600)
    except OSError as error:
        raise ConfigError(f"the audit log {path} cannot be written: {error.strerror}") from error

    def append(line: str) -> None:
        data = f"{line}\n".encode("utf-8", "backslashreplace")
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return append


class Audit:
    """write: receives each line; allowed: values that a line may have. Each method raises ConfigError if the line
    cannot be written."""

    def __init__(self, write: Callable[[str], None], allowed: AllowList) -> None:
        self._write, self._allowed = write, allowed

    def begin(self, change: Change) -> None:
        """Write the first line of a change: when, who, what."""
        self._add({"event": "change begins", **_named(change.shown(self._allowed))})

    def end(self, change: Change) -> None:
        """Write the last line of a change: its exit code, and how many entries it has changed."""
        change = change.shown(self._allowed)
        outcome = change.outcome
        line = {"event": "change ends", **_named(change), "exit_code": None if outcome is None else outcome.code}
        if outcome is not None and isinstance(outcome.output, dict):
            line |= _counts(outcome.output)
        if outcome is not None and outcome.code:
            line["error"] = outcome.error[:500]
        self._add(line)

    def _add(self, line: dict[str, Json]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            self._write(json_text({"at": now, **line}))
        except OSError as error:
            raise ConfigError(f"the audit log cannot be written: {error.strerror}; make room for it") from error


def _named(change: Change) -> dict[str, Json]:
    return {"change": change.number, "user": change.user, "command": ["rstream", *change.arguments]}


def _counts(output: dict[str, Json]) -> dict[str, int]:
    """Return the numbers of a command's output: its own, or the sums of its streams."""
    rows = [output, *[row for row in output.get("streams", ()) if isinstance(row, dict)]]
    counts: dict[str, int] = {}
    for row in rows:
        for name in _COUNTS:
            if isinstance(row.get(name), int):
                counts[name] = counts.get(name, 0) + row[name]
    return counts


KEPT = 100  # changes
_RSTREAM = "from spark_streams.cli import main; main(prog_name='rstream')"
_SECONDS = 120.0  # that a dry run may take
_TELL_EVERY = 0.5  # seconds between two refreshes of a page with progress
_LINE = 1 << 20  # bytes of a line of output


class Changes:
    """The last changes. environment: of the commands; tell: is called when a change goes on or has ended."""

    def __init__(self, environment: Mapping[str, str], audit: Audit, tell: Callable[[], Awaitable[None]]) -> None:
        self._environment, self._audit, self._tell = dict(environment), audit, tell
        self._changes: deque[Change] = deque(maxlen=KEPT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._dry_runs = 0
        self._number = 0

    async def dry_run(self, arguments: Sequence[str]) -> CommandOutcome:
        """Run a command that changes nothing, and return how it ended. The process ends if this is cancelled. Raises
        TakenError if as many dry runs as possible are running, OptionError if the command is too long."""
        if self._dry_runs >= DRY_RUNS:
            raise TakenError(f"{DRY_RUNS} dry runs or checks are running, and no more are possible; try again soon")
        self._dry_runs += 1
        try:
            process = await self._start(arguments)
            try:
                async with asyncio.timeout(_SECONDS):
                    output, error = await process.communicate()
            except TimeoutError:
                return CommandOutcome(1, None, f"no answer within {_SECONDS:g} s")
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        finally:
            self._dry_runs -= 1
        lines = error.decode("utf-8", "replace").splitlines()
        return _outcome(process.returncode, output, "\n".join(line for line in lines if _progress(line) is None))

    def start(self, user: str, arguments: Sequence[str]) -> Change:
        """Begin a change. Raises TakenError if as many changes as possible are running, ConfigError if the audit log
        cannot be written."""
        if len(self._tasks) >= CHANGES:
            raise TakenError(f"{CHANGES} changes are running, and no more are possible; wait until one has ended")
        self._number += 1
        change = Change(self._number, user, list(arguments), datetime.now(UTC))
        self._audit.begin(change)
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
        require_short(arguments)
        try:
            return await asyncio.create_subprocess_exec(
                *python_command("-c", _RSTREAM, *with_options(arguments, "--json")),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=_LINE,
                env=python_environment(self._environment),
            )
        except OSError as error:
            if error.errno == errno.E2BIG:  # the environment counts, too
                raise _too_long() from error
            raise TakenError(f"the command could not be started: {error.strerror}; try again soon") from error

    async def _run(self, change: Change) -> None:
        try:
            change._process = process = await self._start(change.arguments)
            assert process.stdout is not None
            assert process.stderr is not None
            output, error = await asyncio.gather(process.stdout.read(), self._read_progress(change, process.stderr))
            change.outcome = _outcome(await process.wait(), output, error)
        except (OSError, ValueError, RStreamError) as error:  # it could not be started, or printed an endless line
            change.outcome = CommandOutcome(1, None, f"the command could not be run: {error}")
        finally:
            self._write_end(change)
        await self._tell()

    def _write_end(self, change: Change) -> None:
        try:
            self._audit.end(change)
        except ConfigError as error:
            outcome = change.outcome or CommandOutcome(1, None, "")
            change.outcome = replace(outcome, error=f"{outcome.error} {error.message}".strip())

    async def _read_progress(self, change: Change, stream: asyncio.StreamReader) -> str:
        """Read standard error: lines of progress, and other lines, which are returned."""
        lines: deque[str] = deque(maxlen=50)
        last_refresh = 0.0
        while line := await stream.readline():
            text = line.decode("utf-8", "replace").rstrip()
            progress = _progress(text)
            if progress is None:
                lines.append(text)
            else:
                change.progress = progress
                if time.monotonic() - last_refresh > _TELL_EVERY:
                    last_refresh = time.monotonic()
                    await self._tell()
        return "\n".join(lines)


def require_short(arguments: Sequence[str]) -> None:
    """Raise OptionError if the system would not start a command with these arguments."""
    if any("\0" in word for word in arguments):
        raise OptionError("a name or value has a NUL character, which no command line takes; use a program instead")
    if sum(len(raw(word)) + 1 for word in arguments) > COMMAND_BYTES:
        raise _too_long()


def _too_long() -> OptionError:
    return OptionError(
        f"the change is too long for a command, which has at most {COMMAND_BYTES:,} bytes. "
        "Change fewer or shorter values, or use the command line: rstream add STREAM - reads JSON lines, and "
        "rstream dead redrive --transform MODULE:FUNCTION calls a function"
    )


def _progress(line: str) -> tuple[int, int, str] | None:
    """Return (done, total, note) of a line of progress (RSTREAM_PROGRESS=json); None if it is none."""
    try:
        value = json.loads(line) if line.startswith("{") else None
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("done"), int):
        return None
    total = value.get("total")
    return value["done"], total if isinstance(total, int) else 0, str(value.get("note", ""))


def _outcome(code: int | None, output: bytes, error: str) -> CommandOutcome:
    try:
        document: Json = json.loads(output) if output.strip() else None
    except ValueError:
        document = None
        error = f"{error}\n{output.decode('utf-8', 'replace')}".strip()
    text = error.strip()
    if text.startswith("Usage: "):  # what Click prints before an error
        text = text.partition("\nError: ")[2] or text
    return CommandOutcome(1 if code is None else code, document, text.removeprefix("Error: "))
