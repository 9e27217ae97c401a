"""Streams are kept short, and under trim=acked nothing goes that some group still needs."""

from __future__ import annotations

import random
import time

import pytest
import redis

from spark_streams.connector.sink.send.chunk_writer import append
from tests.connector.sink.writing import batch_of, close, frame, numbers, options, write
from tests.proxy import Proxy
from tools.servers.server import Server

ROWS = list(range(3000))


@pytest.mark.usefixtures("small_nodes")
@pytest.mark.parametrize("exactly_once", [True, False])
def test_what_is_below_an_id_goes(server: Server, exactly_once: bool) -> None:
    with server.client() as client:
        for n in range(5):
            client.xadd("out", {"n": n}, id=f"{n + 1}-0")
    checked = options(server.url, minId="4")
    if exactly_once:
        write([frame([9])], checked, batch_of(0))
    else:
        append([frame([9])], checked, None)
    assert sorted(numbers(server)) == [3, 4, 9]


@pytest.mark.usefixtures("small_nodes")
def test_what_is_old_by_the_servers_clock_goes(server: Server) -> None:
    now = int(time.time() * 1000)
    with server.client() as client:
        for n, age in enumerate((7_200_000, 3_700_000, 3_500_000)):
            client.xadd("out", {"n": n}, id=f"{now - age}-0")
    append([frame([9])], options(server.url, retention="1h"), None)
    assert sorted(numbers(server)) == [2, 9]


def test_without_groups_nothing_is_acknowledged(server: Server) -> None:
    append([frame(ROWS)], options(server.url, trim="acked", maxlen="10"), None)
    assert sum(numbers(server).values()) == len(ROWS)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("threshold", [{}, {"maxlen": "150"}, {"retention": "1d"}])
def test_nothing_goes_that_a_slow_group_still_needs(server: Server, seed: int, threshold: dict[str, str]) -> None:
    assert _left_beside_a_slow_group(server, seed, threshold) <= _bound(threshold) + 200


@pytest.mark.usefixtures("small_nodes")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("threshold", [{}, {"maxlen": "150"}])
def test_nor_to_the_entry(server: Server, seed: int, threshold: dict[str, str]) -> None:
    assert _left_beside_a_slow_group(server, seed, threshold) <= _bound(threshold)


def _bound(threshold: dict[str, str]) -> int:
    return 1201 if "retention" in threshold else int(threshold.get("maxlen", 1))


def _left_beside_a_slow_group(server: Server, seed: int, threshold: dict[str, str]) -> int:
    """Two groups read and acknowledge at their own pace, out of order, while rows come in and the stream is trimmed."""
    chance = random.Random(seed)
    checked = options(server.url, trim="acked", chunkSize="50", **threshold)
    acked: dict[str, set[bytes]] = {"fast": set(), "slow": set()}
    pending: dict[str, list[bytes]] = {"fast": [], "slow": []}
    with server.client() as client:
        for group in acked:
            client.xgroup_create("out", group, "0", mkstream=True)
        every: list[bytes] = []
        for step in range(12):
            batch = batch_of(step)
            close(checked, batch, write([frame(list(range(100)))], checked, batch))
            here = {entry for entry, _ in client.xrange("out")}
            needed = {entry for entry in every if any(entry not in done for done in acked.values())}
            assert needed <= here
            every += sorted(here - set(every), key=lambda entry: tuple(map(int, entry.split(b"-"))))
            for group, pace in (("fast", 120), ("slow", 40)):
                found = client.xreadgroup(group, "c", {"out": ">"}, count=pace)
                pending[group] += [entry for _, entries in found for entry, _ in entries]
                done = chance.sample(pending[group], chance.randrange(len(pending[group]) + 1))
                if done:
                    client.xack("out", group, *done)
                acked[group] |= set(done)
                pending[group] = [entry for entry in pending[group] if entry not in acked[group]]
        for group in acked:
            while found := client.xreadgroup(group, "c", {"out": ">"}, count=1000):
                pending[group] += [entry for _, entries in found for entry, _ in entries]
            client.xack("out", group, *pending[group])
        append([frame([1])], checked, None)
        return int(client.xlen("out"))


def test_the_server_is_asked_whether_it_knows_acked(server: Server) -> None:
    """Not its number: the bundled engine knows ACKED, redis-server 7.0 does not, and only there it is worked out."""
    with server.client() as client:
        client.xgroup_create("out", "g", "0", mkstream=True)
        knows = _knows_acked(client)
    with Proxy(server.url) as proxy:  # the newest connection is the one that trims
        append([frame(ROWS[:100])], options(proxy.url, trim="acked", chunkSize="20"), None)
        asked, trimmed = proxy.requests.count(b"ACKED"), proxy.requests.count(b"XTRIM")
    assert (asked, trimmed) == ((5, 5) if knows else (1, 6))


def _knows_acked(client: redis.Redis) -> bool:
    try:
        client.execute_command("XTRIM", "out", "MAXLEN", "9", "ACKED")
    except redis.ResponseError:
        return False
    return True
