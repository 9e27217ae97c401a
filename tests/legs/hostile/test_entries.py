"""No entry, key or name that a stranger writes ends a query, a batch read or a command; good entries are read.

`python -m tests.legs.hostile.entries` goes on for as long as it is told to.
"""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.connector.deadletter.envelope import (
    FIELDS,
    ReturnedEntry,
    dead_letter_fields,
    is_dead_letter,
    open_envelope,
    split_mark,
)
from spark_streams.connector.deadletter.letter_page import DeadLetterPage, dead_letters_of
from spark_streams.connector.deadletter.listing import as_line
from spark_streams.connector.deadletter.redrive_plan import Decision, RedriveOptions, origins, plan_page
from spark_streams.connector.keys import origin_of, read_retry_stream, returned_stream, slot_of
from spark_streams.connector.shards.names import Shard
from spark_streams.connector.source.infer_schema import infer
from spark_streams.connector.source.task.read_partition import ReturnedPage
from spark_streams.connector.wire.entry_page import decode_entries, decode_replies
from tests.legs.hostile.entries import Soak
from tests.legs.hostile.stranger import HUGE, Stranger
from tests.seeds import TIMES
from tools.driving import LOOK_EACH_TIME, drain, forget_all, reader
from tools.servers.server import Server

CHANCES = st.randoms(use_true_random=False)


def reply(entries: list[list[bytes]]) -> bytes:
    """To XRANGE, of entries with these fields."""

    def bulk(value: bytes) -> bytes:
        return b"$%d\r\n%b\r\n" % (len(value), value)

    parts = [b"*%d\r\n" % len(entries)]
    for at, fields in enumerate(entries):
        parts += [b"*2\r\n", bulk(b"%d-1" % (at + 1)), b"*%d\r\n" % len(fields), *map(bulk, fields)]
    return b"".join(parts)


@pytest.mark.in_turn
@settings(max_examples=200 * TIMES)
@given(CHANCES, st.integers(1, 5))
def test_any_entry_can_be_read_as_what_it_may_be_taken_for(chance: random.Random, count: int) -> None:
    """As a dead letter, as one that was sent back, as one that came back for another try, and for a schema."""
    stranger = Stranger(chance)
    entries = [stranger.fields() for _ in range(count)]
    raw = reply(entries)
    page = DeadLetterPage(decode_entries(raw))
    options = RedriveOptions("dead").checked()
    letters = int(page.are_dead_letters().sum())
    closed, everywhere = (plan_page(page, options, None, None, open_to) for open_to in ((), origins(page, options)))
    assert closed.count(Decision.MOVE) == everywhere.count(Decision.CLOSED) == 0
    for plan in (closed, everywhere):
        kinds = Decision.MOVE, Decision.PARK, Decision.HOMELESS, Decision.CLOSED
        assert sum(map(plan.count, kinds)) == letters
    for letter in dead_letters_of(page, np.arange(page.count)):
        line = as_line(letter)
        assert line.isprintable()
        assert set(json.loads(line)) == {"id", "envelope", "fields"}
    returned = ReturnedPage(decode_replies(raw, 1)[0], returned_stream("s", "g"))
    assert len(returned.ids()) == len(returned.streams()) == len(returned.milliseconds()) == count
    assert len(returned.attempts().number) == count
    offsets, _, values = returned.fields()
    assert offsets[-1].as_py() == len(values)
    assert returned.foreign == sum(ReturnedEntry.parse(fields) is None for fields in entries)
    for fields in entries:
        assert open_envelope(dead_letter_fields(fields, {"redrives": "0"}))[1].keys() >= {"stream", "id"}
        assert is_dead_letter(fields) == (len(open_envelope(split_mark(fields)[0])[1]) == len(FIELDS))
    infer(entries)


@settings(max_examples=300 * TIMES)
@given(CHANCES)
def test_any_name_can_be_read_as_what_it_may_be_taken_for(chance: random.Random) -> None:
    """As one that a query made beside a stream, and as a shard's."""
    stranger = Stranger(chance)
    for name in (stranger.name(), stranger.shard_name()):
        text = name.decode("utf-8", "replace")
        told = read_retry_stream(text)
        assert told is None or told.stream
        assert origin_of(text)
        shard = Shard.parse(text)
        assert shard is None or shard.name == text
        assert read_retry_stream(returned_stream(text, "g")) is not None
        assert 0 <= slot_of(name) < 16384


def test_a_mark_of_five_thousand_digits_is_an_ordinary_field(server: Server, client: redis.Redis) -> None:
    """A redrive's mark has nine digits at most. Good entries behind a forged one are read and acknowledged."""
    client.xadd("t", {"n": 1, "dl.redriven": f"{HUGE.decode()} t dead/1-0"})
    client.xadd("t", {"n": 2})
    one = reader(server, streamsPattern="t*", limits=LOOK_EACH_TIME)
    assert drain(one) == [[1, 2]]
    client.xadd("t", {"n": "x", "dl.redriven": f"{HUGE.decode()} t dead/1-0"})
    client.xadd("t", {"n": 3})
    one = reader(server, streamsPattern="t*", limits=LOOK_EACH_TIME, mode="DEADLETTER", deadLetterStream="dead")
    assert drain(one) in ([[1, 2, 3]], [[3]], [[1, 2], [3]])
    [(_, letter)] = client.xrange("dead")
    assert letter["dl.redriven"].startswith("999")
    forget_all()


@pytest.mark.parametrize(
    "registry", [{"shards": HUGE, "rule": "crc32"}, {"shards": "²", "rule": "crc32"}, {b"\xff": b"\xff"}]
)
def test_a_forged_registry_of_shards_beside_a_plain_stream_is_not_believed(
    server: Server, client: redis.Redis, registry: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    client.xadd("s", {"n": 1})
    client.hset("rstream:shards:{s}", mapping=registry)
    assert drain(reader(server)) == [[1]]
    assert "is read as a plain stream: key 'rstream:shards:{s}' holds" in caplog.text
    forget_all()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_hostile_entries_keys_and_names_end_no_reader(server: Server, seed: int) -> None:
    """A few rounds of the soak. A seed that has failed is added here."""
    with Soak(server, seed) as soak:
        for _ in range(6):
            soak.round()
    assert soak.tally.problems == []
    assert soak.tally.read >= 4 * soak.tally.appended
    assert soak.tally.sent > 5
