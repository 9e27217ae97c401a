"""Batches of XADDs taken as one: whatever the bytes and wherever they are cut, as if they were single commands."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_streams.base.ids import U64_MAX
from spark_streams.engine.commands import new_engine
from spark_streams.engine.journal import Journal
from spark_streams.engine.resp.request_parser import RequestParser
from spark_streams.engine.resp.wire_replies import encode
from spark_streams.engine.resp.xadd_batch import BackgroundShapeMaker, Shapes, XaddBatch, find_batch
from spark_streams.engine.store.entryid import IdRuns
from spark_streams.engine.store.stream import StoredStream
from tests.engine.wire import command
from tests.seeds import TIMES
from tools.waiting import until

EXAMPLES = 30 * TIMES
PREFIX = command("XADD", "s", "*", "f", "v").replace(command("f", "v")[4:], b"")


class Side:
    """An engine with two clients that speaks bytes: `plain` sees single commands only."""

    def __init__(self, plain: bool, node_entries: int) -> None:
        self.time = 1_526_919_030_474
        self.engine = new_engine(lambda: self.time)
        self.engine.node_limits.entries = node_entries
        self.engine.journal = Journal()
        self.engine.send = self._send
        self.client, self.other = self.engine.connect("a", "b"), self.engine.connect("c", "d")
        self.out = {self.client: b"", self.other: b""}
        self.batches = 0
        self.parser = RequestParser(shapes=None if plain else Shapes(min_chunk_bytes=1))
        self.failure = ""

    def _send(self, client, reply) -> None:
        self.out[client] += encode(reply, 2)

    def feed(self, data: bytes) -> None:
        requests = self.parser.feed(data) if not self.failure else []
        self.batches += sum(isinstance(one, XaddBatch) for one in requests)
        out: list[bytes] = []
        assert self.engine.run(self.client, requests, out, 1 << 40) == len(requests)
        self.out[self.client] += b"".join(out)
        self.failure = str(self.parser.failure or "")

    def by_other(self, *arguments: str) -> None:
        out: list[bytes] = []
        self.engine.run(self.other, [[one.encode() for one in arguments]], out, 1 << 40)
        self.out[self.other] += b"".join(out)

    def state(self) -> dict[bytes, object]:
        found: dict[bytes, object] = {}
        for key, value in self.engine.databases[0].values.items():
            if isinstance(value, StoredStream):
                entries, _ = value.slices(0, value.last_id)
                wire = b"".join(piece.wire() for piece in entries)
                facts = (value.length, value.first_id, value.last_id, value.entries_added, value.max_deleted_id)
                keeps = range(value.length, 0, -1)
                found[key] = (wire, facts, [value.trim(keep, 0, True, 0) for keep in keeps])
        return found


lengths = st.sampled_from([0, 1, 3, 9, 10, 11, 60, 99, 100, 101, 130])
values = st.one_of(
    lengths.map(lambda length: b"v" * length),
    st.sampled_from([PREFIX, PREFIX + b"$1\r\nf\r\n$1\r\nv\r\n", b"\r\n", b"$1\r\nf\r\n", b"*7\r\n", b"12", b"-1"]),
)
ORDINARY = {"shape": ("s", (), ("f",)), "count": 6}


@st.composite
def adds(draw: st.DrawFn) -> bytes:
    """Several XADDs, mostly of one shape."""
    key = draw(st.sampled_from(["s", "s", "s", "t", "text"]))
    trim = draw(
        st.sampled_from([(), (), ("MAXLEN", "~", "7"), ("maxlen", "~", "30"), ("MAXLEN", "5"), ("NOMKSTREAM",)])
    )
    names = draw(st.sampled_from([("f",), ("f",), ("f", "longer name"), ("f", "g", "f")]))
    identity = draw(st.sampled_from(["*", "*", "*", "*", "9999999999999-*"]))
    few = draw(st.lists(values, min_size=1, max_size=4))
    count = draw(st.integers(1, 30))
    found = b""
    for number in range(count):
        pairs = [word for at, name in enumerate(names) for word in (name, few[(number + at) % len(few)])]
        found += command("XADD", key, *trim, identity, *pairs)
    return found


others = st.sampled_from(
    [
        command("PING"), command("XLEN", "s"), command("MULTI"), command("EXEC"), command("CLIENT", "REPLY", "SKIP"),
        command("XTRIM", "s", "MAXLEN", "~", "3"), command("DEL", "s"), command("XADD", "s", "5-5", "f", "v"),
        command("XADD", "s", "*", "f"), command("XADD", "s", "*", "g", "w"),
        command("XADD", "s", "*", "f", "w" * 140), command("SELECT", "0"), command("CLIENT", "REPLY", "OFF"),
        command("CLIENT", "REPLY", "ON"), command("XGROUP", "CREATE", "s", "g", "0"), b"PING\r\n",
        command("XREADGROUP", "GROUP", "g", "c", "COUNT", "9", "STREAMS", "s", ">"), command("SET", "text", "x"),
    ]
)  # fmt: skip
# Not a simple string as an argument: in a long chunk of single commands it passes (engine/resp/request_parser.py).
spoilt = st.sampled_from(
    [
        PREFIX + b"$1\r\nf\r\n$04\r\nabcd\r\n", PREFIX + b"$1\r\nf\r\n$3\r\nabcd\r\n",
        PREFIX.replace(b"$1", b"$01") + b"$1\r\nf\r\n$1\r\nv\r\n", PREFIX + b"$1\r\ng\r\n$1\r\nv\r\n",
    ]
)  # fmt: skip
by_others = st.sampled_from(
    [("XREAD", "BLOCK", "0", "COUNT", "2", "STREAMS", "s", "$"), ("WATCH", "s"), ("MULTI",), ("EXEC",), ("XLEN", "s")]
)
steps = st.one_of(adds(), adds(), adds(), others, others, by_others, st.integers(1, 5), st.just(0))


adds_of = PREFIX.join([b"", *[b"$1\r\nf\r\n$1\r\nv\r\n"] * 40])


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(steps, min_size=3, max_size=14),
    st.one_of(st.just(b""), st.just(b""), spoilt),
    st.lists(st.integers(0, 1 << 16), max_size=6),
    st.sampled_from([1, 3, 10, 100]),
)
@example([adds_of, adds_of, command("MULTI") + adds_of + command("EXEC"), command("MULTI") + adds_of, ("XLEN", "s"),
          command("XTRIM", "s", "MAXLEN", "~", "50") + adds_of + command("EXEC") + command("MULTI") + adds_of], b"",
         [3, 700], 10)  # fmt: skip
@example([adds_of, adds_of, 1, adds_of], b"", [], 10)
def test_the_outcome_is_that_of_single_commands(
    program: list[bytes | tuple[str, ...] | int], end: bytes, cuts: list[int], node_entries: int
) -> None:
    """Same replies, entries, nodes and effects written down, with readers, transactions and watchers between."""
    fast, plain = Side(False, node_entries), Side(True, node_entries)
    chunk = b""
    for step in [*program, end, 0]:
        if isinstance(step, bytes):
            chunk += step
            continue
        places = sorted({cut % (len(chunk) + 1) for cut in cuts} | {0, len(chunk)})
        for low, high in pairwise(places):
            fast.feed(chunk[low:high])
        if chunk:
            plain.feed(chunk)
        chunk = b""
        for side in (fast, plain):
            if isinstance(step, int):
                side.time += step
            elif side.other.waiter is None:
                side.by_other(*step)
            side.engine.tick()
        assert fast.out[fast.client] == plain.out[plain.client]
        assert fast.out[fast.other] == plain.out[plain.other]
        assert (fast.failure, fast.other.dirty) == (plain.failure, plain.other.dirty)
    assert fast.state() == plain.state()
    counted = [(side.engine.databases[0].changes, side.engine.commands_processed) for side in (fast, plain)]
    assert counted[0] == counted[1]
    assert plain.batches == 0
    assert replayed(fast, node_entries) == replayed(plain, node_entries)


def replayed(side: Side, node_entries: int) -> dict[bytes, object]:
    """The state of an engine that reads what the other has written down."""
    assert side.engine.journal is not None
    again = Side(True, node_entries)
    again.feed(side.engine.journal.take() or command("PING"))
    assert b"-ERR" not in again.out[again.client]
    return {key: found[:2] for key, found in again.state().items()}


def test_most_commands_of_a_pipeline_are_taken_as_runs() -> None:
    """The fast path is taken at all: a test of equality alone would not notice."""
    side = Side(False, 100)
    chunk = b"".join(command("XADD", "s", "*", "f", number, "g", "x" * (number % 50)) for number in range(1000))
    for low in range(0, len(chunk), 5000):
        side.feed(chunk[low : low + 5000])
    assert side.batches >= len(chunk) // 5000 - 1
    side.feed(command("XADD", "s", "*", "f", "v") + chunk)
    assert side.engine.databases[0].values[b"s"].length == 2001


@pytest.mark.parametrize("spoilt", [b"", b"+OK\r\n", b"$1\r\nf\r\n$04\r\nabcd\r\n", b"$1\r\nf\r\n$2\r\nabc\r\n"])
def test_a_run_ends_before_what_does_not_fit(spoilt: bytes) -> None:
    """Nothing that is not exactly the shape is taken along."""
    shapes = Shapes(min_chunk_bytes=1)
    good = PREFIX + b"$1\r\nf\r\n$4\r\n\r\n*7\r\n"
    assert shapes.learn(good) is None
    shape = shapes.learn(good)
    assert shape is not None
    found = find_batch(shape, good * 3 + PREFIX + spoilt + good)
    assert found is not None
    assert (found.raw, len(found.sections)) == (good * 3, 3)
    assert found.commands() == [[b"XADD", b"s", b"*", b"f", b"\r\n*7"]] * 3
    assert find_batch(shape, good + PREFIX + spoilt) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 1200)), min_size=1, max_size=8), st.integers(0, 4000))
def test_ids_in_runs_are_the_ids(steps: list[tuple[int, int]], probe: int) -> None:
    """Runs of unbroken ids answer as a list of ids would, also where sequences and milliseconds overflow."""
    runs, ids = IdRuns(), []
    at = (5 << 64) + U64_MAX - 700
    for gap, count in steps:
        at += gap
        runs.extend(at, count)
        ids += range(at, at + count)
        at += count
    probe %= len(ids)
    assert runs.between(0, len(ids)) == ids
    assert runs.texts(probe, len(ids)) == [b"%d-%d" % (one >> 64, one & U64_MAX) for one in ids[probe:]]
    assert runs[probe] == ids[probe]
    for one in (ids[probe] - 1, ids[probe], ids[probe] + 1):
        assert runs.index(one) == len([other for other in ids if other < one])
    runs.cut(probe + 1)
    assert (runs.count, runs.first, runs.last) == (probe + 1, ids[0], ids[probe])
    assert runs.between(0, probe + 1) == ids[: probe + 1]


def test_a_new_shape_keeps_nobody_waiting() -> None:
    """Its regular expression takes up to 90 ms, which others do not wait for; afterwards batches are taken as such."""
    made: list[Callable[[], None]] = []
    shapes = Shapes(make=made.append)
    fields = [word for number in range(32) for word in (f"field-{number}", "x" * 150)]
    data = command("XADD", "s", "*", *fields) * 2
    parser = RequestParser(shapes=shapes)
    begun = time.thread_time()
    assert [len(parser.feed(data)) for _ in range(3)] == [2, 2, 2]
    assert time.thread_time() - begun < 0.05
    made[0]()
    assert [type(request) for request in parser.feed(data)] == [XaddBatch]


def test_shapes_are_made_aside() -> None:
    """One at a time, and soon."""
    shapes = Shapes(make=BackgroundShapeMaker())
    data = command("XADD", "s", "*", "f", "x" * 3000) * 2
    until(lambda: shapes.learn(data) is not None, "the shape is not made")
