"""Loads an append-only file.

hiredis parses the file, and the commands run without a client. hiredis does not report at which byte a command began.
If something is wrong, the file is read again, byte by byte, to find the offset.

When an engine starts, clients are served between two chunks of the file: commands that need data get LOADING.

Possible faults, and the outcome:

    the file ends within a command, or within MULTI … EXEC      a torn write: cut off there, or refused if configured so
    the file ends in zeros                                      the same: a file system after a power failure
    a Redis command that this engine does not implement         UnknownCommandError with its name; nothing is changed
    anything else                                               CorruptFileError with the offset; nothing is changed

A damaged length can make the rest of a file look like one unfinished command. So if the unfinished part contains valid
commands up to the end of the file, it is damage, and nothing is cut off. (A torn value that is itself a list of such
commands looks the same, and is refused.) Damage inside a value cannot be detected.
"""

from __future__ import annotations

import gc
import mmap
import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import hiredis

from spark_streams.base.ids import U64_MAX
from spark_streams.engine.client import Client
from spark_streams.engine.command_table import COMMANDS, REFUSED, find
from spark_streams.engine.persistence.aof_writer import PersistedEngine
from spark_streams.engine.resp.wire_replies import CommandError
from spark_streams.engine.store import entryid
from spark_streams.engine.store.entry_bytes import fields_wire
from spark_streams.engine.store.stream import StoredStream

_CHUNK = 1 << 20
_QUEUED = 10_000  # commands of a transaction between two turns of the server
_MAX_COUNT = 1 << 20  # arguments of a command, as in Redis
_MAX_BULK = 1 << 29
_LINE = re.compile(rb"([*$])(0|[1-9][0-9]{0,9})\r\n")
_BEGIN = re.compile(rb"\r\n(?=\*[1-9][0-9]{0,6}\r\n\$[1-9][0-9]?\r\n([A-Z]{3,12})\r\n)")


class CorruptFileError(Exception):
    """The append-only file cannot be loaded from this offset on."""

    def __init__(self, path: Path, offset: int, reason: str) -> None:
        self.path, self.offset, self.reason = path, offset, reason
        super().__init__(
            f"the append-only file {path} is damaged at offset {offset}: {reason}. Nothing was changed. To continue "
            f"with the commands before it, keep a copy and run: truncate -s {offset} '{path}'"
        )


class UnknownCommandError(CorruptFileError):
    """The append-only file is valid, but contains a command that this engine does not implement."""

    def __init__(self, path: Path, offset: int, name: str) -> None:
        self.path, self.offset, self.reason = path, offset, REFUSED[name.lower().encode()].decode()
        Exception.__init__(
            self,
            f"the append-only file {path} contains {name} at offset {offset}, which this engine does not implement: "
            f"{self.reason}. Nothing was changed. An engine of an earlier version can rewrite the file without {name}: "
            f"start it, send BGREWRITEAOF and stop it. A Redis server accepts the file unchanged: "
            f"redis-cli --pipe < '{path}'",
        )


class TornFileError(CorruptFileError):
    """The file ends within a command, as after a crash."""


class LoadingStoppedError(Exception):
    """The engine is stopped before its file is loaded."""


class _RefusedError(Exception):
    """The next command cannot run. name: the command, if this engine does not implement it."""

    def __init__(self, reason: str, name: str = "") -> None:
        self.name = name
        super().__init__(reason)


class Loader:
    """Runs the commands of one file on an engine that records no changes meanwhile."""

    def __init__(self, engine: PersistedEngine, path: Path, serve_clients: bool) -> None:
        """serve_clients: serve clients between two chunks."""
        self._engine = engine
        self._path = path
        self._serve_clients = serve_clients
        self.began = engine.now  # Unix milliseconds
        self.size = path.stat().st_size
        self.read = 0  # bytes so far
        self._client = Client(0, engine.databases[0], "", "", engine.now)
        self._queue: list[list[bytes]] | None = None  # commands since MULTI
        self.commands = 0  # valid commands so far
        self._before_multi = 0

    def load(self) -> None:
        """Run all commands. Raises TornFileError, CorruptFileError, LoadingStoppedError, OSError."""
        collecting = gc.isenabled()
        gc.disable()  # millions of lists, none of them in a cycle
        self._engine.set_loading(True)
        try:
            self._load()
        finally:
            self._engine.set_loading(False)
            if collecting:
                gc.enable()

    def _load(self) -> None:
        reader = hiredis.Reader()
        try:
            with self._path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    reader.feed(chunk)
                    self._take(reader.gets)
                    self.read += len(chunk)
                    self._serve_meanwhile()
        except _RefusedError as problem:
            offset, reason = self._offset(self.commands)
            if self._is_zero(offset):
                start = offset if self._queue is None else self._offset(self._before_multi)[0]
                raise TornFileError(self._path, start, "the file ends in zeros") from None
            if problem.name and not reason:
                raise UnknownCommandError(self._path, offset, problem.name) from None
            raise CorruptFileError(self._path, offset, reason or str(problem)) from None
        if self._queue is not None:
            offset, reason = self._offset(self._before_multi)
            self._judge_end(offset, self._offset(self.commands)[0], reason)
        elif not _is_at_an_end(reader):
            offset, reason = self._offset(self.commands)
            self._judge_end(offset, offset, reason)

    def _serve_meanwhile(self) -> None:
        if self._serve_clients:
            self._engine.serve_meanwhile()
            if self._engine.stopping:
                raise LoadingStoppedError

    def _take(self, gets: Callable[[], object]) -> None:
        """Run the complete commands of the reader."""
        complete: list[list[bytes]] = []
        failure = ""
        try:
            while (command := gets()) is not False:
                complete.append(command)  # type: ignore[arg-type]
        except (hiredis.ProtocolError, MemoryError, TypeError, ValueError) as problem:
            failure = str(problem) or "out of memory"  # hiredis accepts more types than a command may contain
        try:
            sound = {list}.issuperset(map(type, complete)) and all(complete)
            b"".join(chain.from_iterable(complete))
        except TypeError:
            sound = False
        if not sound:
            complete = complete[: list(map(_is_command, complete)).index(False)]
            failure = "not a command"
        for command in complete:
            self._run_or_queue(command)
            self.commands += 1
        if failure:
            raise _RefusedError(failure)

    def _run_or_queue(self, args: list[bytes]) -> None:
        name = args[0]
        if self._queue is None:
            if name == b"XADD" and self._append(args):
                return
            if name == b"MULTI":
                self._queue, self._before_multi = [], self.commands
            else:
                self._run(args)
        elif name == b"EXEC":
            queue, self._queue = self._queue, None
            count, self.commands = self.commands, self._before_multi + 1
            for number, command in enumerate(queue, 1):
                self._run(command)
                self.commands += 1
                if not number % _QUEUED:
                    self._serve_meanwhile()
            self.commands = count
        else:
            self._check_command(args)
            self._queue.append(args)

    def _append(self, args: list[bytes]) -> bool:
        """Add an entry to an existing stream, which is most of most files; False: not this case."""
        if len(args) < 5 or not len(args) % 2 or len(args[2]) > 40:
            return False
        db = self._client.db
        stream = db.values.get(args[1])
        ms, _, seq = args[2].partition(b"-")
        if type(stream) is not StoredStream or not ms.isdigit() or not seq.isdigit():
            return False
        entry_id = int(ms) << 64 | int(seq)
        if not stream.last_id < entry_id < entryid.HIGHEST or int(seq) > U64_MAX or args[2] != entryid.text(entry_id):
            return False
        pairs = args[3:]
        stream.append(entry_id, b"*2\r\n$%d\r\n%b\r\n%b" % (len(args[2]), args[2], fields_wire(pairs)), pairs)
        db.changes += 1
        return True

    def _run(self, args: list[bytes]) -> None:
        engine = self._engine
        try:
            spec = self._check_command(args)
            reply = spec(engine, self._client, args)
        except CommandError as problem:
            raise _RefusedError(
                f"{args[0][:20]!r} fails with {problem.text[:200].decode('utf-8', 'replace')!r}"
            ) from None
        if reply is None:
            raise _RefusedError(f"{args[0][:20]!r} blocks")

    def _check_command(self, args: list[bytes]) -> Callable[..., object]:
        """Return the handler of a command that may appear in an append-only file. Raises _RefusedError."""
        try:
            spec = find(args)
        except CommandError as problem:
            name = args[0].decode().upper() if args[0].lower() in REFUSED else ""
            raise _RefusedError(problem.text[:200].decode("utf-8", "replace"), name) from None
        if "write" not in spec.flags and spec.name != "select":
            raise _RefusedError(f"{args[0][:20]!r} is not a command that changes data")
        assert spec.handler is not None
        return spec.handler

    # Finding the fault

    def _judge_end(self, start: int, unfinished: int, reason: str) -> None:
        """Raise the error for an incomplete file: unusable from offset `start` on, unreadable from `unfinished` on."""
        if reason:
            raise CorruptFileError(self._path, start, reason)
        with self._path.open("rb") as file:
            file.seek(unfinished)
            unfinished_data = file.read()
        for match in _BEGIN.finditer(unfinished_data):
            spec = COMMANDS.get(match[1].lower())
            # A container command has no flags.
            is_write_command = match[1].lower() in REFUSED if spec is None else not spec.flags or "write" in spec.flags
            if is_write_command and _runs_to_the_end(unfinished_data, match.start() + 2):
                swallowed = f"a length runs over the command at offset {unfinished + match.start() + 2}"
                raise CorruptFileError(self._path, unfinished, swallowed)
        raise TornFileError(self._path, start, "the file ends within a command or a transaction")

    def _is_zero(self, offset: int) -> bool:
        with self._path.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(_CHUNK):
                if chunk.strip(b"\0"):
                    return False
        return True

    def _offset(self, commands: int) -> tuple[int, str]:
        """Return the offset behind this number of commands, and the fault of an earlier command, if there is one."""
        offset = 0
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            if not size:
                return 0, ""
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                for _ in range(commands):
                    try:
                        end = _end_of_command(data, offset)
                    except ValueError as problem:
                        return offset, str(problem)
                    if end < 0:
                        return offset, "ends too early"
                    offset = end
                if data[offset : offset + 5] == b"REDIS":
                    return offset, "this is a dump (RDB); Redis writes commands only with aof-use-rdb-preamble no"
        return offset, ""


def _is_command(value: object) -> bool:
    return type(value) is list and len(value) > 0 and all(type(arg) is bytes for arg in value)


def _is_at_an_end(reader: hiredis.Reader) -> bool:
    """Whether the reader holds no unfinished command: then it returns another command unchanged."""
    try:
        reader.feed(b"*1\r\n$3\r\nEND\r\n")
        return reader.gets() == [b"END"] and reader.gets() is False
    except (hiredis.ProtocolError, TypeError, ValueError):
        return False


def _end_of_command(data: bytes | mmap.mmap, offset: int) -> int:
    """Return the offset behind the command at this offset; -1 if the data ends first. Raises ValueError."""
    count, offset = _number(data, offset, b"*", _MAX_COUNT)
    for _ in range(count):
        if offset < 0:
            return -1
        length, offset = _number(data, offset, b"$", _MAX_BULK)
        if offset < 0 or offset + length + 2 > len(data):
            return -1
        offset += length + 2
        if data[offset - 2 : offset] != b"\r\n":
            raise ValueError(f"an argument does not end at offset {offset - 2}")
    return offset


def _runs_to_the_end(data: bytes, offset: int) -> bool:
    """Whether one or more valid commands follow one another from here to the end of the data."""
    count = 0
    try:
        while offset < len(data) and (offset := _end_of_command(data, offset)) > 0:
            count += 1
    except ValueError:
        return False
    return count > 0


def _number(data: bytes | mmap.mmap, offset: int, sign: bytes, limit: int) -> tuple[int, int]:
    match = _LINE.match(data, offset, offset + 13)
    if match is None:
        if len(data) - offset < 13 and b"\n" not in data[offset:]:
            return 0, -1
        raise ValueError(f"no length at offset {offset}")
    if match[1] != sign or int(match[2]) > limit:
        raise ValueError(f"no length at offset {offset}")
    return int(match[2]), match.end()
