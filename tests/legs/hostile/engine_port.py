"""Hostile clients at a bundled engine while a good client works.

    python -m tests.legs.hostile.engine_port --minutes 60 --seed 1

The hostile ones run in processes of their own at a lower priority, so that what the good client waits for is the
engine. Half of them know the password: those work in database 1, and send nothing that stops the engine, holds it up
or removes the good client's data by design. At the end a table is printed; the exit code is 1 if a number is bad.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue

from spark_streams.engine.persistence.rdb import crc64
from tests.engine import test_hostile as bytes_of
from tests.engine.server.test_flooding import FLOODS
from tests.engine.server.test_http import REQUESTS
from tests.engine.wire import Wire, command, wire
from tools.servers.server import Served, Server, serving

PASSWORD = "a password that hostile clients may know"
LOGIN = command("AUTH", PASSWORD) + command("SELECT", 1)
LONGEST_MS = 50
ATTACKERS = 2
OPEN = 40  # connections that an attacker keeps open

# By design these stop or hold up everybody, or change what others have.
FORBIDDEN = [
    *(b"flushall", b"flushdb", b"swapdb", b"select", b"shutdown", b"debug", b"save", b"bgrewriteaof", b"copy"),
    *(b"pause", b"kill", b"unblock", b"config"),
]
CONFIG = [
    ("tcp-keepalive", ["40000", "2147483647", "-1", "x", "0", "300"]),
    ("maxclients", ["4294967295", "0", "99999999999999", "x"]),
    ("timeout", ["2147483647", "-1", "9" * 5000, "\0", "x"]),
    ("port", ["0", "1", "70000"]),
    ("bind", ["", "nowhere.invalid", "x" * 5000]),
    ("unixsocketperm", ["7777", "999", "0"]),
    ("tcp-backlog", ["2147483647", "-1"]),
    ("maxmemory", ["9223372036854775807", "1e3", "-1", "99999999999999999999"]),
    ("client-query-buffer-limit", ["1", "9223372036854775807", "x"]),
    ("proto-max-bulk-len", ["1", "9223372036854775808", "x"]),
    ("client-output-buffer-limit", ["normal", "normal 1 2", "nobody 0 0 0", "normal x 0 0", "²"]),
    ("stream-node-max-entries", ["-1", "9223372036854775807", "100"]),
    ("appendfilename", ["../x", "", "a\0b"]),
    ("dir", ["/", "\0", "/nowhere"]),
    ("loglevel", ["", "all"]),
    ("requirepass\0", ["x"]),
    ("*", ["x"]),
]


def harmless(make: Callable[[random.Random], bytes], chance: random.Random) -> bytes:
    """Bytes in which no forbidden word stands."""
    while True:
        data = make(chance)
        lowered = data.lower()
        if not any(word in lowered for word in FORBIDDEN):
            return data


def mutated(chance: random.Random, dumps: list[bytes]) -> bytes:
    """RESTORE of a real dump with some bytes changed and a checksum that fits, and commands that look at the key."""
    body = bytearray(chance.choice(dumps)[:-8])
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        at = chance.randrange(len(body))
        kind = chance.randrange(4)
        if kind == 0:
            body[at] = chance.choice([0, 1, 0x7F, 0x80, 0x81, 0xC3, 0xF0, 0xF4, 0xFE, 0xFF, chance.randrange(256)])
        elif kind == 1:
            body[at : at + chance.randrange(8)] = chance.randbytes(chance.randrange(8))
        elif kind == 2:
            del body[at : at + chance.randrange(1, 8)]
        else:
            body[at:at] = b"\x81" + (1 << chance.randrange(64)).to_bytes(8, "big")
        if not body:
            body = bytearray(b"\0")
    payload = bytes(body) + crc64(bytes(body)).to_bytes(8, "little")
    looks = [
        ("XINFO", "STREAM", "r", "FULL"), ("XRANGE", "r", "-", "+"), ("DUMP", "r"), ("XADD", "r", "*", "a", "1"),
        ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "r", "0"), ("XPENDING", "r", "g", "-", "+", "10"),
        ("XAUTOCLAIM", "r", "g", "d", "0", "0"), ("XTRIM", "r", "MAXLEN", "~", "3"), ("OBJECT", "ENCODING", "r"),
        ("MEMORY", "USAGE", "r"), ("TYPE", "r"),
    ]  # fmt: skip
    return command("RESTORE", "r", 0, payload, "REPLACE") + b"".join(command(*look) for look in looks)


def settings_of(chance: random.Random) -> bytes:
    """CONFIG SET of what is refused, or means nothing to the good client."""
    name, values = chance.choice(CONFIG)
    return command("CONFIG", "SET", name, chance.choice(values))


class Attacker:
    """Sends hostile inputs for a while, and counts them by kind."""

    def __init__(self, path: str, seed: int, dumps: list[bytes]) -> None:
        self._path = path
        self._chance = random.Random(seed)
        self._open: list[socket.socket] = []
        self.sent: Counter[str] = Counter()
        floods = list(FLOODS.values())
        one_of = {
            "noise": bytes_of.noise, "headers": bytes_of.header, "cut pipelines": bytes_of.half,
            "damaged pipelines": bytes_of.damaged, "inline": bytes_of.inline, "nested arrays": bytes_of.deep,
            "absurd commands": bytes_of.absurd,
        }  # fmt: skip
        self._kinds: dict[str, Callable[[], bytes]] = {
            name: (lambda make=make: harmless(make, self._chance)) for name, make in one_of.items()
        }
        self._kinds |= {
            "HTTP": lambda: self._chance.choice(list(REQUESTS.values())),
            "floods": lambda: self._chance.choice(floods)[: self._chance.choice([10_000, 300_000, 600_000])],
            "RESTORE": lambda: mutated(self._chance, dumps),
            "CONFIG SET": lambda: settings_of(self._chance),
            "unread replies": lambda: command("RESTORE", "r", 0, dumps[0], "REPLACE") + command("DUMP", "r") * 20_000,
            "slow": lambda: b"",
        }

    def run(self, seconds: float) -> None:
        """One input after the other."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            kind = self._chance.choice(list(self._kinds))
            # A server that turns connections away, or closes them, is what is wanted.
            with contextlib.suppress(OSError):
                self._send(kind, self._kinds[kind]())
            self.sent[kind] += 1
        for client in self._open:
            client.close()

    def _send(self, kind: str, data: bytes) -> None:
        if kind == "slow":
            for client in self._open:
                with contextlib.suppress(OSError):
                    client.send(self._chance.choice([b"*", b'"', b"$", b"1", b"\r", b"\n", b"x"]))
            return
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(0.5)
        client.connect(self._path)
        knows = kind in ("RESTORE", "CONFIG SET", "unread replies") or self._chance.random() < 0.5
        if knows:
            client.sendall(LOGIN)
        if kind == "unread replies" or self._chance.random() < 0.1:
            self._open.append(client)
            if len(self._open) > OPEN:
                self._open.pop(self._chance.randrange(len(self._open))).close()
            client.setblocking(False)
            client.send(data)
            return
        with client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            taken = 0
            while taken < 4 << 20 and (more := client.recv(1 << 18)):
                taken += len(more)


def attack(path: str, seed: int, dumps: list[bytes], seconds: float, sent: Queue[Counter[str]]) -> None:
    """An attacker's process."""
    os.nice(10)
    attacker = Attacker(path, seed, dumps)
    attacker.run(seconds)
    sent.put(attacker.sent)


@dataclass
class Report:
    """What a soak has seen. Times in milliseconds, memory in bytes."""

    sent: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    calls: int = 0
    longest: dict[str, float] = field(default_factory=dict)
    long: int = 0  # calls above LONGEST_MS
    processor: float = 0.0  # the longest time that the engine computed during one call
    stall: float = 0.0  # the longest time that this machine gave the good client no processor
    wrong: int = 0
    lost: int = 0
    errors: int = 0  # internal errors in the engine's log
    peak: int = 0

    @property
    def freeze(self) -> float:
        """The longest time that a call of the good client took."""
        return max(self.longest.values(), default=0.0)

    @property
    def sound(self) -> bool:
        """Whether nothing but a time is bad."""
        return not (self.restarts or self.wrong or self.lost or self.errors)

    def table(self) -> str:
        """For people."""
        rows = [(f"sent: {kind}", f"{count:,}") for kind, count in sorted(self.sent.items())]
        rows += [
            ("sent in all", f"{self.sent.total():,}"), ("calls of the good client", f"{self.calls:,}"),
            ("engine restarts", str(self.restarts)), ("internal errors in its log", str(self.errors)),
            ("wrong replies", str(self.wrong)), ("entries lost", str(self.lost)),
            *((f"longest {name}", f"{took:.1f} ms") for name, took in sorted(self.longest.items())),
            ("longest freeze", f"{self.freeze:.1f} ms"),
            ("longest processor time in a call", f"{self.processor:.1f} ms"),
            (f"calls above {LONGEST_MS} ms", str(self.long)),
            ("longest stall of this machine", f"{self.stall:.1f} ms"), ("peak memory", f"{self.peak / 1e6:.0f} MB"),
        ]  # fmt: skip
        return "\n".join(f"{name:<34}{value:>14}" for name, value in rows)


class GoodClient:
    """Adds, reads and acknowledges entries, and checks every reply."""

    def __init__(self, server: Served, report: Report) -> None:
        self._wire = Wire(server)
        self._schedstat = os.open(f"/proc/{server.process.pid}/schedstat", os.O_RDONLY)
        self._wire.socket.settimeout(60)
        self._report = report
        self._number = 0
        self._kept = 0
        self._call("AUTH", b"OK", "AUTH", PASSWORD)
        self._call("XGROUP", b"OK", "XGROUP", "CREATE", "good", "group", "$", "MKSTREAM")

    def _call(self, name: str, expected: object, *words: object) -> object:
        computed, begun = self._processor_time(), time.perf_counter()
        reply = self._wire.call(*words)
        took = (time.perf_counter() - begun) * 1000
        self._report.processor = max(self._report.processor, self._processor_time() - computed)
        self._report.calls += 1
        self._report.longest[name] = max(self._report.longest.get(name, 0.0), took)
        self._report.long += took > LONGEST_MS
        if expected is not None and reply != expected:
            self._report.wrong += 1
            print(f"wrong reply to {words!r}: {reply!r:.300}", file=sys.stderr)
        return reply

    def _processor_time(self) -> float:
        """Of the engine, in milliseconds. It grows by nothing while the engine waits for a processor."""
        return int(os.pread(self._schedstat, 100, 0).split()[0]) / 1e6

    def round(self) -> None:
        """One entry on its way; every 1000 rounds all that there are."""
        self._call("PING", b"PONG", "PING")
        value = b"%d" % self._number
        self._number += 1
        added = self._call("XADD", None, "XADD", "good", "*", "n", value)
        read = ("XREADGROUP", "GROUP", "group", "me", "STREAMS", "good", ">")
        self._call("XREADGROUP", [[b"good", [[added, [b"n", value]]]]], *read)
        self._call("XACK", 1, "XACK", "good", "group", added)
        self._kept += 1
        if self._kept == 1000:
            self.count()

    def count(self) -> None:
        """Look for entries that are gone, then remove all."""
        there = self._call("XTRIM", None, "XTRIM", "good", "MAXLEN", "=", 0)
        self._report.lost += abs(self._kept - there) if isinstance(there, int) else self._kept
        self._kept = 0


def dumps_of(server: Server) -> list[bytes]:
    """Real dumps: streams with groups, pending entries and remembered messages."""
    made = [
        "SELECT 1", "XGROUP CREATE a g 0 MKSTREAM", "XGROUP CREATE a h $", "XADD b 5-1 f v", "XADD i IDMP p m * f v",
        *(f"XADD a * field {n} other {'v' * (n % 70)}" for n in range(250)), "XADD a * else 1",
        "XREADGROUP GROUP g c COUNT 60 STREAMS a >", "XREADGROUP GROUP g d COUNT 5 STREAMS a >", "XDEL b 5-1",
    ]  # fmt: skip
    with wire(server) as client:
        client.call("AUTH", PASSWORD)
        for line in made:
            client.call(*line.split())
        return [client.call("DUMP", key) for key in ("a", "b", "i")]


def soak(seconds: float, seed: int) -> Report:
    """Run it."""
    report = Report()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="rstream-soak-") as folder:
        path = str(Path(folder) / "e.sock")
        secret = Path(folder, "secret")
        secret.write_text(PASSWORD)
        with serving("--unixsocket", path, "--requirepass-file", str(secret)) as served:
            server = Served("engine", f"unix://{path}", served.process, served.file)
            dumps = dumps_of(server)
            sent = spawn.Queue()
            attackers = [
                spawn.Process(target=attack, args=(path, seed * 1000 + number, dumps, seconds, sent), daemon=True)
                for number in range(ATTACKERS)
            ]
            ended = threading.Event()
            watch = threading.Thread(target=_watch_machine, args=(report, ended))
            watch.start()
            try:
                for attacker in attackers:
                    attacker.start()
                _work(server, seconds, report)
                for _ in attackers:
                    report.sent += sent.get(timeout=60)
            finally:
                ended.set()
                watch.join()
                for attacker in attackers:
                    attacker.kill()
            report.restarts = int(served.process.poll() is not None)
            report.errors = served.log().count("internal error")
            report.peak = 0 if report.restarts else bytes_of.peak(server)
            if report.errors:
                print(served.log()[-5000:], file=sys.stderr)
    return report


def _work(server: Served, seconds: float, report: Report) -> None:
    until = time.monotonic() + seconds + 2  # the attackers have to start
    try:
        good = GoodClient(server, report)
        while time.monotonic() < until:
            good.round()
            time.sleep(0.001)
        good.count()
    except OSError as problem:
        report.wrong += 1
        print(f"the good client was closed: {problem}", file=sys.stderr)


def _watch_machine(report: Report, ended: threading.Event) -> None:
    """How long this process got no processor when it wanted one: then a long call says nothing about the engine."""
    while not ended.is_set():
        begun = time.perf_counter()
        time.sleep(0.002)
        report.stall = max(report.stall, (time.perf_counter() - begun) * 1000 - 2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.legs.hostile.engine_port", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    report = soak(chosen.minutes * 60, chosen.seed)
    print(f"{chosen.minutes:g} minutes, seed {chosen.seed}")
    print(report.table())
    return 0 if report.sound and report.freeze <= LONGEST_MS else 1


if __name__ == "__main__":
    sys.exit(main())
