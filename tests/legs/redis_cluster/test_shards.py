"""Shards in a cluster: spread over its masters, and each key's rows in their order while slots move and masters die."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.errors import ShardsError
from spark_streams.connector.keys import shards_key, slot_of
from spark_streams.connector.lag import survey
from spark_streams.connector.shards.names import shards_of
from spark_streams.connector.sink.chunks import Destination
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.session import Session
from tests.connector.shards.making import Row, by_key, frame, sequence, sharded
from tests.connector.sink.writing import batch_of, close, options, write
from tools.driving import ALL, reader, rows
from tools.servers.cluster import RedisCluster
from tools.waiting import until

KEYS = 100
NAMES = shards_of("orders", 8)


def keys_there(cluster: RedisCluster) -> dict[str | None, list[int]]:
    """Of each key its numbers, in the order of its shard."""
    found: dict[str, list[Row]] = {}
    with Session(Address.parse(cluster.url), is_known=True) as session:
        for name in NAMES:
            # Of the nodes, one may still name a master that was killed.
            entries = session.run(lambda server, name=name: server.execute("XRANGE", name, "-", "+"))
            pairs = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in entries]
            found[name] = [(pair[b"key"].decode(), int(pair[b"n"])) for pair in pairs]
    return by_key(found)


def struck(count: int, blow: Callable[[], object]) -> Iterator[pa.RecordBatch]:
    """Rows of all keys in turns; the blow falls beside them, and they go on until it has fallen."""
    there = threading.Thread(target=blow)
    start = 0
    while start < count or there.is_alive():
        yield frame([(f"k{n % KEYS}", n) for n in range(start, start + 500)])
        start += 500
        if start == 2_000:
            there.start()
    there.join()


def in_order(cluster: RedisCluster) -> bool:
    keys = keys_there(cluster)
    return keys == {f"k{key}": list(range(key, sum(map(len, keys.values())), KEYS)) for key in range(KEYS)}


def test_shards_are_spread_over_the_masters(cluster: RedisCluster) -> None:
    checked, batch = sharded(cluster.url, count=8), batch_of(0)
    close(checked, batch, write([frame(sequence(2_000, KEYS))], checked, batch))
    of_master = [sum(cluster.owner(name) == port for name in NAMES) for port in cluster.masters()]
    assert sorted(of_master) == [2, 3, 3]
    one = reader(cluster.server, streams="orders", ordered="true")
    begin = one.initialOffset()
    assert sorted(row["n"] for row in rows(one, begin, one.latestOffset(begin, ALL))) == list(range(2_000))


def test_an_entry_that_is_added_to_a_shard_while_they_are_deleted_is_kept(cluster: RedisCluster) -> None:
    """The shards are on several masters, so each is checked and deleted on its own."""
    sharded(cluster.url, count=8)
    deleting = CliRunner().invoke
    command = ["shards", "orders", "--delete", "--yes", "--url", cluster.url]
    with Session(Address.parse(cluster.url), is_known=True) as session, pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            session.get().execute("XGROUP", "CREATE", name, "g", "$")
        view = survey.view_streams

        def added_behind_the_check(server: Server, names: Sequence[str]) -> list[survey.StreamView]:
            viewed = view(server, names)
            if names == [NAMES[5]] and not viewed[0].length:
                session.get().execute("XADD", NAMES[5], "*", "n", "late")
            return viewed

        patch.setattr(survey, "view_streams", added_behind_the_check)
        assert "5 of 8 shards were deleted: group 'g' has not read" in deleting(main, command).output
        assert session.get().execute("XLEN", NAMES[5]) == 1
        session.get().execute("XREADGROUP", "GROUP", "g", "c", "NOACK", "STREAMS", NAMES[5], ">")
        assert deleting(main, command).exit_code == 0
        assert session.get().execute("EXISTS", *NAMES, shards_key("orders")) == 0


@pytest.mark.in_turn
def test_a_master_that_loses_its_data_with_the_key_and_some_shards(cluster: RedisCluster) -> None:
    """Whoever begins is refused, although nothing is left of what said how many shards there are."""
    stream = next(
        name
        for name in map("orders-{}".format, range(100))
        if cluster.owner(shards_key(name).decode()) == cluster.owner(shards_of(name, 8)[0])
    )
    names = shards_of(stream, 8)
    checked = options(cluster.url, stream=stream, shards="8", shardBy="key")
    batch = batch_of(0)
    with Session(checked.address, is_known=True) as session:
        session.run(Destination.from_options(checked).make_ready)
    close(checked, batch, write([frame(sequence(2_000, KEYS))], checked, batch))
    home = cluster.owner(names[0])
    lost = [name for name in names if cluster.owner(name) == home]
    assert 0 < len(lost) < 8
    cluster.client(home).flushall()
    for words in ({}, {"shards": "8"}, {"shards": "5"}):
        with pytest.raises(
            ShardsError, match=f"{len(lost)} of the 8 shards of stream '{stream}' .* are lost, and so is"
        ):
            reader(cluster.server, streams=stream, **words).initialOffset()
    for count in ("8", "5"):
        again = Destination.from_options(options(cluster.url, stream=stream, shards=count, shardBy="key"))
        with Session(checked.address, is_known=True) as session, pytest.raises(ShardsError, match="are lost"):
            session.run(again.make_ready)


@pytest.mark.in_turn
def test_slots_that_move_while_a_task_writes(cluster: RedisCluster) -> None:
    checked, batch = sharded(cluster.url, count=8, chunkSize="100"), batch_of(0)

    def move() -> None:
        for turn in range(3):
            for at, name in enumerate(NAMES[:3]):
                cluster.move(slot_of(name.encode()), cluster.masters()[(at + turn) % 3])

    close(checked, batch, write(struck(10_000, move), checked, batch))
    assert in_order(cluster)


@pytest.mark.in_turn
def test_a_master_that_is_killed_while_a_task_writes(cluster: RedisCluster) -> None:
    """Its replica had all of it, or the attempt ends, and the next one goes on."""
    checked, batch = sharded(cluster.url, count=8, chunkSize="100"), batch_of(0)
    before = cluster.owner(NAMES[0])

    def kill() -> None:
        cluster.kill(before)
        until(lambda: cluster.owner(NAMES[0]) != before, "no failover")

    handed: list[pa.RecordBatch] = []

    def noted() -> Iterator[pa.RecordBatch]:
        for one in struck(10_000, kill):
            handed.append(one)
            yield one

    try:
        result = write(noted(), checked, batch)
    except Exception:  # noqa: BLE001 - whatever it is: Spark tries the task again
        rest = [frame(sequence(len(handed) * 500 + 5_000, KEYS))]
        result = write(rest, checked, batch)
    close(checked, batch, result)
    assert in_order(cluster)
