"""The judge of "exact" is a real Redis: both servers are driven with the same random commands and must answer alike.

All stream commands that the real server knows take part, in RESP2 and RESP3 (judge.py: what is masked, and why).

    RSTREAM_TIMES=10                     a longer search
    RSTREAM_SEED=7                       the search of a run that printed this seed
    RSTREAM_JUDGE=redis://host:6379/0    another judge than the redis-server that is installed; it is flushed
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.engine.judge import NEWER_COMMANDS, NEWER_OPTIONS, Command, Judge
from tests.engine.wire import Wire, wire
from tests.seeds import TIMES
from tools.day_seed import first_seed
from tools.servers.server import Server

pytestmark = pytest.mark.in_turn

EXAMPLES = 30 * TIMES
SEED = first_seed()
JUDGE = os.environ.get("RSTREAM_JUDGE")

GROUPS, CONSUMERS = ("g", "h"), ("ann", "bob", "eve")
FUTURE = "9999999999999"  # an id of this time: what `*` makes behind it does not depend on the clock

ids = st.builds("{}-{}".format, st.integers(0, 12), st.sampled_from([1, 1, 1, 0, 2]))
odd_ids = st.sampled_from(["0", "3", "7", "x", "-", "$", "5-", "(3-1", "18446744073709551615", "007", "1-1-1", "+"])
any_id = st.one_of(ids, ids, ids, odd_ids)
counts = st.integers(-1, 6).map(str)
groups, consumers = st.sampled_from(GROUPS), st.sampled_from(CONSUMERS)
group_names = st.sampled_from([*GROUPS, *GROUPS, "new", ""])
consumer_names = st.sampled_from([*CONSUMERS, *CONSUMERS, "new", ""])
keys = st.sampled_from([*"ssssssssssss", "t", "t", "text", "none"])
values = st.sampled_from(["", "1", "-7", "12345678", "007", "hello", "x" * 70, "y" * 300])
policies = st.sampled_from(["KEEPREF", "DELREF", "ACKED"])
idles = st.sampled_from(["0", "0", "500", "999999"])
id_lists = st.lists(ids, min_size=1, max_size=12).map(tuple)


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
    words(policies, "MAXLEN", st.sampled_from(["=", "~"]), counts),
    words("MINID", ids, policies),
)
fields = st.lists(st.tuples(st.sampled_from("abc"), values), min_size=1, max_size=3).map(
    lambda pairs: tuple(word for pair in pairs for word in pair)
)
numbered_ids = id_lists.flatmap(lambda some: st.sampled_from([len(some)] * 8 + [0, len(some) + 1]).map(
    lambda count: ("IDS", str(count), *some)))  # fmt: skip


@st.composite
def adds(draw: st.DrawFn) -> Command:
    """XADD with an id that has a chance to be above the top."""
    identity = draw(st.one_of(st.integers(0, 12).map("{}-*".format), any_id))
    trim = draw(st.one_of(st.just(()), st.just(()), st.just(()), trims))
    make = draw(st.sampled_from([(), (), (), ("NOMKSTREAM",)]))
    return ("XADD", draw(keys), *make, *trim, identity, *draw(fields))


idempotent = st.one_of(
    words("XADD", "future", options(("IDMP", st.sampled_from("pq"), st.sampled_from("1234")), ("IDMPAUTO", "p")), "*",
          st.sampled_from([("a", "1"), ("a", "1", "b", "2"), ("b", "2", "a", "1"), ("a", "2")])),
    words("XADD", "future", "IDMP", "p", st.sampled_from(["", "1"]), st.sampled_from(["*", "5-5", "9-*"]), "a", "1"),
    words("XCFGSET", "future", options(("IDMP-MAXSIZE", st.sampled_from(["0", "1", "2", "2", "10001"]))),
          options(("IDMP-DURATION", st.sampled_from(["0", "1", "100", "86401", "x"])))),
    words("XIDMPRECORD", "future", st.sampled_from(["p", ""]), st.sampled_from(["1", "9", ""]),
          st.builds((FUTURE + "-{}").format, st.integers(0, 3))),
    words("XINFO", "STREAM", "future"),
    words("XDEL", "future", st.builds((FUTURE + "-{}").format, st.integers(0, 3))),
)  # fmt: skip

reads = st.one_of(
    words("XRANGE", keys, any_id, any_id, options(("COUNT", counts))),
    words("XRANGE", keys, "-", "+"),
    words("XREVRANGE", keys, "+", any_id, options(("COUNT", counts))),
    words("XREAD", options(("COUNT", counts), ("MAXCOUNT", counts), ("MAXSIZE", st.sampled_from(["0", "1", "90"]))),
          options(("BLOCK", "1")), "STREAMS", keys, keys, any_id, any_id),
    words("XLEN", keys),
    words("XINFO", "GROUPS", keys),
    words("XINFO", "CONSUMERS", keys, group_names),
    words("XINFO", "STREAM", keys, options(("FULL",), ("FULL", "COUNT", counts))),
    words("XINFO", "STREAM", "s", "FULL"),
    words("XPENDING", keys, group_names),
    words("XPENDING", "s", groups, "-", "+", "20", options((consumers,))),
    words("XPENDING", "s", groups, options(("IDLE", "0")), any_id, any_id, counts),
)  # fmt: skip

group_reads = st.one_of(
    words("XREADGROUP", "GROUP", groups, consumers, options(("COUNT", counts)), "STREAMS", "s", ">"),
    words("XREADGROUP", "GROUP", group_names, consumer_names, options(("COUNT", counts), ("BLOCK", "1")), "STREAMS",
          "s", "t", st.sampled_from([">", "0"]), ">"),
    words("XREADGROUP", "GROUP", groups, consumers, "COUNT", "3", "STREAMS", keys, st.sampled_from([">", "0"])),
    words("XREADGROUP", "GROUP", groups, consumers, options(("NOACK",)), "STREAMS", keys, any_id),
    words("XREADGROUP", "GROUP", groups, consumers, options(("COUNT", counts)), "CLAIM", idles, options(("NOACK",)),
          "STREAMS", "s", st.sampled_from([">", ">", ">", "0"])),
    words("XREADGROUP", "GROUP", groups, consumers, "CLAIM", idles, "STREAMS", "s", "t", st.sampled_from([">", "0"]),
          ">"),
    words("XREADGROUP", "GROUP", groups, consumers, options(("COUNT", "2")), "MAXCOUNT", counts, "MAXSIZE",
          st.integers(1, 300).map(str), options(("CLAIM", "0")), "STREAMS", "s", "t", st.sampled_from([">", "0"]), ">"),
)  # fmt: skip

claims = st.one_of(
    words("XCLAIM", keys, groups, consumer_names, idles, id_lists,
          options(("FORCE",), ("JUSTID",), ("RETRYCOUNT", counts), ("IDLE", "1000"), ("LASTID", any_id), ("BAD",))),
    words("XAUTOCLAIM", keys, groups, consumers, idles, any_id, options(("COUNT", counts), ("JUSTID",))),
    words("XNACK", keys, groups, st.sampled_from(["SILENT", "FAIL", "FATAL", "BAD"]), numbered_ids,
          options(("FORCE",), ("RETRYCOUNT", counts), ("BAD",))),
    words("XGROUP", "SETID", keys, groups, st.one_of(any_id, st.just("$")), options(("ENTRIESREAD", counts))),
    words("XGROUP", "CREATE", keys, group_names, any_id, options(("MKSTREAM",), ("ENTRIESREAD", counts))),
    words("XGROUP", "CREATECONSUMER", keys, groups, consumer_names),
    words("XGROUP", "DELCONSUMER", keys, groups, consumer_names),
)  # fmt: skip

others = st.sampled_from([("XADD", "now", "*", "a", "1"), ("XRANGE", "now", "-", "+"), ("XINFO", "STREAM", "now"),
                          ("DEL", "t"), ("XGROUP", "DESTROY", "s", "h")])  # fmt: skip
trimming = st.one_of(
    words("XTRIM", "s", policies, "MAXLEN", counts),
    words("XTRIM", "s", "MINID", ids, policies),
    words("XTRIM", keys, trims),
)
acknowledging = st.one_of(
    words("XACK", keys, groups, id_lists),
    words("XACKDEL", "s", groups, policies, numbered_ids),
    words("XACKDEL", keys, groups, numbered_ids, options((policies,))),
)
removals = st.one_of(
    words("XDEL", keys, id_lists),
    words("XDELEX", keys, options((policies,)), numbered_ids),
    words("XDELEX", "s", numbered_ids, policies),
    words("XSETID", keys, ids, options(("ENTRIESADDED", st.sampled_from(["0", "5", "50"])), ("MAXDELETEDID", ids))),
)  # fmt: skip

# Those that every server from 7.0 on takes.
commands = st.one_of(
    adds(), adds(), adds(), adds(), reads, group_reads, claims, trimming, acknowledging, removals
).filter(lambda one: not NEWER_OPTIONS.intersection(one) and one[0] not in NEWER_COMMANDS and "BLOCK" not in one)


@dataclass
class Pair:
    """The engine and the judge, on connections of both protocols."""

    engine: dict[int, Wire]
    redis: dict[int, Wire]
    judge: Judge

    def call(self, *command: Any) -> None:
        """For both, whatever they answer."""
        for clients in (self.engine, self.redis):
            clients[2].call(*command)


@pytest.fixture(scope="module")
def pair(engine_server: Server, request: pytest.FixtureRequest) -> Iterator[Pair]:
    redis = Server("redis", JUDGE) if JUDGE else request.getfixturevalue("redis_server")
    with wire(engine_server) as e2, wire(engine_server, 3) as e3, wire(redis) as r2, wire(redis, 3) as r3:
        yield Pair({2: e2, 3: e3}, {2: r2, 3: r3}, Judge(r2))
        for client in (e2, r2):
            client.call("CONFIG", "SET", "stream-node-max-entries", "100", "stream-node-max-bytes", "4096")


class Streams(RuleBasedStateMachine):
    """Two streams with groups, a key of another type, a stream for idempotent adds; any command at any time."""

    pair: ClassVar[Pair]

    @initialize(node=st.sampled_from(["0", "2", "5", "100"]), resp=st.sampled_from([2, 3]), entries=st.integers(0, 9))
    def begin(self, node: str, resp: int, entries: int) -> None:
        self.resp = resp
        self.done: list[Command] = []
        self.pair.call("FLUSHALL")
        self.pair.call("CONFIG", "SET", "stream-node-max-entries", node, "stream-node-max-bytes", "0")
        self.pair.call("SET", "text", "x")
        self.pair.call("XADD", "future", f"{FUTURE}-0", "a", "0")
        for group in GROUPS:
            for key in ("s", "t"):
                self.pair.call("XGROUP", "CREATE", key, group, "0", "MKSTREAM")
            for consumer in CONSUMERS:
                self.pair.call("XGROUP", "CREATECONSUMER", "s", group, consumer)
        for number in range(1, entries + 1):
            self.pair.call("XADD", "s", f"{number}-1", "a", number)

    def run_on_both(self, command: Command) -> None:
        judge = self.pair.judge
        engine, redis = self.pair.engine[self.resp], self.pair.redis[self.resp]
        if not judge.knows(command) or not judge.takes(command, engine):
            return
        for first in judge.before(command):
            self.run_on_both(first)
        self.done.append(command)
        ours, theirs = (judge.masked(command, client.call(*command)) for client in (engine, redis))
        assert ours == theirs, self.done

    @rule(command=adds(), more=st.lists(adds(), max_size=4))
    def add(self, command: Command, more: list[Command]) -> None:
        for one in [command, *more]:
            self.run_on_both(one)

    @rule(command=reads)
    def read(self, command: Command) -> None:
        self.run_on_both(command)

    @rule(command=group_reads)
    def read_as_group(self, command: Command) -> None:
        self.run_on_both(command)

    @rule(command=group_reads)
    def read_as_group_again(self, command: Command) -> None:
        self.run_on_both(command)

    @rule(command=claims)
    def claim(self, command: Command) -> None:
        self.run_on_both(command)

    @rule(command=removals)
    def remove(self, command: Command) -> None:
        self.run_on_both(command)

    @rule(command=trimming)
    def trim(self, command: Command) -> None:
        self.run_on_both(command)

    @rule(command=acknowledging)
    def acknowledge(self, command: Command) -> None:
        self.run_on_both(command)

    @rule(command=st.one_of(idempotent, idempotent, others))
    def rarely(self, command: Command) -> None:
        self.run_on_both(command)

    def teardown(self) -> None:
        if hasattr(self, "done"):
            for command in (("XINFO", "STREAM", "s", "FULL", "COUNT", "0"), ("XINFO", "GROUPS", "s")):
                self.run_on_both(command)


def test_random_commands_have_the_same_replies(pair: Pair) -> None:
    """Whatever is done to streams and their groups, both servers say the same."""
    print(f"RSTREAM_SEED={SEED}, judge {'.'.join(map(str, pair.judge.version))}")
    Streams.pair = pair
    machine = seed(SEED)(Streams)
    budget = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None, database=None,
                      suppress_health_check=list(HealthCheck))  # fmt: skip
    run_state_machine_as_test(machine, settings=budget)


@seed(SEED)
@settings(max_examples=max(EXAMPLES // 8, 5), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(0, 400), st.booleans(), values), min_size=20, max_size=300),
    st.sampled_from([0, 200, 1000, 4096]),
    st.lists(st.integers(0, 200), min_size=1, max_size=4),
)
def test_approximate_trimming_removes_the_same_nodes(
    pair: Pair, entries: list[tuple[int, bool, str]], node_bytes: int, keeps: list[int]
) -> None:
    """Nodes end where Redis' do, by bytes as well as by entries, so that `~` removes the same entries."""
    both = pair.engine[2], pair.redis[2]
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
