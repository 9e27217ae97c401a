"""A lease: a key per stream names the one process that works on it; another key tells whether that process lives.

    rstream:lease:{orders}:billing:spark    {"session": "rstream:session:billing:5f0a…", "pid": …}    one per stream
    rstream:session:billing:5f0a…           the same value; expires after TTL                         one per process

A thread renews the session, so a process with a thousand streams sends one command, not a thousand. The lease itself
does not expire. A second process that finds it

- is refused at once if the holder runs on this machine, otherwise as soon as it sees the holder renew its session;
- takes it over at once if the holder was a process of this machine and has died (SIGKILL);
- takes it over after the session has expired: TTL after the holder died elsewhere, or stood still (SIGSTOP).

A holder whose session has expired (the machine slept) writes the session first, and then each lease again under WATCH.
If another process has seen the session missing and takes over a lease meanwhile, it fails at EXEC or is noticed. Leases
that are no longer needed are removed under WATCH, too.

A server that returns to an older state (a failover, a backup) may hold the lease of the dead process again from which
this one took it over. Nobody has held it since, so this process writes its own again, under WATCH, too.
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

from spark_streams.base.numbers import parse_number
from spark_streams.connector.errors import RStreamError, TakenError
from spark_streams.connector.keys import SESSIONS, session_key
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect, leave, leave_if_replica
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.replies import portions_of, transact

TTL = 10_000  # milliseconds
_TOGETHER = 100  # keys of a transaction: the server's time grows with the square of their number
_CHECKED = 10  # leases that each renewal reads, in turn, to notice leases deleted by an operator


class Processes:
    """This process and other processes of its machine."""

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def space(self) -> str:
        """The space in which a pid is unique: this boot of this machine and its pid namespace; "" if unknown."""
        return _space()

    def born(self, pid: int) -> str:
        """Return the start time of a process in clock ticks since boot; "" if it does not run."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        state, *fields = stat.rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]

    def this(self) -> dict[str, str | int]:
        """Return the description of this process in a lease."""
        pid = self.pid
        return {"host": socket.gethostname(), "space": self.space, "pid": pid, "born": self.born(pid)}

    def has_alive(self, value: bytes | None) -> bool | None:
        """Whether the process that wrote a lease lives; None if that cannot be determined on this machine."""
        holder = _read(value)
        if holder is None or not self.space or holder.get("space") != self.space:
            return None
        return bool(self.born(parse_number(str(holder["pid"])) or 0) == holder["born"] != "")


@dataclass(frozen=True)
class LeaseTerms:
    ttl: int = TTL  # of a session, milliseconds
    poll: float = 0.25  # seconds between two checks of another process' session
    sleep: Callable[[float], None] = time.sleep  # function that pauses
    processes: Processes = field(default_factory=Processes)
    # A thread renews the session until the lease is released; else it expires like a dead process'.
    is_kept: bool = True


DEFAULT_TERMS = LeaseTerms()


class Lease(ABC):
    """One process' lease over several streams. `hold` is for one thread; the lease's own thread renews it.

    Raises the TakenError of `taken` if another process holds the lease, ServerError.
    """

    def __init__(self, address: Address, scope: str, terms: LeaseTerms = DEFAULT_TERMS) -> None:
        """scope: part of the session's name, so that ACL rules can match it."""
        self._address, self._terms, self._ttl = address, terms, terms.ttl
        self._session = session_key(scope, secrets.token_hex(8))
        self._value = json.dumps({"session": self._session, **terms.processes.this()}).encode()
        self._checked = 0  # number of leases read by renewals
        self._replaced: dict[bytes, bytes] = {}  # values of dead holders that this process took over, by key
        self._changing = threading.Lock()  # held during each renewal and removal on the server
        self._lock = threading.Lock()  # over the five below
        self._streams: dict[bytes, str] = {}  # by key
        self._leaving: list[bytes] = []  # keys of leases to be removed
        self._lost: TakenError | None = None
        self._renewed = 0.0  # time of the last renewal
        self._stop: threading.Event | None = None

    @abstractmethod
    def key_of(self, stream: str) -> bytes:
        """Return the key of one stream's lease."""

    @abstractmethod
    def taken(self, stream: str, where: str) -> TakenError:
        """Return the error for a lease of another process. where: empty, or ` (process 1 on host)`."""

    def hold(self, server: Server, streams: Sequence[str]) -> None:
        """Extend the lease to these streams, and check that this process still holds it."""
        held_streams = set(self._streams.values())
        new = {self.key_of(stream): stream for stream in streams if stream not in held_streams}
        if new:
            with self._changing, self._lock:
                self._leaving = [key for key in self._leaving if key not in new]
            began = time.monotonic()
            try:
                if not self._streams:
                    server.execute("SET", self._session, self._value, "PX", self._ttl)
                self._take(server, new)
            except TakenError:
                self._remove_leases(server, list(new))
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
            self._renew(server)  # the thread could not: the machine slept, or the server was unavailable

    def keep_only(self, streams: Collection[str]) -> None:
        """Release all other streams; their leases are removed with the next renewal."""
        streams_to_keep = set(streams)
        with self._lock:
            leaving_keys = [key for key, stream in self._streams.items() if stream not in streams_to_keep]
            if leaving_keys:
                self._leaving = [*self._leaving, *leaving_keys]
                self._streams = {key: stream for key, stream in self._streams.items() if stream in streams_to_keep}

    def release(self) -> None:
        """Remove the lease and stop renewing; harmless if it is not held."""
        if self._stop is None:
            return
        self._stop.set()
        self._stop = None
        with contextlib.suppress(RStreamError), connect(self._address.without_starting()) as server, self._changing:
            with self._lock:
                keys, self._streams, self._leaving = [*self._streams, *self._leaving], {}, []
            self._remove_leases(server, keys)
            server.execute("DEL", self._session)

    def _remove_leases(self, server: Server, keys: Sequence[bytes]) -> None:
        """Remove the leases that this process still holds."""
        for batch in portions_of(server, keys, _TOGETHER):
            while True:
                values = server.execute_all([("WATCH", *batch), *[("GET", key) for key in batch]])[1:]
                mine = [key for key, value in zip(batch, values, strict=True) if value == self._value]
                if transact(server, [("DEL", *mine)] if mine else []) is not None:
                    break

    # -- taking it -----------------------------------------------------------------------------------------------

    def _take(self, server: Server, streams: Mapping[bytes, str]) -> None:
        waiting = list(streams)
        deadline = time.monotonic() + 2 * self._ttl / 1000 + 5
        earlier_ttls: dict[bytes, int] = {}
        while waiting:
            replies = server.execute_all([("SET", key, self._value, "NX") for key in waiting])
            taken = [key for key, reply in zip(waiting, replies, strict=True) if reply is None]
            sessions = {key: self._take_over(server, key, streams[key]) for key in taken}
            waiting = []
            for key, session in sessions.items():
                if session is None:
                    continue
                waiting.append(key)
                ttl = server.execute("PTTL", session)
                if ttl > earlier_ttls.get(key, ttl) or time.monotonic() > deadline:
                    raise self.taken(streams[key], describe(server.execute("GET", key)))
                earlier_ttls[key] = ttl
            if waiting:
                self._terms.sleep(self._terms.poll)

    def _take_over(self, server: Server, key: bytes, stream: str) -> bytes | None:
        """Take a lease of a dead holder. Return None if it is taken, else the key that expires if its holder dies.

        Raises TakenError if the holder lives, ServerError.
        """
        server.execute("WATCH", key)
        held = server.execute("GET", key)
        if held == self._value:  # the connection broke after the server had set it
            server.execute("UNWATCH")
            return None
        session = _session_of(key, held)
        if held is not None and self._may_live(server, key, held):
            server.execute("UNWATCH")
            if self._terms.processes.has_alive(held):
                raise self.taken(stream, describe(held))
            return session
        if held is not None:
            self._replaced[key] = held  # before EXEC, whose reply may be lost
        return None if transact(server, [("SET", key, self._value)]) is not None else session

    def _may_live(self, server: Server, key: bytes, held: bytes) -> bool:
        """Whether the process that wrote this lease may live: not if it was of this machine and has died, or if its
        session has expired."""
        session = _session_of(key, held)
        is_dead = self._terms.processes.has_alive(held) is False
        return not is_dead and (session == key or bool(server.execute("EXISTS", session)))

    # -- keeping it ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._stop is None and self._terms.is_kept:
            self._stop = threading.Event()
            thread = threading.Thread(target=self._keep, args=(self._stop,), name="rstream-lease", daemon=True)
            thread.start()

    def _keep(self, stop: threading.Event) -> None:
        server: Server | None = None
        was_lost = False
        while not stop.wait(self._ttl / 3000):
            try:
                if server is None:
                    server = connect(self._address.without_starting())
                    if was_lost:  # the address may lead to another server by now
                        leave(self._address, but=server)
                        was_lost = False
                server.renew_login()
                self._renew(server)
            except TakenError as error:
                with self._lock:
                    self._lost = error
                break
            except RStreamError as error:
                # The reader or writer reports what is wrong with the server; here only the next attempt counts.
                leave_if_replica(self._address, error)
                was_lost = was_lost or server is not None
                if server is not None:
                    server.close()
                server = None
        if server is not None:
            server.close()

    def _renew(self, server: Server) -> None:
        with self._changing:
            with self._lock:
                streams, leaving, began = self._streams, self._leaving, time.monotonic()
            checked_keys = self._to_check(list(streams))
            lives, *held = server.execute_all(
                [("PEXPIRE", self._session, self._ttl), *[("GET", key) for key in checked_keys]]
            )
            if not lives:
                server.execute("SET", self._session, self._value, "PX", self._ttl)
                self._write_again(server, streams)
            else:
                other = [key for key, value in zip(checked_keys, held, strict=True) if value != self._value]
                self._write_again(server, {key: streams[key] for key in other})
            self._remove_leases(server, leaving)
            with self._lock:
                self._leaving = [key for key in self._leaving if key not in set(leaving)]
                self._renewed = began

    def _to_check(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the leases that this renewal reads."""
        start, self._checked = self._checked, self._checked + _CHECKED
        return list(dict.fromkeys(keys[index % len(keys)] for index in range(start, start + _CHECKED))) if keys else []

    def _write_again(self, server: Server, streams: Mapping[bytes, str]) -> None:
        """Write these leases again if this process still holds them, or if they were deleted. EXEC fails if another
        process took one over. Raises TakenError if another process holds one."""
        for batch in portions_of(server, list(streams), _TOGETHER):
            while True:
                held = server.execute_all([("WATCH", *batch), *[("GET", key) for key in batch]])[1:]
                for key, value in zip(batch, held, strict=True):
                    if value not in (None, self._value) and not self._is_set_back(server, key, value):
                        server.connection_for(key).execute("UNWATCH")
                        raise self.taken(streams[key], describe(value))
                if transact(server, [("SET", key, self._value) for key in batch]) is not None:
                    break

    def _is_set_back(self, server: Server, key: bytes, held: bytes) -> bool:
        """Whether the server has returned to a state from before this process took this lease over."""
        return held == self._replaced.get(key) and not self._may_live(server, key, held)


# -- contents of a lease ----------------------------------------------------------------------------------------


def _read(value: bytes | None) -> dict[str, str | int] | None:
    try:
        holder = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(holder, dict):
        return None
    kinds = {"pid": int, "host": str, "space": str, "born": str}
    return holder if all(isinstance(holder.get(name), kind) for name, kind in kinds.items()) else None


def _session_of(key: bytes, value: bytes | None) -> bytes:
    """Return the key that expires if the holder of a lease dies: without a session, the lease itself."""
    session = (_read(value) or {}).get("session")
    return session.encode() if isinstance(session, str) and session.startswith(SESSIONS) else key


def are_held(server: Server, leases: Sequence[bytes | None], processes: Processes) -> list[bool]:
    """Return whether the holders of these leases live, as far as this machine can see. Raises ServerError."""
    alive = [value is not None and processes.has_alive(value) is not False for value in leases]
    indexes = [index for index, lives in enumerate(alive) if lives and _session_of(b"", leases[index])]
    sessions = server.execute_all([("EXISTS", _session_of(b"", leases[index])) for index in indexes])
    for index, exists in zip(indexes, sessions, strict=True):
        alive[index] = bool(exists)
    return alive


def describe(value: bytes | None) -> str:
    """Return ` (process 1 on host)` for a lease's holder; empty if the lease does not name it."""
    holder = _read(value)
    return f" (process {holder['pid']} on {holder['host']})" if holder else ""


@functools.cache
def _space() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
