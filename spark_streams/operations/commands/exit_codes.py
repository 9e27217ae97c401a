"""How a command ends: its exit code, also if it fails, and if its output cannot be written.

Output that nobody reads any more (`| head`) ends a command without a message, with the code of what it has found. Any
other error of standard output, such as a full disk, is one line and code 1.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING

import click

from spark_streams.connector.errors import OptionError, RStreamError, StreamStateError, UnsupportedError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

FAILED = 1
WRONG_USAGE = 2
CHECK_FAILED = REFUSED = 3  # REFUSED: of a dry run
UNPROVED = 4
STOPPED = 130

# Exit codes by the class of the error: (in a dry run, else). Of several classes, the first. docs/reference/commands.md.
CODES: dict[type[RStreamError], tuple[int, int]] = {
    OptionError: (WRONG_USAGE, WRONG_USAGE),
    StreamStateError: (REFUSED, FAILED),
    UnsupportedError: (REFUSED, FAILED),
    RStreamError: (FAILED, FAILED),
}

_found = ContextVar("found", default=0)


def found(code: int) -> None:
    """Set the exit code by what the command has found. Called before it prints, as its output may have no reader."""
    _found.set(code)


def only_reads() -> None:
    """Say that the running command, which has --yes for another use, changes nothing: it is no dry run."""
    click.get_current_context().params.pop("yes")


def code_of(error: RStreamError) -> int:
    """Return the exit code of an error that ends the running command."""
    context = click.get_current_context(silent=True)
    is_dry_run = context is not None and context.params.get("yes") is False
    in_dry_run, code = next(codes for kind, codes in CODES.items() if isinstance(error, kind))
    return in_dry_run if is_dry_run else code


class StandardStreamError(Exception):
    """A standard stream of the process cannot be read or written. No OSError: click and others handle those."""

    def __init__(self, name: str, error: OSError) -> None:
        verb = "read" if name == "input" else "written"
        super().__init__(f"standard {name} cannot be {verb}: {error.strerror}. A change that was made stays")
        self.has_no_reader = error.errno == errno.EPIPE


class _StandardStream(io.FileIO):
    """A standard stream of this process. After an error, nothing more is written."""

    def __init__(self, descriptor: int, role: str) -> None:
        super().__init__(descriptor, "r" if role == "input" else "w", closefd=False)
        self._role = role
        self._has_failed = False

    def write(self, data: ReadableBuffer) -> int:
        if self._has_failed:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            self._has_failed = True
            raise StandardStreamError(self._role, error) from error

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise StandardStreamError(self._role, error) from error


def begin() -> None:
    """Begin a command: nothing is found yet, and errors of standard streams are named."""
    found(0)
    for name, role in (("stdin", "input"), ("stdout", "output"), ("stderr", "error")):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):  # else it is that of a program that runs the command in its process
            setattr(sys, name, _watched(stream, role))


def _watched(stream: io.TextIOWrapper | None, role: str) -> io.TextIOWrapper:
    raw = _StandardStream(os.open(os.devnull, os.O_WRONLY) if stream is None else stream.fileno(), role)
    buffer = io.BufferedReader(raw) if role == "input" else io.BufferedWriter(raw)
    if stream is None:  # closed: what is written goes nowhere, and reading fails
        return io.TextIOWrapper(buffer)
    return io.TextIOWrapper(
        buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering, write_through=stream.write_through
    )


def end(code: str | int | None, error: StandardStreamError | None = None) -> int:
    """Return the exit code of a command that ended with this one, or with an error of a standard stream."""
    if error is not None and not error.has_no_reader:
        click.echo(f"Error: {error}", err=True)
        return FAILED
    return code if isinstance(code, int) and code else _found.get()
