"""An operator's hand on what a query has claimed or holds apart, at every step: read once, or named, or counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from spark_streams.errors import DataLossError
from spark_streams.source.recovery.claim import Claims
from spark_streams.source.stream_reader import StreamReader
from tests.source.supervised import LETTERS, consumers
from tools.driving import ALL, add, another_reader, drain, pending_count, read, reader
from tools.servers.server import Server

IDLE = {"claimIdle": "1h"}
SOON = {"claimIdle": "1m"}  # not before the test is over, where 'ops' has something
LENIENT = {"failOnDataLoss": "false"}
Hand = Callable[[redis.Redis, str, list[str]], object]  # what it does to two of a consumer's entries

HANDS: dict[str, Hand] = {
    "XACK": lambda client, _, ids: client.xack("s", "g", *ids),
    "XCLAIM": lambda client, _, ids: client.xclaim("s", "g", "ops", 0, ids),
    "XAUTOCLAIM": lambda client, _, ids: client.xautoclaim("s", "g", "ops", 0, start_id=ids[0], count=len(ids)),
    "DELCONSUMER": lambda client, consumer, _: client.xgroup_delconsumer("s", "g", consumer),
}
hands = pytest.mark.parametrize("hand", HANDS)
allowed = pytest.mark.parametrize("is_allowed", [False, True], ids=["strict", "lenient"])


def lay_hand_on(client: redis.Redis, hand: str, mark: str) -> int:
    """On the first consumer of this kind; how many entries are gone from it."""
    consumer = min(name for name, pending in consumers(client).items() if mark in name and pending)
    held = client.xpending_range("s", "g", "-", "+", 100, consumername=consumer)
    HANDS[hand](client, consumer, [one["message_id"] for one in held][:2])
    return len(held) - consumers(client).get(consumer, 0)


def lost(one: StreamReader) -> int:
    counts: Any = one.reportLatestOffset().get("lost", {})
    return int(counts.get("s", 0))


def left_by_bob(client: redis.Redis) -> None:
    """Twelve entries, of which bob has left four."""
    client.xgroup_create("s", "g", id="0", mkstream=True)
    add(client, 12)
    client.xreadgroup("g", "bob", {"s": ">"}, count=4)
    let_idle(client)


def let_idle(client: redis.Redis) -> None:
    """All that is pending now has been for long."""
    for one in client.xpending_range("s", "g", "-", "+", 100):
        client.xclaim("s", "g", one["consumer"], 0, [one["message_id"]], idle=7_200_000, justid=True)


def cut(server: Server, client: redis.Redis) -> list[dict[str, Any]]:
    """A batch of 64 entries that is cut into pieces of four: where it begins and ends."""
    add(client, 64)
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    one.partitions(start, end)
    reader(server, **LETTERS).partitions(start, end)
    assert read(reader(server, **LETTERS), start, end) == []
    return [start, end]


# -- claims ---------------------------------------------------------------------------------------------------------


@hands
def test_on_a_claim_that_is_in_no_offset_yet(server: Server, client: redis.Redis, hand: str) -> None:
    """The run was killed before the offset was logged, so nothing says how many entries the claim had (a row under
    Limits). The query reads those that are left."""
    left_by_bob(client)
    one = reader(server, **IDLE)
    start = one.initialOffset()
    one.latestOffset(start, ALL)
    gone = lay_hand_on(client, hand, "~claim~")
    again = reader(server, **SOON)
    found = [n for batch in drain(again, start=start) for n in batch]
    assert sorted(found) == list(range(gone, 12))
    assert lost(again) == 0
    assert consumers(client) == {"spark": 0, "bob": 0} | ({"ops": 2} if "CLAIM" in hand else {})


def test_a_claim_that_a_crash_has_left_may_be_larger_than_a_batch(server: Server, client: redis.Redis) -> None:
    """And nothing was reserved after it."""
    left_by_bob(client)
    start = reader(server, **SOON).initialOffset()
    held = client.xpending_range("s", "g", "-", "+", 100, consumername="bob")
    client.xclaim("s", "g", "spark~claim~0123456789ab", 0, [one["message_id"] for one in held])
    found = drain(reader(server, **SOON), 1, start)
    assert (found[0], [len(batch) for batch in found[1:]]) == ([0, 1, 2, 3], [1] * 8)


@hands
@allowed
@pytest.mark.parametrize("restarted", [False, True])
def test_on_a_claim_of_a_batch_that_is_not_yet_read(
    server: Server, client: redis.Redis, hand: str, is_allowed: bool, restarted: bool
) -> None:
    left_by_bob(client)
    options = {**IDLE, **(LENIENT if is_allowed else {})}
    one = reader(server, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    gone = lay_hand_on(client, hand, "~claim~")
    one = reader(server, **options) if restarted else one
    if not is_allowed:
        with pytest.raises(DataLossError, match=f"{gone} (of 4 entries|entries of a batch of 4)"):
            read(one, start, end)
        one = reader(server, **IDLE, **LENIENT)
    assert sorted(read(one, start, end)) == list(range(gone, 12))
    one.commit(end)
    assert lost(one) == gone


@hands
def test_on_a_claim_of_a_batch_that_is_read(server: Server, client: redis.Redis, hand: str) -> None:
    left_by_bob(client)
    one = reader(server, **IDLE)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert sorted(read(one, start, end)) == list(range(12))
    lay_hand_on(client, hand, "~claim~")
    assert one.latestOffset(end, ALL) == end
    assert pending_count(client) == consumers(client).get("ops", 0)


@allowed
def test_on_a_claim_while_its_batch_is_made(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, is_allowed: bool
) -> None:
    """Between the claim and the look at what it holds."""
    left_by_bob(client)
    one = reader(server, **IDLE, **(LENIENT if is_allowed else {}))
    start = one.initialOffset()
    honest = Claims.take

    def quicker(*given: Any) -> Any:
        claimed = honest(*given)
        lay_hand_on(client, "XACK", "~claim~")
        return claimed

    monkeypatch.setattr(Claims, "take", quicker)
    if not is_allowed:
        with pytest.raises(DataLossError, match="2 entries of 4 that 'spark~claim~.*' had claimed are no longer"):
            one.latestOffset(start, ALL)
        return
    end = one.latestOffset(start, ALL)
    assert sorted(read(one, start, end)) == list(range(2, 12))
    assert lost(one) == 2


def test_what_another_query_takes_over_of_a_claim_is_not_missed(server: Server, client: redis.Redis) -> None:
    left_by_bob(client)
    one = reader(server, **IDLE)
    start = one.initialOffset()
    one.latestOffset(start, ALL)
    let_idle(client)
    other = reader(server, **IDLE, consumer="other")
    assert sorted(n for batch in drain(other) for n in batch) == list(range(12))
    assert drain(reader(server, **IDLE), start=start) == []


# -- pieces ---------------------------------------------------------------------------------------------------------


@hands
@allowed
@pytest.mark.parametrize("restarted", [False, True])
def test_on_a_piece_that_waits(
    server: Server, client: redis.Redis, hand: str, is_allowed: bool, restarted: bool
) -> None:
    offsets = cut(server, client)
    one = reader(server, **LETTERS)
    offsets.append(one.latestOffset(offsets[-1], ALL))
    assert read(one, *offsets[-2:]) == [0, 1, 2, 3]
    offsets.append(one.latestOffset(offsets[-1], ALL))
    assert read(one, *offsets[-2:]) == [4, 5, 6, 7]
    # The one that is the batch, and is read, comes first.
    waits = sorted(name for name in consumers(client) if "~held~" in name and consumers(client)[name])[1]
    gone = lay_hand_on(client, hand, waits)
    if restarted or is_allowed:
        one = reader(server, **LETTERS, **(LENIENT if is_allowed else {}))
    if not is_allowed:
        for _ in range(2):
            with pytest.raises(
                DataLossError, match=f"{gone} entries of a batch that killed the query are no longer pending"
            ):
                one.latestOffset(offsets[-1], ALL)
    lenient = reader(server, **LETTERS, **LENIENT)
    assert [n for batch in drain(lenient, start=offsets[-1]) for n in batch] == list(range(8 + gone, 64))
    assert lost(lenient) == gone
    assert consumers(client) == {"spark": 0} | ({"ops": 2} if "CLAIM" in hand else {})


@hands
@allowed
@pytest.mark.parametrize("restarted", [False, True])
def test_on_a_piece_that_is_the_batch(
    server: Server, client: redis.Redis, hand: str, is_allowed: bool, restarted: bool
) -> None:
    offsets = cut(server, client)
    options = {**LETTERS, **(LENIENT if is_allowed else {})}
    one = reader(server, **options)
    offsets.append(one.latestOffset(offsets[-1], ALL))
    gone = lay_hand_on(client, hand, "~held~")
    one = reader(server, **options) if restarted else one
    if not is_allowed:
        with pytest.raises(
            DataLossError,
            match=f"{gone} (of 4 entries|entries of a batch of 4|entries of a batch that killed the query are no)",
        ):
            read(one, *offsets[-2:])
        one = reader(server, **LETTERS, **LENIENT)
    rows = read(one, *offsets[-2:])
    rows += [n for batch in drain(one, start=offsets[-1]) for n in batch]
    assert sorted(rows) == list(range(gone, 64))
    assert lost(one) == gone
    assert consumers(client) == {"spark": 0} | ({"ops": 2} if "CLAIM" in hand else {})


@hands
def test_on_a_piece_that_is_read(server: Server, client: redis.Redis, hand: str) -> None:
    offsets = cut(server, client)
    one = reader(server, **LETTERS)
    offsets.append(one.latestOffset(offsets[-1], ALL))
    rows = read(one, *offsets[-2:])
    lay_hand_on(client, hand, "~held~")
    rows += [n for batch in drain(one, start=offsets[-1]) for n in batch]
    assert rows == list(range(64))
    assert consumers(client) == {"spark": 0} | ({"ops": 2} if "CLAIM" in hand else {})


def test_what_another_query_takes_over_of_pieces_is_reported(server: Server, client: redis.Redis) -> None:
    """The query that held them cannot tell whether anybody has read them."""
    offsets = cut(server, client)
    let_idle(client)
    another_reader(server)
    reader(server)  # all before have died
    other = reader(server, **IDLE, consumer="other")
    at = other.initialOffset()
    end = other.latestOffset(at, ALL)
    assert sorted(read(other, at, end)) == list(range(64))
    assert other.latestOffset(end, ALL) == end
    add(client, 3, first=64)
    with pytest.raises(DataLossError, match=r"64 entries of a batch that killed the query are no longer pending"):
        reader(server, **LETTERS).latestOffset(offsets[-1], ALL)
    lenient = reader(server, **LETTERS, **LENIENT)
    assert drain(lenient, start=offsets[-1]) == [[64, 65, 66]]
    assert lost(lenient) == 64


def test_what_is_handed_to_pieces_and_claims_is_read(server: Server, client: redis.Redis) -> None:
    offsets = cut(server, client)
    add(client, 4, first=64)
    [(_, entries)] = client.xreadgroup("g", "ops", {"s": ">"}, count=4)
    piece = max(name for name in consumers(client) if "~held~" in name)
    client.xclaim("s", "g", piece, 0, [entry for entry, _ in entries[:2]])
    client.xclaim("s", "g", "spark~claim~0123456789ab", 0, [entry for entry, _ in entries[2:]])
    assert [n for batch in drain(reader(server, **LETTERS), start=offsets[-1]) for n in batch] == list(range(68))
    assert consumers(client) == {"spark": 0, "ops": 0}
