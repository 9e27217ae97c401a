"""The product on a core in this process: lines in place of sockets, the plan's clock and chance in place of its own."""

from __future__ import annotations

import contextlib
import datetime
import pickle
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import pytest

from spark_streams.connector.deadletter import post
from spark_streams.connector.spark import worker
from spark_streams.connector.wire import connect, connection, session, topology
from spark_streams.connector.wire.sockets import Lost, TooMuchError
from spark_streams.engine.client import Client
from spark_streams.engine.command_table import COMMANDS
from spark_streams.engine.commands.server import info
from spark_streams.engine.commands.values import plain_values
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.wire_replies import Reply, bulks, integer
from spark_streams.engine.store import keyspace
from tools.simulation.in_process.cluster import cluster_command
from tools.simulation.in_process.core import CLOCKS, Core, Line


class LineDuplex:
    """One connection of the product. timeout: seconds of silence after which it is lost."""

    def __init__(self, core: Core, line: Line, lost: Lost) -> None:
        self._core, self._line, self._lost = core, line, lost
        self.timeout: float | None = 5.0
        self.received = 0
        self.max_kept: int | None = None

    def send(self, data: bytes | memoryview) -> None:
        """Send all of the data. Raises TooMuchError if more than `max_kept` bytes arrive meanwhile."""
        try:
            self._line.send(bytes(data))
        except OSError as error:
            raise self._lost(error) from None
        if self.max_kept is not None and len(self._line.inbox) > self.max_kept:
            raise TooMuchError

    @property
    def has_input(self) -> bool:
        """Whether bytes have arrived."""
        return bool(self._line.inbox)

    def receive(self) -> memoryview:
        """Return available bytes, at least one."""
        self._wait()
        data = bytes(self._line.inbox)
        self._line.inbox.clear()
        self.received += len(data)
        return memoryview(data)

    def receive_into(self, buffer: memoryview) -> int:
        """Read available bytes into `buffer`; return how many, at least one."""
        self._wait()
        inbox = self._line.inbox
        count = min(len(buffer), len(inbox))
        buffer[:count] = memoryview(inbox)[:count]
        del inbox[:count]
        self.received += count
        return count

    def _wait(self) -> None:
        """Let time pass until there is input. Raises the error of a connection that is lost or silent."""
        silent = self.timeout
        while not self._line.inbox:
            if self._line.is_cut:
                raise self._lost(None)
            before = self._core.clock.monotonic()
            self._core.wait(3600.0 if silent is None else silent)
            if silent is not None:
                silent -= self._core.clock.monotonic() - before
                if silent <= 0 and not self._line.inbox:
                    raise self._lost(TimeoutError(f"no answer for {self.timeout:g} s"))


# -- the patches -------------------------------------------------------------------------------------------------------


class _Opened:
    """In place of redis-py's connection."""

    def __init__(self, line: Line) -> None:
        self._sock: Line | None = line

    def disconnect(self) -> None:
        """Close the line."""
        if self._sock is not None:
            self._sock.cut()
            self._sock = None


@contextlib.contextmanager
def on_core(core: Core) -> Iterator[None]:
    """Patch the product for any number of consecutive plans on this core."""
    moved = {getattr(time, name): getattr(core.clock, name) for name in CLOCKS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_hex", core.token_hex)
        patch.setattr(session, "random", core.chance)
        patch.setattr(post, "datetime", _calendar(core))
        patch.setattr(connection, "open_connection", lambda url, *_given, **_more: _Opened(core.at(url).connect()))
        patch.setattr(connection, "Duplex", lambda line, lost: LineDuplex(line.core, line, lost))
        # Several simulated processes share this one: none ends the connections of another (wire.connect).
        patch.setattr(connect, "register", lambda _: None)
        # A set of bytes has another order in each process.
        patch.setattr(plain_values, "_members", lambda members: bulks(sorted(members)))
        # The memory of a machine and of a version of Python.
        patch.setattr(keyspace, "resident", lambda: 1)
        patch.setattr(keyspace, "_size_of_all", len)
        patch.setattr(info, "resident", lambda: 1)
        patch.setattr(info, "peak", lambda: 1)
        patch.setattr(COMMANDS[b"cluster"], "handler", cluster_command)
        patch.setattr(topology.ClusterWatch, "add", lambda *_: None)  # its thread would ask once a second
        # The plan's replica: the engine has none.
        patch.setattr(COMMANDS[b"wait"], "handler", _wait)
        # Time that has no meaning here: buffers of a megabyte for a few bytes, the statistics of commands, and the
        # search for what a user's notebook defines.
        patch.setattr(connection, "_READ_SIZE", 1 << 12)
        patch.setattr(Engine, "_time", lambda engine, spec: None)
        patch.setattr(worker, "cloudpickle", pickle)
        patch.setattr(connect, "select", SimpleNamespace(POLLIN=1, poll=lambda: _Poll(core)))
        with _rebound(moved):
            yield


def _wait(engine: Engine, _client: Client, args: list[bytes]) -> Reply:
    return integer(engine.__dict__["wait_for_replica"](int(args[2])))


def _calendar(core: Core) -> SimpleNamespace:
    """Module datetime as dead letters use it, with the plan's clock."""

    def now(zone: datetime.tzinfo) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(core.clock.time(), zone)

    return SimpleNamespace(UTC=datetime.UTC, datetime=SimpleNamespace(now=now))


class _Poll:
    """select.poll over lines."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._numbers: list[int] = []

    def register(self, number: int, _events: int) -> None:
        """Wait for input of this line, too."""
        self._numbers.append(number)

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        """Return lines with input, or that are broken; let time pass if there is none."""
        if not (ready := self._ready()):
            self._core.wait(milliseconds / 1000)
            ready = self._ready()
        return ready

    def _ready(self) -> list[tuple[int, int]]:
        lines = dict(self._core.lines)
        for other in self._core.others.values():
            lines |= other.lines
        return [(number, 1) for number in self._numbers if number not in lines or lines[number].inbox]


@contextlib.contextmanager
def _rebound(functions: Mapping[Callable[..., Any], Callable[..., Any]]) -> Iterator[None]:
    """Replace functions that stand as defaults of parameters in the product; put them back at the end, also in modules
    that were imported meanwhile."""
    _rebind(functions)
    try:
        yield
    finally:
        _rebind({new: old for old, new in functions.items()})


def _rebind(functions: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
    for function in _functions_of_the_product():
        if any(_is_in(value, functions) for value in function.__defaults__ or ()):
            function.__defaults__ = tuple(_replaced(value, functions) for value in function.__defaults__ or ())
        for name, value in (function.__kwdefaults__ or {}).items():
            function.__kwdefaults__[name] = _replaced(value, functions)
        for cell in function.__closure__ or ():  # default_factory of a field
            with contextlib.suppress(ValueError):  # an empty cell
                if _is_in(cell.cell_contents, functions):
                    cell.cell_contents = functions[cell.cell_contents]


def _functions_of_the_product() -> Iterator[FunctionType]:
    """Yield the functions of modules, and the methods of classes, as far as their parameters have defaults."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "spark_streams":
            for value in list(vars(module).values()):
                inside = vars(value).values() if isinstance(value, type) and value.__module__ == name else [value]
                yield from (one for one in inside if isinstance(one, FunctionType))


def _is_in(value: object, functions: Mapping[Callable[..., Any], Callable[..., Any]]) -> bool:
    return isinstance(value, BuiltinFunctionType | MethodType) and value in functions


def _replaced(value: Any, functions: Mapping[Callable[..., Any], Callable[..., Any]]) -> Any:
    return functions[value] if _is_in(value, functions) else value
