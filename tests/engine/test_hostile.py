"""Hostile bytes at the engine's port: an error or a hang-up, memory bounded, everybody else served meanwhile.

Seeded: RSTREAM_SEED=7 pytest tests/engine/test_hostile.py repeats a run, RSTREAM_HOSTILE=200000 makes a longer one.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_streams.engine.commands import COMMANDS
from tests.engine.wire import Wire, command, wire
from tools.machine_time import machine_seconds
from tools.servers.server import Served, serving

pytestmark = pytest.mark.in_turn

INPUTS = int(os.environ.get("RSTREAM_HOSTILE", "10000"))
SEED = int(os.environ.get("RSTREAM_SEED", "1"))
MB = 1 << 20

HEADERS = [
    b"*2147483647\r\n", b"*2147483648\r\n", b"*999999999\r\n", b"*1000000\r\n", b"*-1\r\n", b"*-9\r\n", b"*0\r\n",
    b"*01\r\n", b"*1\r\n$536870912\r\n", b"*1\r\n$536870913\r\n", b"*3\r\n$99999999999999999999\r\n", b"*1\r\n$-1\r\n",
    b"%2147483647\r\n", b"~1000000000\r\n", b">999999999\r\n", b"|100000000\r\n", b"$536870912\r\n", b"*1\r\n*1\r\n",
    b"+OK\r\n", b":1\r\n", b"_\r\n", b"#t\r\n", b",1.5\r\n", b"(1\r\n", b"=9\r\ntxt:abcde\r\n", b"*\r\n", b"$\r\n",
]  # fmt: skip
WORDS = [
    b"", b"0", b"-1", b"1", b"9223372036854775807", b"-9223372036854775808", b"18446744073709551615", b"99999999999999",
    b"18446744073709551615-18446744073709551615", b"0-0", b"1-*", b"*", b"$", b">", b"+", b"-", b"(", b"(5-1", b"5-1-1",
    b"~", b"=", b"MAXLEN", b"MINID", b"LIMIT", b"COUNT", b"BLOCK", b"STREAMS", b"GROUP", b"NOACK", b"JUSTID", b"FORCE",
    b"IDLE",
    b"TIME", b"RETRYCOUNT", b"LASTID", b"MKSTREAM", b"ENTRIESREAD", b"FULL", b"EX", b"PX", b"GET", b"NX", b"XX",
    b"KEEPTTL", b"WITHSCORES", b"nan", b"inf", b"1e308", b"\xff\xfe", b"a\r\nb", b"\0", b"k", b"s", b"g", b"c", b"t",
    b"x" * 5000, b"[" * 300, b"*" * 300, b"9" * 400, b"IDS", b"KEEPREF", b"DELREF", b"ACKED", b"MATCH", b"TYPE",
]  # fmt: skip
# What ends or stops the engine by design, or writes files; and what changes settings for everybody.
BY_DESIGN = {"shutdown", "debug", "save", "bgsave", "bgrewriteaof"}
BY_DESIGN_SUB = {"config|set", "client|pause", "client|kill"}


def absurd(chance: random.Random) -> bytes:
    """A well-formed request for a command that exists, with arguments that make no sense."""
    while True:
        spec = chance.choice(list(COMMANDS.values()))
        if spec.name in BY_DESIGN:
            continue
        words = [spec.name.encode()]
        if spec.subcommands:
            sub = chance.choice(list(spec.subcommands.values()))
            if sub.name in BY_DESIGN_SUB:
                continue
            words, spec = sub.name.encode().split(b"|"), sub
        wanted = abs(spec.arity) - len(words) + (chance.randint(0, 6) if spec.arity < 0 else 0)
        words += [b"sgtk"[at : at + 1] if chance.random() < 0.3 else chance.choice(WORDS)
                  for at in (chance.randrange(4) for _ in range(max(wanted, 0)))]  # fmt: skip
        if words[0] in (b"blpop", b"xread", b"xreadgroup") and chance.random() < 0.9:
            return command(b"MULTI") + command(*words) + command(b"EXEC")
        return command(*words)


def noise(chance: random.Random) -> bytes:
    """Bytes at random."""
    return chance.randbytes(chance.randint(1, 3000))


def header(chance: random.Random) -> bytes:
    """A promise, alone, behind a command or amid a pipeline."""
    before = command(b"ECHO", b"x" * chance.choice([1, 10, 5000])) * chance.choice([0, 0, 1, 3])
    return before + chance.choice(HEADERS) * chance.choice([1, 1, 2, 500]) + chance.choice([b"", b"$3\r\nGET\r\n"])


def half(chance: random.Random) -> bytes:
    """A pipeline cut short."""
    whole = b"".join(absurd(chance) for _ in range(chance.randint(1, 5)))
    return whole[: chance.randrange(1, len(whole))]


def damaged(chance: random.Random) -> bytes:
    """A pipeline with some bytes changed, taken out or put in."""
    data = bytearray(b"".join(absurd(chance) for _ in range(chance.randint(1, 60))))
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(len(data))
        data[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
    return bytes(data)


def inline(chance: random.Random) -> bytes:
    """Lines: quotes, escapes, zeros, very long, without an end."""
    unit = chance.choice([b'"', b"'", b"\\", b"\\x4", b"\0", b"GET ", b'"a" ', b"\n", b"\r\n", b"[", b"\xff", b" \t"])
    return unit * chance.choice([1, 10, 1000, 30_000]) + chance.choice([b"", b"\n", b"\r\n", b'"\r\n'])


def deep(chance: random.Random) -> bytes:
    """Arrays in arrays."""
    return b"*%d\r\n" % chance.choice([1, 2, 9]) * chance.choice([5, 20, 5000])


KINDS: list[Callable[[random.Random], bytes]] = [absurd, absurd, absurd, damaged, noise, header, half, inline, deep]


def exchange(path: str, data: bytes) -> bytes:
    """Send, hang up half, and take what comes."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(path)
        answer = b""
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            while more := client.recv(1 << 18):
                answer += more
                if len(answer) > 4 * MB:
                    break
        return answer


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Served]:
    """An engine of its own, on a Unix socket."""
    path = tmp_path / "e.sock"
    with serving("--unixsocket", str(path)) as served:
        yield Served("engine", f"unix://{path}", served.process, served.file)


def peak(served: Served) -> int:
    """The most that the process has had in memory."""
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) * 1024


def test_ten_thousand_hostile_inputs(target: Served) -> None:
    """No crash, no internal error, no growth, and a bystander never waits long."""
    chance = random.Random(SEED)
    path = target.url.removeprefix("unix://")
    before = target.resident()
    worst = 0.0
    with wire(target) as bystander:
        for number in range(INPUTS):
            data = chance.choice(KINDS)(chance)
            exchange(path, data)
            if number % 20 == 0:
                begun = time.monotonic()
                assert bystander.call("PING") == b"PONG"
                worst = max(worst, time.monotonic() - begun)
            if number % 1000 == 999:
                bystander.call("FLUSHALL")
                assert "internal error" not in target.log(), (SEED, number, data)
        assert bystander.call("CLIENT", "LIST").count(b"\n") == 1
    assert target.process.poll() is None
    after, most = target.resident(), peak(target)
    print(f"\n{INPUTS} inputs: resident {before / MB:.0f} MB before, {after / MB:.0f} after, {most / MB:.0f} at most; "
          f"a bystander waited {worst * 1000:.0f} ms at most")  # fmt: skip
    assert worst < 1
    assert after < before + 40 * MB
    assert most < before + 150 * MB


def test_promises_kept_open_cost_nothing(target: Served) -> None:
    """Two hundred clients each announce gigabytes, send a byte now and then, and stay."""
    before = target.resident()
    path = target.url.removeprefix("unix://")
    with contextlib.ExitStack() as stack, wire(target) as bystander:
        hostile = []
        for number in range(200):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(path)
            client.sendall(HEADERS[number % 12] if number % 2 else b"*2\r\n$4\r\nECHO\r\n$536870912\r\nx")
            hostile.append(client)
        for _ in range(20):
            for client in hostile:
                with contextlib.suppress(ConnectionError, BrokenPipeError):
                    client.send(b"x")
            begun = machine_seconds()
            assert bystander.call("PING") == b"PONG"
            assert machine_seconds() - begun < 0.5
        assert target.resident() < before + 20 * MB


def test_a_thousand_idle_clients_cost_little(target: Served) -> None:
    """A few kilobytes each, and those who work do not feel them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    before = target.resident()
    with contextlib.ExitStack() as stack, wire(target) as busy:
        clients = [stack.enter_context(contextlib.closing(Wire(target))) for _ in range(1000)]
        assert [client.call("PING") for client in clients] == [b"PONG"] * 1000
        assert target.resident() < before + 1000 * 8192
        begun = machine_seconds()
        for _ in range(1000):
            busy.call("PING")
        assert machine_seconds() - begun < 2
        assert busy.call("INFO", "clients").count(b"connected_clients:1001") == 1


def test_who_never_reads_costs_no_more_than_it_sends(target: Served) -> None:
    """Single requests without end, no reply read: the engine runs no more of them, and serves the others. What it holds
    is what was sent, not the replies, which are fifty times as much."""
    with wire(target) as client, socket.socket(socket.AF_UNIX) as mute:
        client.call("SET", "k", "x" * 1000)
        before = target.resident()
        mute.connect(target.url.removeprefix("unix://"))
        mute.setblocking(False)
        sent, until, left = 0, time.monotonic() + 3, b""
        while time.monotonic() < until:
            left = left or command("GET", "k") * 1000
            try:
                done = mute.send(left)
                sent, left = sent + done, left[done:]
            except BlockingIOError:
                begun = machine_seconds()
                assert client.call("PING") == b"PONG"
                assert machine_seconds() - begun < 0.5
                time.sleep(0.02)
        assert 50 * sent > 200 * MB
        assert target.resident() < before + 40 * MB + 1.2 * sent
