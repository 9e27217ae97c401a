"""What pages read: entries back from a position, values as text, shards as one stream, lags over time, snapshots."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.errors import WrongKeyTypeError
from spark_streams.connector.lag.survey import ConsumerLag, GroupLag, StreamSummary, Survey
from spark_streams.connector.shards.names import shards_of
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.operations.console import entry_search
from spark_streams.operations.console.allow_list import AllowList
from spark_streams.operations.console.cells import Cell, cell, is_editable
from spark_streams.operations.console.charts import POINTS, LagHistory
from spark_streams.operations.console.entry_search import FieldFilter, read_entries
from spark_streams.operations.console.live import Live, merge_shards, stream_of
from spark_streams.operations.monitor.snapshots import SnapshotCache, StreamFilter
from tests.seeds import TIMES
from tools.machine_time import machine_seconds
from tools.servers.server import Server


def pages(server: Server, streams: list[str], fields: FieldFilter | None = None, limit: int = 7) -> Iterator[list[str]]:
    """Yield the IDs of each page."""
    with connect(Address.parse(server.url)) as connection:
        end: StreamId | None = MAX_ID
        while end is not None:
            page = read_entries(connection, streams, AllowList(), end, MIN_ID, fields, limit)
            yield [str(entry.id) for entry in page.entries]
            end = page.next


@pytest.mark.random
def test_all_pages_together_have_each_entry_once(server: Server) -> None:
    for number in range(TIMES):
        choice = random.Random(number)
        streams = [f"s{number}:{shard}" for shard in range(choice.randint(1, 4))]
        ids = [f"{n}-{choice.randint(0, 1)}" for n in range(1, choice.randint(2, 200))]
        with server.client() as client:
            pipe = client.pipeline(transaction=False)
            for entry in ids:
                value = "x" * choice.choice([1, 1, 1, 5_000])
                pipe.xadd(choice.choice(streams), {"n": entry, "large": value}, id=entry)
            pipe.execute()
            for stream in streams:
                if not client.exists(stream):
                    client.xgroup_create(stream, "g", mkstream=True)
        read = [entry for page in pages(server, streams, limit=choice.randint(1, 60)) for entry in page]
        assert read == ids[::-1], number
        wanted = choice.choice(ids)
        matching = [entry for page in pages(server, streams, FieldFilter("n", wanted)) for entry in page]
        assert matching == [entry for entry in ids[::-1] if wanted in entry]


def test_a_search_ends_after_some_entries(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with server.client() as client:
        for n in range(1, 101):
            client.xadd("s", {"n": n}, id=f"{n}-0")
    monkeypatch.setattr(entry_search, "_SEARCHED", 10)
    each = list(pages(server, ["s"], FieldFilter("n", "1")))
    assert 3 < len(each) < 12
    assert [entry for page in each for entry in page] == [f"{n}-0" for n in range(100, 0, -1) if "1" in str(n)]


def test_a_page_of_large_entries_is_short(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_search, "_PAGE_BYTES", 3_000)
    with server.client() as client:
        for n in range(1, 9):
            client.xadd("s", {"large": "x" * 1_000}, id=f"{n}-0")
        client.xadd("s", {"large": "x" * 9_000}, id="9-0")
        client.set("text", "no stream")
    assert list(pages(server, ["s"]))[:3] == [["9-0"], ["8-0", "7-0"], ["6-0", "5-0"]]
    with pytest.raises(WrongKeyTypeError):
        list(pages(server, ["text"]))


def test_values() -> None:
    assert cell(b"abc") == Cell("abc")
    assert cell("ä".encode() * 10, 5) == Cell("ä" * 5, 20)
    assert cell("ä".encode() * 5, 5) == Cell("ä" * 5)
    assert cell(b"\xff\x00") == Cell("0xff00", 0, True)
    assert cell(b"\xff" * 100, 10) == Cell("0x" + "ff" * 5, 100, True)
    assert cell(b"abcdefgh" + b"\xff", 5).is_binary
    assert cell(("a" * 39 + "€" * 100).encode(), 10) == Cell("a" * 10, 339)  # cut within a character
    assert cell(b"") == Cell("")
    assert [is_editable(text) for text in ("a\nb", "", "é", "a\r\nb", "\x1b", "\udcff", "x" * 20_001, "a\u202eb")] == [
        *(True, True, True, False, False, False, False, False),
    ]


def lag(stream: str, entries: int, **values: object) -> GroupLag:
    usual = {"at_least": False, "lag_ms": entries, "pending": 1, "oldest_idle_ms": 5, "last_delivered": "1-0"}
    return GroupLag(stream, "g", entries, **{**usual, "delivered": 10, **values})  # type: ignore[arg-type]


def test_shards_are_one_stream() -> None:
    names = shards_of("orders", 2)
    consumers = (ConsumerLag("c", 1, 5, 7),), (ConsumerLag("c", 2, 3), ConsumerLag("d", 0, 9))
    shards = StreamSummary(names[0], 3, 5, "9-0", "8-0"), StreamSummary(names[1], 4, 6, "10-0")
    survey = Survey(
        5,
        (*shards, StreamSummary("x", 1, None, "1-0")),
        (lag(names[0], 5, consumers=consumers[0]), lag(names[1], 7, oldest_idle_ms=None, consumers=consumers[1])),
    )  # fmt: skip
    merged = merge_shards(survey)
    assert [(stream.stream, stream.length, stream.added) for stream in merged.streams] == [
        ("orders", 7, 11), ("x", 1, None)
    ]  # fmt: skip
    assert (merged.streams[0].last, merged.streams[0].first) == ("10-0", "8-0")
    [group] = merged.groups
    assert (group.stream, group.lag, group.lag_ms, group.pending, group.oldest_idle_ms) == ("orders", 12, 7, 2, 5)
    assert group.consumers == (ConsumerLag("c", 3, 3, 7), ConsumerLag("d", 0, 9))
    assert [stream_of(name) for name in (names[0], "orders", "a}", "orders:0/2:{1}")] == [
        "orders", "orders", "a}", "orders:0/2:{1}"
    ]  # fmt: skip


def test_lags_over_time_are_bounded() -> None:
    history = LagHistory()
    for second in range(POINTS + 50):
        streams = (StreamSummary("s", 1, 100 * second, "1-0"),)
        groups = (lag("s", second, delivered=50 * second, pending=0),) if second != POINTS + 49 else ()
        history.add(Survey(1_000 * second, streams, groups))
        if second == POINTS:
            assert history.lags(("s", "g")) == list(range(1, POINTS + 1))
            rates = history.rates["s", "g"]
            assert (rates.added, rates.delivered, rates.acknowledged) == (100, 50, 50)
            charts = history.charts([("s", "g")])
            assert [chart.title.split(":")[0] for chart in charts] == ["Lag", "Behind"]
    assert history.lags(("s", "g")) == []  # the group was deleted
    before = history.period
    history.add(Survey(5, (), ()))  # earlier
    assert history.period == before


def test_snapshots_are_taken_while_a_browser_is_open(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_streams.operations.console import live as module

    cache = SnapshotCache(Address.parse(server.url), StreamFilter(), 0, 60, lambda line: None)
    taken = []
    last = cache.last

    def count() -> object:
        taken.append(1)
        return last()

    monkeypatch.setattr(cache, "last", count)

    async def take_snapshots() -> None:
        live = Live(cache, 0.02)
        task = asyncio.create_task(live.run())
        await asyncio.sleep(0.1)
        assert not taken  # nobody looks
        views = await asyncio.gather(*(live.view() for _ in range(20)))
        assert len({view.number for view in views}) == 1  # one snapshot for all
        numbers = live.numbers()
        seen = [await anext(numbers) for _ in range(5)]
        assert seen == sorted(set(seen))
        refreshed = live.numbers()
        next_number = asyncio.create_task(anext(refreshed))
        await asyncio.sleep(0)
        await live.refresh()  # a change has ended
        assert await next_number > seen[-1]
        monkeypatch.setattr(module, "_LOOKED_AT", 0.1)
        last_seen = (await live.view()).number
        deadline, before = machine_seconds() + 30, -1
        while len(taken) > before:  # until nobody looks any more
            assert machine_seconds() < deadline, "snapshots go on although no browser is open"
            before = len(taken)
            await asyncio.sleep(0.5)
        assert (await live.view()).number > last_seen
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        live.close()

    asyncio.run(take_snapshots())
