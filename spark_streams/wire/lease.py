"""A lease: a key beside a stream names the one process that works on it; another key tells whether that process lives.

    rstream:lease:{orders}:billing:spark    {"session": "rstream:session:billing:5f0a…", "pid": …}    one per stream
    rstream:session:billing:5f0a…           the same value; expires after TTL                         one per process

A thread renews the session, so a process that holds a thousand streams sends one command, not a thousand. The lease
itself does not expire. A second process that finds it

- is refused at once if the holder runs on this machine, otherwise as soon as it sees the holder renew its session;
- takes it over at once if the holder was a process of this machine and has died (SIGKILL);
- takes it over if the session has expired, TTL after the holder has died elsewhere, or has stood still (SIGSTOP).

A holder whose session has expired (the machine slept) writes the session first and each lease again after that, under
WATCH. So a process that has seen the session missing and takes a lease over meanwhile either fails at EXEC, or is
noticed. Leases that are no longer needed are given back under WATCH too.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_streams.errors import RStreamError, TakenError
from spark_streams.model.keys import SESSIONS, session_key
from spark_streams.model.numbers import parse_number
from spark_streams.wire.address.address import Address
from spark_streams.wire.connect import connect
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.multi_exec import transact

TTL = 10_000  # milliseconds
_TOGETHER = 100  # keys of a transaction: a server takes the square of the time for more
_CHECKED = 10  # leases that each renewal reads, in turn: deleted by hand, they are noticed


class Processes:
    """This process among those of its machine."""

    @property
    def pid(self) -> int:
        """This one's."""
        return os.getpid()

    @property
    def space(self) -> str:
        """What makes a pid unique: this boot of this machine, and the namespace of its pids; "" where unknown."""
        return _space()

    def born(self, pid: int) -> str:
        """When a process began, in clock ticks since boot; "" where there is none, or only its remains."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        state, *fields = stat.rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]

    def this(self) -> dict[str, str | int]:
        """This one, as a lease tells of its holder."""
        pid = self.pid
        return {"host": socket.gethostname(), "space": self.space, "pid": pid, "born": self.born(pid)}

    def has_alive(self, value: bytes | None) -> bool | None:
        """Whether the process that wrote a lease lives; None where that cannot be seen from here."""
        holder = _read(value)
        if holder is None or not self.space or holder.get("space") != self.space:
            return None
        return bool(self.born(parse_number(str(holder["pid"])) or 0) == holder["born"] != "")


@dataclass(frozen=True)
class Terms:
    """How leases are taken and kept. ttl: of a session, milliseconds; poll: seconds between two looks at the session of
    another process, passed by sleep; is_kept: a thread renews the session until the lease is released; if not, it
    expires as that of a process that dies."""

    ttl: int = TTL
    poll: float = 0.25
    sleep: Callable[[float], None] = time.sleep
    processes: Processes = field(default_factory=Processes)
    is_kept: bool = True


DEFAULT_TERMS = Terms()


class Lease(ABC):
    """One process' lease over some streams. `hold` is for one thread; a thread of its own renews.

    Raises the TakenError of `taken` where another process has it, ServerError.
    """

    def __init__(self, address: Address, scope: str, terms: Terms = DEFAULT_TERMS) -> None:
        """scope: part of the session's name, so that rights can be given by it."""
        self._address, self._terms, self._ttl = address, terms, terms.ttl
        self._session = session_key(scope, secrets.token_hex(8))
        self._value = json.dumps({"session": self._session, **terms.processes.this()}).encode()
        self._checked = 0  # how many leases were read again by renewals
        self._changing = threading.Lock()  # held by whoever renews and gives back, while the server does it
        self._lock = threading.Lock()  # over the five below
        self._streams: dict[bytes, str] = {}  # by key
        self._leaving: list[bytes] = []  # keys that are still to be given back
        self._lost: TakenError | None = None
        self._renewed = 0.0  # when all of them were ours
        self._stop: threading.Event | None = None

    @abstractmethod
    def key_of(self, stream: str) -> bytes:
        """The key of one stream's lease."""

    @abstractmethod
    def taken(self, stream: str, where: str) -> TakenError:
        """Another process has it. where: empty, or ` (process 1 on host)`."""

    def hold(self, server: Server, streams: Sequence[str]) -> None:
        """Make sure that the lease covers these streams, too, and is still ours."""
        known = set(self._streams.values())
        new = {self.key_of(stream): stream for stream in streams if stream not in known}
        if new:
            with self._changing, self._lock:
                self._leaving = [key for key in self._leaving if key not in new]
            began = time.monotonic()
            try:
                if not self._streams:
                    server.execute("SET", self._session, self._value, "PX", self._ttl)
                self._take(server, new)
            except TakenError:
                self._give_back(server, list(new))
                raise
            with self._lock:
                self._streams = {**self._streams, **new}
                self._renewed = self._renewed or began
            self._start()
        with self._lock:
            lost, age = self._lost, time.monotonic() - self._renewed
        if lost is not None:
            raise lost
        if self._streams and age * 1000 > self._ttl:
            self._renew(server)  # the thread could not: the machine slept, or the server was away

    def keep_only(self, streams: Collection[str]) -> None:
        """Let go of all others: they are given back with the next renewal."""
        wanted = set(streams)
        with self._lock:
            gone = [key for key, stream in self._streams.items() if stream not in wanted]
            if gone:
                self._leaving = [*self._leaving, *gone]
                self._streams = {key: stream for key, stream in self._streams.items() if stream in wanted}

    def release(self) -> None:
        """Give the lease back and stop renewing; harmless when it is not held."""
        if self._stop is None:
            return
        self._stop.set()
        self._stop = None
        with contextlib.suppress(RStreamError), connect(self._address) as server, self._changing:
            with self._lock:
                keys, self._streams, self._leaving = [*self._streams, *self._leaving], {}, []
            self._give_back(server, keys)
            server.execute("DEL", self._session)

    def _give_back(self, server: Server, keys: Sequence[bytes]) -> None:
        """Remove those that are still ours."""
        for together in server.together(keys, lambda key: key):
            for at in range(0, len(together), _TOGETHER):
                some = together[at : at + _TOGETHER]
                while True:
                    found = server.execute_all([("WATCH", *some), *[("GET", key) for key in some]])[1:]
                    mine = [key for key, value in zip(some, found, strict=True) if value == self._value]
                    if transact(server, [("DEL", *mine)] if mine else []) is not None:
                        break

    # -- taking it -----------------------------------------------------------------------------------------------

    def _take(self, server: Server, streams: Mapping[bytes, str]) -> None:
        waiting = list(streams)
        deadline = time.monotonic() + 2 * self._ttl / 1000 + 5
        left_before: dict[bytes, int] = {}
        while waiting:
            replies = server.execute_all([("SET", key, self._value, "NX") for key in waiting])
            taken = [key for key, reply in zip(waiting, replies, strict=True) if reply is None]
            sessions = {key: self._take_over(server, key, streams[key]) for key in taken}
            waiting = []
            for key, session in sessions.items():
                if session is None:
                    continue
                waiting.append(key)
                left = server.execute("PTTL", session)
                if left > left_before.get(key, left) or time.monotonic() > deadline:
                    raise self._taken(streams[key], server.execute("GET", key))
                left_before[key] = left
            if waiting:
                self._terms.sleep(self._terms.poll)

    def _take_over(self, server: Server, key: bytes, stream: str) -> bytes | None:
        """Take a lease whose holder is dead. None if it is ours now, else the key that expires if its holder dies.
        Raises TakenError if the holder lives, ServerError."""
        server.execute("WATCH", key)
        held = server.execute("GET", key)
        if held == self._value:  # the connection broke before we heard that it is ours
            server.execute("UNWATCH")
            return None
        alive = self._terms.processes.has_alive(held)
        session = _session_of(key, held)
        if held is not None and alive is not False and (session == key or server.execute("EXISTS", session)):
            server.execute("UNWATCH")
            if alive:
                raise self._taken(stream, held)
            return session
        return None if transact(server, [("SET", key, self._value)]) is not None else session

    def _taken(self, stream: str, held: bytes | None) -> TakenError:
        return self.taken(stream, describe(held))

    # -- keeping it ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._stop is None and self._terms.is_kept:
            self._stop = threading.Event()
            thread = threading.Thread(target=self._keep, args=(self._stop,), name="rstream-lease", daemon=True)
            thread.start()

    def _keep(self, stop: threading.Event) -> None:
        server: Server | None = None
        while not stop.wait(self._ttl / 3000):
            try:
                server = server or connect(self._address)
                server.renew_login()
                self._renew(server)
            except TakenError as error:
                with self._lock:
                    self._lost = error
                break
            except RStreamError:
                # Whoever works with the server will say what is wrong with it; here only the next try counts.
                if server is not None:
                    server.close()
                server = None
        if server is not None:
            server.close()

    def _renew(self, server: Server) -> None:
        with self._changing:
            with self._lock:
                streams, leaving, began = self._streams, self._leaving, time.monotonic()
            some = self._to_check(list(streams))
            lives, *held = server.execute_all([("PEXPIRE", self._session, self._ttl), *[("GET", key) for key in some]])
            if not lives:
                server.execute("SET", self._session, self._value, "PX", self._ttl)
                self._write_again(server, streams)
            else:
                self._restore(server, streams, dict(zip(some, held, strict=True)))
            self._give_back(server, leaving)
            with self._lock:
                self._leaving = [key for key in self._leaving if key not in set(leaving)]
                self._renewed = began

    def _to_check(self, keys: Sequence[bytes]) -> list[bytes]:
        """The leases that this renewal reads."""
        start, self._checked = self._checked, self._checked + _CHECKED
        return list(dict.fromkeys(keys[at % len(keys)] for at in range(start, start + _CHECKED))) if keys else []

    def _write_again(self, server: Server, streams: Mapping[bytes, str]) -> None:
        """Write all leases, if they are still ours: who has seen our session missing must fail at EXEC."""
        for together in server.together(list(streams), lambda key: key):
            for at in range(0, len(together), _TOGETHER):
                some = together[at : at + _TOGETHER]
                while True:
                    held = server.execute_all([("WATCH", *some), *[("GET", key) for key in some]])[1:]
                    for key, value in zip(some, held, strict=True):
                        if value not in (None, self._value):
                            server.of(key).execute("UNWATCH")
                            raise self._taken(streams[key], value)
                    if transact(server, [("SET", key, self._value) for key in some]) is not None:
                        break

    def _restore(self, server: Server, streams: Mapping[bytes, str], held: Mapping[bytes, bytes | None]) -> None:
        """Write leases again that were deleted. Raises TakenError if another process has one."""
        for key, value in held.items():
            if value not in (None, self._value):
                raise self._taken(streams[key], value)
        gone = [key for key, value in held.items() if value is None]
        server.pipeline([("SET", key, self._value, "NX") for key in gone])


# -- what a lease says -------------------------------------------------------------------------------------------


def _read(value: bytes | None) -> dict[str, str | int] | None:
    try:
        known = json.loads(value or b"")
    except ValueError:
        return None
    if not isinstance(known, dict):
        return None
    kinds = {"pid": int, "host": str, "space": str, "born": str}
    return known if all(isinstance(known.get(name), kind) for name, kind in kinds.items()) else None


def _session_of(key: bytes, value: bytes | None) -> bytes:
    """The key that expires if the holder of a lease dies: of a lease without a session, the lease itself."""
    session = (_read(value) or {}).get("session")
    return session.encode() if isinstance(session, str) and session.startswith(SESSIONS) else key


def are_held(server: Server, leases: Sequence[bytes | None], processes: Processes) -> list[bool]:
    """Whether the holders of these leases live, as far as can be seen from here. Raises ServerError."""
    alive = [value is not None and processes.has_alive(value) is not False for value in leases]
    asked = [at for at, lives in enumerate(alive) if lives and _session_of(b"", leases[at])]
    sessions = server.execute_all([("EXISTS", _session_of(b"", leases[at])) for at in asked])
    for at, exists in zip(asked, sessions, strict=True):
        alive[at] = bool(exists)
    return alive


def describe(value: bytes | None) -> str:
    """` (process 1 on host)` of whoever wrote a lease; empty where it does not say."""
    known = _read(value)
    return f" (process {known['pid']} on {known['host']})" if known else ""


@functools.cache
def _space() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
