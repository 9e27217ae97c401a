"""What a test commands an engine to do: move its clock, and fail. Everything is a DEBUG command."""

from __future__ import annotations

import contextlib
import datetime
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal, get_args

from spark_streams.base import times

Error = Literal["OOM", "LOADING", "READONLY", "NOREPLICAS", "BUSY"]


def _milliseconds(duration: str | float | datetime.timedelta) -> str:
    """Return a duration (`10m`, seconds or a timedelta) as an argument. Raises ValueError."""
    if isinstance(duration, str):
        try:
            return str(times.duration(duration))
        except ValueError as error:
            raise ValueError(f"duration {duration!r} {error}") from None
    seconds = duration.total_seconds() if isinstance(duration, datetime.timedelta) else duration
    return str(round(seconds * 1000))


class TestControls(ABC):
    """Clock and faults of an engine. A fault ends with its `with` block, and all faults with it."""

    __test__ = False  # pytest collects no tests here

    @abstractmethod
    def debug(self, *words: str) -> None:
        """Run a DEBUG command. Raises ValueError with the engine's error."""

    def advance(self, duration: str | float | datetime.timedelta) -> None:
        """Move the engine's time on, so that nothing has to sleep: new IDs, idle times, expiry, delays of retries and
        leases follow, and clients whose wait is over are answered at once.

        duration: `10m`, seconds, or a timedelta. Raises ValueError.
        """
        self.debug("CLOCK", "ADVANCE", _milliseconds(duration))

    def freeze(self, at: str | int | datetime.datetime | None = None) -> None:
        """Stop the engine's clock, so that tests know each ID. `advance` moves it, `unfreeze` lets it run again.

        at: a time as ISO-8601 (UTC if it names no zone), in milliseconds since 1970, or a datetime. Default: the
        present moment. Raises ValueError.
        """
        time = at.isoformat() if isinstance(at, datetime.datetime) else at
        self.debug("CLOCK", "FREEZE", *([] if time is None else [str(times.moment(str(time)))]))

    def unfreeze(self) -> None:
        """Let a frozen clock run again, from its time."""
        self.debug("CLOCK", "RUN")

    def reset_clock(self) -> None:
        """Return to the machine's time. The IDs of a stream never become smaller."""
        self.debug("CLOCK", "RESET")

    def refuses(self, error: Error) -> contextlib.AbstractContextManager[None]:
        """Refuse commands as a server does in this state, with Redis' text.

        OOM refuses commands that need memory; READONLY and NOREPLICAS refuse writes; LOADING and BUSY nearly all. EXEC
        is refused if it would run such a command. BUSY also ends with SCRIPT KILL.
        """
        if error not in get_args(Error):
            raise ValueError(f"an engine does not refuse commands with {error!r}: use {', '.join(get_args(Error))}")
        return self._fault("REFUSE", error)

    def closes(
        self, after_commands: int | None = None, after_bytes: int | None = None, before_effect: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Close a connection once: of the client that sends the command with this number, or that gets the byte with
        this number of a reply. Commands and bytes of all clients count, but no set-up of a connection (HELLO, AUTH,
        SELECT, CLIENT SETINFO, CLIENT SETNAME).

        before_effect: close before the command is run. Otherwise it is run, and its reply is lost.
        """
        if (after_commands is None) == (after_bytes is None):
            raise ValueError(
                f"give after_commands or after_bytes, not {'both' if after_bytes is not None else 'neither'} of them"
            )
        if after_bytes is not None:
            return self._fault("CUT", str(after_bytes))
        return self._fault("CLOSE", str(after_commands), "BEFORE" if before_effect else "AFTER")

    def delays(self, duration: str | float | datetime.timedelta) -> contextlib.AbstractContextManager[None]:
        """Let each command take this time. Meanwhile the engine serves nobody else."""
        return self._fault("DELAY", _milliseconds(duration))

    def end_faults(self) -> None:
        """End all faults."""
        self.debug("FAULT", "END")

    @contextlib.contextmanager
    def _fault(self, *words: str) -> Iterator[None]:
        self.debug("FAULT", *words)
        try:
            yield
        finally:
            self.end_faults()
