"""The judge of "exact" is a real Redis: both servers are driven with the same random commands and must answer alike.

What may differ is masked: times, the shape of the radix tree, and what later versions than 7.0 added to XINFO.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.wire import Failed, Wire, wire
from tests.servers import Server

# A longer search: RSTREAM_FUZZ=2000 pytest tests/engine/test_against_redis.py
EXAMPLES = int(os.environ.get("RSTREAM_FUZZ", "60"))
GROUPS, CONSUMERS = ("g", "h"), ("ann", "bob", "eve")
MASKED = {b"radix-tree-keys", b"radix-tree-nodes", b"seen-time", b"idle"}
ONLY_NEW = {b"active-time", b"inactive"}

Command = tuple[str, ...]
ids = st.builds("{}-{}".format, st.integers(0, 12), st.integers(0, 2))
odd_ids = st.sampled_from(["0", "3", "7", "x", "-", "$", "5-", "(3-1", "18446744073709551615", "007", "1-1-1"])
any_id = st.one_of(ids, ids, ids, odd_ids)
counts = st.integers(-1, 6).map(str)
groups, consumers = st.sampled_from(GROUPS), st.sampled_from(CONSUMERS)
keys = st.sampled_from(["s", "s", "s", "s", "s", "s", "t", "text"])
values = st.sampled_from(["", "1", "-7", "12345678", "007", "hello", "x" * 70, "y" * 300])


def options(*choices: tuple[Any, ...]) -> st.SearchStrategy[Command]:
    """One of these, or none: tuples of texts and strategies."""
    return st.one_of(st.just(()), *[words(*choice) for choice in choices])


def words(*parts: Any) -> st.SearchStrategy[Command]:
    """A command from texts, strategies of texts and strategies of several texts."""
    drawn = [part if isinstance(part, st.SearchStrategy) else st.just(part) for part in parts]
    return st.tuples(*drawn).map(_flat)


def _flat(parts: tuple[Any, ...]) -> Command:
    return tuple(word for part in parts for word in ((part,) if isinstance(part, str) else part))


trims = st.one_of(
    words("MAXLEN", st.sampled_from(["=", "~"]), counts),
    words("MINID", st.sampled_from(["=", "~"]), ids),
    words("MAXLEN", counts),
    words("MAXLEN", "~", counts, "LIMIT", st.sampled_from(["0", "1", "5", "20"])),
)
fields = st.lists(st.tuples(st.sampled_from("abc"), values), min_size=1, max_size=3).map(
    lambda pairs: tuple(word for pair in pairs for word in pair)
)
id_lists = st.lists(ids, min_size=1, max_size=12).map(tuple)


@st.composite
def adds(draw: st.DrawFn) -> Command:
    """XADD with an id that has a chance to be above the top."""
    identity = draw(st.one_of(st.integers(0, 12).map("{}-*".format), any_id))
    trim = draw(st.one_of(st.just(()), st.just(()), st.just(()), trims))
    make = draw(st.sampled_from([(), (), (), ("NOMKSTREAM",)]))
    return ("XADD", draw(keys), *make, *trim, identity, *draw(fields))


commands = st.one_of(
    adds(), adds(), adds(), adds(),
    words("XTRIM", keys, trims),
    words("XDEL", keys, id_lists),
    words("XRANGE", keys, any_id, any_id, options(("COUNT", counts))),
    words("XRANGE", keys, "-", "+"),
    words("XREVRANGE", keys, "+", any_id, options(("COUNT", counts))),
    words("XREAD", options(("COUNT", counts)), "STREAMS", keys, keys, any_id, any_id),
    words("XREADGROUP", "GROUP", groups, consumers, options(("COUNT", counts)), "STREAMS", keys, ">"),
    words("XREADGROUP", "GROUP", groups, consumers, "COUNT", "3", "STREAMS", keys, st.sampled_from([">", "0"])),
    words("XREADGROUP", "GROUP", groups, consumers, options(("NOACK",)), "STREAMS", keys, any_id),
    words("XGROUP", "SETID", keys, groups, st.one_of(any_id, st.just("$")), options(("ENTRIESREAD", counts))),
    words("XACK", keys, groups, id_lists),
    words("XPENDING", keys, groups),
    words("XPENDING", keys, groups, "-", "+", "20", options((consumers,))),
    words("XPENDING", keys, groups, options(("IDLE", "0")), any_id, any_id, counts),
    words("XCLAIM", keys, groups, consumers, st.sampled_from(["0", "0", "999999"]), id_lists,
          options(("FORCE",), ("JUSTID",), ("RETRYCOUNT", counts), ("IDLE", "1000"), ("LASTID", any_id), ("BAD",))),
    words("XAUTOCLAIM", keys, groups, consumers, st.sampled_from(["0", "0", "999999"]), any_id,
          options(("COUNT", counts), ("JUSTID",))),
    words("XSETID", keys, ids, options(("ENTRIESADDED", st.sampled_from(["0", "5", "50"])), ("MAXDELETEDID", ids))),
    words("XINFO", "GROUPS", keys),
    words("XINFO", "STREAM", keys, options(("FULL",), ("FULL", "COUNT", counts))),
    words("XLEN", keys),
)  # fmt: skip


def masked(reply: Any) -> Any:
    """A reply without what may differ."""
    if isinstance(reply, list):
        items: list[Any] = []
        pairs = iter(reply)
        for item in pairs:
            if isinstance(item, bytes) and item in ONLY_NEW:
                next(pairs)
            elif isinstance(item, bytes) and item in MASKED:
                items += [item, next(pairs, None) is not None]
            else:
                items.append(masked(item))
        return items
    if isinstance(reply, int) and reply > 10**11:
        return "a time"
    return ("error", str(reply)) if isinstance(reply, Failed) else reply


def comparable(command: Command, reply: Any) -> Any:
    """Masked; of XPENDING's rows, idle times only roughly."""
    if command[0] == "XPENDING" and len(command) > 3 and isinstance(reply, list):
        return [[row[0], row[1], row[2] // 900, row[3]] for row in reply]
    return masked(reply)


@pytest.fixture(scope="module")
def both(engine_server: Server, redis_server: Server) -> Iterator[tuple[Wire, Wire]]:
    with wire(engine_server) as engine, wire(redis_server) as redis:
        yield engine, redis
        for client in (engine, redis):
            client.call("CONFIG", "SET", "stream-node-max-entries", "100", "stream-node-max-bytes", "4096")


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(commands, min_size=10, max_size=60), st.sampled_from(["0", "2", "5", "100"]))
def test_random_commands_have_the_same_replies(both: tuple[Wire, Wire], program: list[Command], node: str) -> None:
    """Whatever is done to a stream and its groups, both servers say the same."""
    for client in both:
        client.call("FLUSHALL")
        client.call("CONFIG", "SET", "stream-node-max-entries", node, "stream-node-max-bytes", "0")
        client.call("SET", "text", "x")
        for group in GROUPS:
            client.call("XGROUP", "CREATE", "s", group, "0", "MKSTREAM")
            for consumer in CONSUMERS:
                client.call("XGROUP", "CREATECONSUMER", "s", group, consumer)
    for number, command in enumerate(program):
        engine, redis = (comparable(command, client.call(*command)) for client in both)
        assert engine == redis, program[: number + 1]


@settings(max_examples=max(EXAMPLES // 3, 5), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(0, 400), st.booleans(), values), min_size=20, max_size=300),
    st.sampled_from([0, 200, 1000, 4096]),
    st.lists(st.integers(0, 200), min_size=1, max_size=4),
)
def test_approximate_trimming_removes_the_same_nodes(
    both: tuple[Wire, Wire], entries: list[tuple[int, bool, str]], node_bytes: int, keeps: list[int]
) -> None:
    """Nodes end where Redis' do, by bytes as well as by entries, so that `~` removes the same entries."""
    for client in both:
        client.call("FLUSHALL")
        client.call("CONFIG", "SET", "stream-node-max-entries", "100", "stream-node-max-bytes", node_bytes)
    top = 0
    for keep in sorted(keeps, reverse=True):
        for number, other_fields, value in entries:
            top += number + 1
            shape = ("n", number, "v", value) if other_fields else ("number", number, "text", value, "x", "")
            for client in both:
                client.send("XADD", "s", f"{top}-{number % 3}", *shape)
        for client in both:
            for _ in entries:
                client.reply()
        engine, redis = (client.call("XTRIM", "s", "MAXLEN", "~", keep, "LIMIT", "0") for client in both)
        assert engine == redis
        assert both[0].call("XLEN", "s") == both[1].call("XLEN", "s")
