"""Patterns of KEYS, SCAN, HSCAN and CONFIG GET: as Redis matches them, and none makes other clients wait."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from spark_streams.base import pattern as module
from spark_streams.base.pattern import compile_pattern
from spark_streams.engine.commands.command_arguments import LONGEST_PATTERN
from tests.engine.wire import Failed, Wire, wire
from tests.seeds import TIMES
from tools.day_seed import first_seed
from tools.servers.server import Served, Server, running_redis, serving, skip_without_redis

MOST_SECONDS = 0.05  # of the engine's processor time for one command
PARTS = [b"*", b"*", b"?", b"[", b"]", b"^", b"-", b"\\", b"a", b"b", b"c", b"A", b"\x80", b"\xff", b"\0", b"[a-c]"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Served]:
    with serving("--enable-debug-command", "yes") as server:
        yield server


@pytest.fixture(scope="module")
def judge() -> Iterator[Server]:
    skip_without_redis()
    with running_redis() as server:
        yield server


def some_bytes(chance: random.Random, parts: list[bytes], most: int) -> bytes:
    return b"".join(chance.choices(parts, k=chance.randint(0, most)))


def test_random_patterns_select_the_same_keys_and_fields_as_on_redis(engine: Served, judge: Server) -> None:
    chance = random.Random(first_seed())
    names = [some_bytes(chance, [b"a", b"b", b"c", b"A", b"]", b"-", b"\x80", b"\xff", b"\0"], 7) for _ in range(300)]
    with wire(engine) as ours, wire(judge) as theirs:
        for one in (ours, theirs):
            one.call("FLUSHALL")
            one.call("MSET", *[word for name in names for word in (name, "1")])
            one.call("HSET", "a hash", *[word for name in names for word in (name, "1")])
        for _ in range(400 * TIMES):
            pattern = some_bytes(chance, PARTS, 9)
            asked = [("KEYS", pattern), ("SCAN", "0", "MATCH", pattern, "COUNT", "9999")]
            asked += [("HSCAN", "a hash", "0", "MATCH", pattern, "COUNT", "9999")]
            for words in asked:
                found = [one.call(*words) for one in (ours, theirs)]
                flat = [sorted(reply[1] if words[0] != "KEYS" else reply) for reply in found]
                assert flat[0] == flat[1], (words, flat)


def test_patterns_of_settings_are_those_of_redis(engine: Served, judge: Server) -> None:
    """The settings that both have are selected by the same patterns."""
    patterns = [
        "APPEND*",
        "append[a-o]nly",
        "[^a-z]*",
        "*-bytes",
        "ma?memory",
        "\\ma*",
        "stream-node-[",
        "*[A-Z]",
        "port",
    ]
    with wire(engine) as ours, wire(judge) as theirs:
        every = [{*one.call("CONFIG", "GET", "*")[::2]} for one in (ours, theirs)]
        shared = every[0] & every[1]
        for pattern in patterns:
            found = [{*one.call("CONFIG", "GET", pattern)[::2]} & shared for one in (ours, theirs)]
            assert found[0] == found[1], pattern


@pytest.mark.in_turn
def test_a_long_name_is_matched_by_the_automaton_as_by_the_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(first_seed())
    pairs = [(some_bytes(chance, PARTS, 9), some_bytes(chance, PARTS[8:15], 12)) for _ in range(20_000)]
    expected = [compile_pattern(pattern)(name) for pattern, name in pairs]
    compile_pattern.cache_clear()
    monkeypatch.setattr(module, "_MANY_STEPS", 0)
    assert [compile_pattern(pattern)(name) for pattern, name in pairs] == expected
    assert sum(expected) > 300
    compile_pattern.cache_clear()


LONG = 1 << 20
HARD = {
    "open brackets": b"[a",
    "stars": b"a*",
    "questions": b"*?",
    "classes": b"[^a-c]*",
    "escapes": b"\\a",
    "one class": b"[",
    "letters": b"a",
}


def longest(engine: Served, client: Wire, words: tuple[bytes | str, ...]) -> tuple[float, object]:
    begun = engine.processor_time()
    reply = client.call(*words)
    return engine.processor_time() - begun, reply


@pytest.mark.parametrize("kind", HARD)
@pytest.mark.parametrize("size", [LONGEST_PATTERN, 12_000, LONG])
def test_no_pattern_makes_others_wait(engine: Served, kind: str, size: int) -> None:
    """A pattern is matched within 50 ms, or refused because it is too long; also if a name is made for it."""
    pattern = (HARD[kind] * (size // len(HARD[kind]) + 1))[:size]
    with wire(engine) as client:
        client.call("FLUSHALL")
        client.call("MSET", *[word for number in range(200) for word in (b"a" * 200 + b"%d" % number, "1")])
        client.call("HSET", "hash", b"a" * 20_000, "1")
        client.socket.settimeout(60)
        for words in [
            ("KEYS", pattern),
            ("SCAN", "0", "MATCH", pattern, "COUNT", "1000"),
            ("HSCAN", "hash", "0", "MATCH", pattern),
            ("CONFIG", "GET", pattern),
            ("CONFIG", "GET", *[pattern[:100]] * (size // 100)),
        ]:
            module.compile_pattern.cache_clear()
            took, reply = longest(engine, client, words)
            assert took < MOST_SECONDS, (words[0], took)
            assert isinstance(reply, Failed) == (sum(map(len, words)) > 2 * LONGEST_PATTERN), words[0]


def test_a_long_name_costs_a_time_that_grows_with_its_bytes_only() -> None:
    """A name of a repeated letter and a pattern that almost occurs in it: no product of the two lengths."""
    pattern = b"*" + b"a" * (LONGEST_PATTERN - 3) + b"b*"
    matches = compile_pattern(pattern)
    assert not matches(b"a" * 100_000)
    assert matches(b"a" * 100_000 + b"b")
    assert not compile_pattern(b"*" + b"ab" * 250 + b"*c")(b"ab" * 50_000)
