"""Processes that are really killed: a redrive, two at once, and a driver between a dead letter and its XACK."""

from __future__ import annotations

import ast
import contextlib
import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import hiredis
import pytest

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.task.notes import LetterDestination, collect, notes_key
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection, pack
from tests.connector.deadletter.making import DEAD, fill, marks, numbers
from tests.proxy import Proxy
from tools.driving import drain, forget_all, reader
from tools.servers.server import Server
from tools.waiting import until

ROOT = Path(__file__).resolve().parents[3]
LETTERS = 3_000
MEMBER = Membership("g", "spark")


def start(server: Server, *options: str) -> subprocess.Popen[str]:
    """`rstream dead redrive` in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "spark_streams.cli",
        "dead",
        "redrive",
        DEAD,
        "--yes",
        "--json",
        "--url",
        server.url,
    ]
    return subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_entries(server: Server, count: int) -> None:
    with server.client() as client:
        until(lambda: client.xlen("s") >= count, f"stream s has fewer than {count} entries", interval=0.002)


@pytest.mark.in_turn
def test_a_redrive_that_is_killed_and_run_again_moves_each_dead_letter_once_under_the_first_ones_bound(
    server: Server,
) -> None:
    ids = fill(server, LETTERS)
    seed = random.randrange(1000)
    print(f"seed {seed}")
    first = start(server, "--rate", "4000")
    wait_for_entries(server, 1 + seed)
    first.kill()
    first.communicate()
    assert first.returncode == -signal.SIGKILL
    moved = len(numbers(server))
    assert 0 < moved < LETTERS
    fill(server, 50, first=LETTERS)  # what died meanwhile waits for the next one
    with start(server, "--rate", "4000") as again:
        said, errors = again.communicate(timeout=60)
    assert again.returncode == 0, errors
    told = json.loads(said)
    assert (told["goes_on"], told["bound"]) == (True, ids[-1])
    # Entries are appended before their dead letters are deleted. A page is counted by the process that deletes it.
    assert told["moved_before"] <= moved
    assert told["moved"] == LETTERS - told["moved_before"]
    assert numbers(server) == list(range(LETTERS))
    assert len(set(marks(server))) == LETTERS
    assert numbers(server, DEAD) == list(range(LETTERS, LETTERS + 50))


@pytest.mark.in_turn
def test_two_redrives_at_once_move_each_dead_letter_once(server: Server) -> None:
    """One is refused in one line, or finds nothing left."""
    fill(server, LETTERS)
    both = [start(server, "--rate", "4000") for _ in range(2)]
    ended = [(*one.communicate(timeout=60), one.returncode) for one in both]
    assert numbers(server) == list(range(LETTERS))
    assert numbers(server, DEAD) == []
    assert min(code for _, _, code in ended) == 0
    for _, errors, code in ended:
        assert code == 0 or errors.startswith(
            "Error: [RSTREAM_REDRIVE_TAKEN] another process moves or purges dead letters"
        )


@pytest.mark.in_turn
def test_sigterm_ends_it_after_its_page_and_it_goes_on_later(server: Server) -> None:
    fill(server, LETTERS)
    first = start(server, "--rate", "2000")
    wait_for_entries(server, 1)
    first.terminate()
    said, errors = first.communicate(timeout=60)
    assert first.returncode == 130, errors
    told = json.loads(said)
    assert told["stopped"]
    assert told["moved"] == len(numbers(server)) < LETTERS
    with start(server) as again:
        again.communicate(timeout=60)
    assert numbers(server) == list(range(LETTERS))


_DRIVER = """
import os, signal, sys
from spark_streams.connector.wire.connection import Connection
from tools.servers.server import Server
from tools.driving import ALL, read, reader

url, when = sys.argv[1:]
honest = Connection.pipeline

def dies(self, commands):
    if [command[0] for command in commands][:1] == ["MULTI"] and any(c[0] == "XACK" for c in commands):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        honest(self, commands)
        os.kill(os.getpid(), signal.SIGKILL)
    return honest(self, commands)

Connection.pipeline = dies
one = reader(Server("", url), mode="DEADLETTER", deadLetterStream="dead")
start = one.initialOffset()
end = one.latestOffset(start, ALL)
read(one, start, end)
print(end, flush=True)
one.latestOffset(end, ALL)
"""


@pytest.mark.in_turn
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_is_killed_around_the_dead_letter_leaves_one_dead_letter_for_each(
    server: Server, when: str
) -> None:
    """FailedEntry and XACK are one transaction: before it the entry is pending, after it it is dead."""
    with server.client() as client:
        for n in range(30):
            client.xadd("s", {"n": f"bad {n}" if n % 3 == 0 else n})
        ended = subprocess.run(
            [sys.executable, "-c", _DRIVER, server.url, when], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        letters, pending = client.xlen(DEAD), client.xpending("s", "g")["pending"]
        assert (letters, pending) == ((0, 30) if when == "before" else (10, 20))
        end = ast.literal_eval(ended.stdout)  # the offset that the driver had in its log
        one = reader(server, mode="DEADLETTER", deadLetterStream=DEAD)
        assert drain(one, start=end) == []
        assert client.xpending("s", "g")["pending"] == 0
    forget_all()
    with server.client(decode_responses=True) as client:
        assert sorted(f["n"] for _, f in client.xrange(DEAD)) == sorted(f"bad {n}" for n in range(0, 30, 3))


def ends_of_commands(requests: bytes) -> list[int]:
    """Where each command of a connection ends, and the first words of it."""
    reader = hiredis.Reader()
    ends = [0]
    for at in range(len(requests)):
        reader.feed(requests[at : at + 1])
        if reader.gets() is not False:
            ends.append(at + 1)
    assert ends[-1] == len(requests)
    return ends


def noted(server: Server, count: int) -> None:
    """Entries that tasks of batch `t` have noted as ones that do not fit."""
    with server.client(decode_responses=True) as client:
        client.flushall()
        client.xgroup_create("s", "g", "0", mkstream=True)
        for n in range(count):
            entry = client.xadd("s", {"n": n})
            client.hset(str(notes_key("s", MEMBER), "ascii"), f"t letter {entry}", pack("q", "7", "", "", "n", str(n)))
        client.xreadgroup("g", "spark", {"s": ">"})


@pytest.mark.parametrize("direction", ["up", "down", "late"])
def test_killed_at_any_command_of_posting_an_entry_is_acknowledged_where_its_dead_letter_exists(
    server: Server, direction: str
) -> None:
    """The connection ends before, within and behind each command, and nothing comes after it; then all starts again."""
    with Proxy(server.url) as proxy, server.client() as client:
        address = Address.parse(proxy.url)

        def driver() -> None:
            with Connection(address) as connection:
                collect(GroupClient(connection, MEMBER), ["s"], "t", LetterDestination(DEAD))

        noted(server, 3)
        driver()
        if direction == "down":
            places = range(1, proxy.passed[-1]["down"][-1] + 1, 7)
        else:
            ends = ends_of_commands(bytes(proxy.requests))
            assert len(ends) > 15
            places = sorted({at + more for at in ends for more in (-1, 0, 1, 20)} & set(range(1, ends[-1] + 1)))
        for at in places:
            noted(server, 3)
            proxy.cut(direction, at)
            with contextlib.suppress(RStreamError):
                driver()
            if direction == "late":
                proxy.wait_for_late()
            letters, pending = client.xlen(DEAD), client.xpending("s", "g")["pending"]
            assert (letters, pending) in ((0, 3), (3, 0)), at
            driver()
            assert (sorted(numbers(server, DEAD)), client.xpending("s", "g")["pending"]) == ([0, 1, 2], 0), at
        assert proxy.cut_so_far == len(places)
