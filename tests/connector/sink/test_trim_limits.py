"""Thresholds of trimming at their limits: clocks that differ, several groups and streams with values of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis

from spark_streams.base.ids import StreamId
from spark_streams.connector.retention import Readers
from spark_streams.connector.sink import trim
from spark_streams.connector.sink.trim import ASK_EVERY, AckedTrimmer, EntrySizes, Trimmer, Trimming, clock
from spark_streams.connector.wire.connection import Connection, pack
from tests.connector.sink.writing import options

AT = 1_600_000_000_000
HOUR = 3_600_000


@pytest.mark.parametrize(
    ("maxlen", "max_entries", "length"),
    [(700, 600, "600"), (600, 700, "600"), (700, None, "700"), (None, 600, "600"), (None, None, None)],
)
def test_the_smaller_length_applies(maxlen: int | None, max_entries: int | None, length: str | None) -> None:
    found = Trimming(False, maxlen=maxlen).thresholds(AT, max_entries)
    assert found == ([] if length is None else [("MAXLEN", length)])


@pytest.mark.parametrize(("retention", "first"), [(HOUR, AT - HOUR), (1, AT - 1), (AT, 0), (AT + 1, 0)])
def test_an_entry_that_is_as_old_as_the_retention_stays(retention: int, first: int) -> None:
    """XTRIM MINID removes what is below the ID, so an entry of that millisecond stays."""
    assert Trimming(False, retention=retention).thresholds(AT) == [("MINID", f"{first}-0")]


class _Node:
    """A server whose clock says this."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.asked = 0

    def nodes(self) -> Sequence[_Node]:
        return [self]

    def execute(self, *words: str) -> list[bytes]:
        assert words == ("TIME",)
        self.asked += 1
        return [b"%d" % (self._now_ms // 1000), b"%d" % (self._now_ms % 1000 * 1000)]


@pytest.mark.parametrize("clocks", [(7, 5, 9), (5, 7, 9), (9, 7, 5), (5,)])
def test_in_a_cluster_no_entry_is_older_than_the_slowest_clock_says(clocks: Sequence[int]) -> None:
    cluster: Any = SimpleNamespace(nodes=lambda: [_Node(AT + number) for number in clocks])
    assert clock(cluster) == AT + 5


def test_entries_are_as_old_as_the_server_says_and_its_clock_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's clock is years from this machine's."""
    passed_ms = 0
    monkeypatch.setattr(trim, "_monotonic_ms", lambda: 7_000 + passed_ms)
    node, parsed = _Node(AT), options("redis://127.0.0.1:1", retention="1h")
    session: Any = SimpleNamespace(address=parsed.address, run=lambda act: act(node))
    trimmer, chunk = Trimmer(session, parsed), cast("Any", SimpleNamespace(stream_names=[b"out"]))
    for passed_ms in (0, 50, 90_000):
        assert trimmer.commands(chunk) == [pack("XTRIM", b"out", "MINID", "~", f"{AT - HOUR + passed_ms}-0")]
    assert node.asked == 1
    trimmer.close()


# Eight entries were acknowledged by both groups, but the fourth by one and the sixth by the other; two are undelivered.
@pytest.mark.usefixtures("small_nodes")
@pytest.mark.parametrize("needs", [("4-0", "6-0"), ("6-0", "4-0")])
@pytest.mark.parametrize(
    ("limits", "removed"),
    [
        ({"maxlen": 11}, 0),
        ({"maxlen": 10}, 0),
        ({"maxlen": 9}, 1),
        ({"maxlen": 8}, 2),
        ({"maxlen": 7}, 3),
        ({"maxlen": 2}, 3),
        ({"min_id": "1-0"}, 0),
        ({"min_id": "3-0"}, 2),
        ({"min_id": "4-0"}, 3),
        ({"min_id": "5-0"}, 3),
        ({"min_id": "99-0"}, 3),
        ({}, 3),
        ({"max_bytes": 1}, 0),  # the size of an entry is not known yet
    ],
)
def test_without_acked_nothing_goes_that_a_group_needs_and_not_one_more_than_asked(
    client: redis.Redis, connection: Connection, needs: tuple[str, str], limits: Mapping[str, Any], removed: int
) -> None:
    """As on servers that do not know XTRIM … ACKED (before Redis 8.2)."""
    for number in range(1, 11):
        client.xadd("out", {"n": number}, id=f"{number}-0")
    for group, needed in zip(("a", "b"), needs, strict=True):
        client.xgroup_create("out", group, "0")
        [[_, entries]] = client.xreadgroup(group, "c", {"out": ">"}, count=8)
        client.xack("out", group, *[entry for entry, _ in entries if entry != needed])
    trimmer = AckedTrimmer(connection, Trimming(True, **limits))
    trimmer._knows_acked = False
    assert trimmer.trim([b"out", b"missing"], AT) == removed
    assert [entry for entry, _ in client.xrange("out")] == [f"{number}-0" for number in range(removed + 1, 11)]
    assert trimmer.trim([b"out"], AT) == 0


def test_a_stream_that_no_group_reads_keeps_what_it_has(client: redis.Redis, connection: Connection) -> None:
    client.xadd("out", {"n": 1}, id="1-0")
    for knows in (True, False):
        trimmer = AckedTrimmer(connection, Trimming(True, min_id="9-0"))
        trimmer._knows_acked = knows
        assert trimmer.trim([b"out"], AT) == 0
    assert client.xlen("out") == 1


@pytest.mark.parametrize("lowest", ["a", "b", "c"])
def test_a_stream_needs_the_lowest_pending_entry_of_all_its_groups(
    client: redis.Redis, connection: Connection, lowest: str
) -> None:
    for number in range(1, 10):
        client.xadd("s", {"n": number}, id=f"{number}-0")
        client.xadd("t", {"n": number}, id=f"{number}-0")
    for group in ("a", "b", "c"):
        for stream in ("s", "t"):
            client.xgroup_create(stream, group, "0")
            client.xreadgroup(group, "c", {stream: ">"}, count=8 if group == lowest else 9)
        client.xack("s", group, "1-0", *([] if group == lowest else ["2-0", "3-0"]))
    for readers in (Readers(), Readers()):
        for _ in range(2):  # new groups, and known ones
            states = readers.fetch(connection, [b"s", b"t"])
            assert (states[b"s"].needed, states[b"t"].needed) == (StreamId(2, 0), StreamId(1, 0))
            assert states[b"s"].delivered == StreamId(8, 1)


def _chunk(**rows: int) -> Any:
    """Rows of streams, each of 100 bytes; those of stream b have 300."""
    offsets, segments = [0], []
    for stream, count in rows.items():
        start = len(offsets) - 1
        for _ in range(count):
            offsets.append(offsets[-1] + (300 if stream == "b" else 100))
        segments.append((stream.encode(), start, start + count))
    return SimpleNamespace(requests=SimpleNamespace(offsets=offsets), segments=segments)


@pytest.mark.parametrize(
    ("usage", "length", "entries"),
    [
        ((1_000, 1_000), (20, 20), (20, 20)),  # 50 bytes an entry, less than was sent
        ((8_000, 8_000), (20, 20), (10, 3)),  # 400: with pending lists. So what was sent counts
        ((2_000, 4_000), (20, 20), (10, 5)),
        ((None, 0), (0, 0), (None, None)),
    ],
)
def test_an_entry_counts_what_it_takes_but_at_most_what_was_sent(
    usage: tuple[int | None, ...], length: tuple[int, ...], entries: tuple[int | None, ...]
) -> None:
    sizes = EntrySizes(1_000)
    assert sizes.count(_chunk(a=2, b=2)) == [b"a", b"b"]
    replies = [word for pair in zip(usage, length, strict=True) for word in pair]
    server: Any = SimpleNamespace(execute_all=lambda commands: replies)
    sizes.ask(server, [b"a", b"b"])
    assert (sizes.max_entries(b"a"), sizes.max_entries(b"b"), sizes.max_entries(b"c")) == (*entries, None)


@pytest.mark.parametrize(("limit", "entries"), [(1, 1), (99, 1), (100, 1), (199, 1), (200, 2), (299, 2)])
def test_at_least_one_entry_fits(limit: int, entries: int) -> None:
    sizes = EntrySizes(limit)
    sizes.count(_chunk(a=2))
    server: Any = SimpleNamespace(execute_all=lambda commands: [1_000, 10])
    sizes.ask(server, [b"a"])
    assert sizes.max_entries(b"a") == entries


def test_each_stream_is_asked_about_after_so_many_chunks_of_its_own() -> None:
    sizes = EntrySizes(1_000)
    due = [sizes.count(_chunk(a=1, b=1) if number % 2 else _chunk(a=1)) for number in range(2 * ASK_EVERY + 2)]
    assert [number for number, streams in enumerate(due) if b"a" in streams] == [0, ASK_EVERY, 2 * ASK_EVERY]
    assert [number for number, streams in enumerate(due) if b"b" in streams] == [1, 2 * ASK_EVERY + 1]
