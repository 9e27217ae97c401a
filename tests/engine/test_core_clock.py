"""Ids and time: a clock that jumps back, and the end of 64-bit ids. The clock is set by hand."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Iterator

import pytest
import redis

from spark_streams.engine import LocalEngine
from spark_streams.engine.client import Client
from spark_streams.engine.commands import new_engine
from spark_streams.engine.resp.request_parser import RequestParser
from tests.connector.source.group.test_streams_lease import a_lease_from_elsewhere
from tests.engine.wire import command
from tools.driving import add, drain, forget_all, reader
from tools.machine_time import machine_seconds
from tools.servers.server import Server, serving
from tools.waiting import until

TOP = 2**64 - 1
EXHAUSTED = b"-ERR The stream has exhausted the last possible ID, unable to add more items\r\n"
SMALLER = b"-ERR The ID specified in XADD is equal or smaller than the target stream top item\r\n"


class Hand:
    """An engine without sockets, whose clock is moved by hand."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.engine = new_engine(lambda: self.now)
        self.client: Client = self.engine.connect("test", "test")
        self.parser = RequestParser()

    def call(self, *words: object) -> bytes:
        """The bytes of the reply."""
        self.engine.tick()
        out: list[bytes] = []
        self.engine.run(self.client, self.parser.feed(command(*words)), out, 1 << 30)
        return b"".join(out)

    def add(self) -> tuple[int, int]:
        """The id that the next entry gets."""
        reply = self.call("XADD", "s", "*", "f", "v")
        ms, _, seq = reply.split(b"\r\n")[1].partition(b"-")
        return int(ms), int(seq)


def test_ids_rise_when_the_clock_goes_back() -> None:
    """They stay in the last millisecond until the clock has caught up; so do `<ms>-*` and `0-1`."""
    hand = Hand(1_000_000)
    ids = [hand.add(), hand.add()]
    for jump in (-1, -500_000, -400_000, 0, -999_999, 499_999, 1, 900_000, 0, -5):
        hand.now = max(hand.now + jump, 1)
        ids += [hand.add(), hand.add(), hand.add()]
    assert ids == sorted(set(ids))
    assert ids[:5] == [(1_000_000, 0), (1_000_000, 1), (1_000_000, 2), (1_000_000, 3), (1_000_000, 4)]
    assert hand.call("XADD", "s", "5-*", "f", "v") == SMALLER
    assert hand.call("XADD", "s", "0-1", "f", "v") == SMALLER


def test_a_full_millisecond_goes_over_into_the_next() -> None:
    """The sequence is 64 bits wide; behind its last number comes the next millisecond."""
    hand = Hand(1000)
    assert hand.call("XADD", "s", f"1000-{TOP}", "f", "v").endswith(b"-%d\r\n" % TOP)
    assert hand.add() == (1001, 0)
    assert hand.call("XADD", "s", "1000-*", "f", "v") == SMALLER


def test_the_last_id_of_all() -> None:
    """An error, and never a smaller id; reading goes on."""
    hand = Hand(1000)
    assert hand.call("XADD", "s", f"{TOP}-*", "f", "v").endswith(b"%d-0\r\n" % TOP)
    assert hand.add() == (TOP, 1)
    assert hand.call("XADD", "s", f"{TOP}-{TOP}", "f", "v").endswith(b"%d-%d\r\n" % (TOP, TOP))
    for identity in ("*", f"{TOP}-*", f"{TOP}-{TOP}", "5-5"):
        assert hand.call("XADD", "s", identity, "f", "v") == EXHAUSTED
    assert hand.call("XADD", "s", f"{TOP + 1}-0", "f", "v").startswith(b"-ERR Invalid stream ID")
    assert hand.call("XADD", "s", f"1-{TOP + 1}", "f", "v").startswith(b"-ERR Invalid stream ID")
    assert hand.call("XRANGE", "s", f"({TOP}-{TOP}", "+").startswith(b"-ERR invalid start ID")
    assert hand.call("XREAD", "STREAMS", "s", f"{TOP}-{TOP}") == b"*-1\r\n"
    assert hand.call("XLEN", "s") == b":3\r\n"


@pytest.mark.parametrize("jump", [-100_000, -1, 5_000_000])
def test_idle_times_are_never_negative(jump: int) -> None:
    """What is pending, and who is idle, when the clock has gone back; an expiry stays where it is."""
    hand = Hand(10_000_000)
    hand.add()
    hand.call("XGROUP", "CREATE", "s", "g", "0")
    hand.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    hand.call("SET", "k", "v", "PXAT", 10_000_500)
    hand.now += jump
    for words in (("XPENDING", "s", "g", "-", "+", "10"), ("XINFO", "CONSUMERS", "s", "g"), ("CLIENT", "INFO")):
        assert b":-" not in hand.call(*words).replace(b":-1\r\n", b""), words
    assert hand.call("XCLAIM", "s", "g", "d", "0", "10000000-0", "JUSTID") == b"*1\r\n$10\r\n10000000-0\r\n"
    assert hand.call("EXISTS", "k") == (b":1\r\n" if jump < 500 else b":0\r\n")


# A clock that tests move: all that depends on the engine's time follows, and nothing sleeps.


NEW_YEAR = 1_767_225_600_000  # 2026-01-01T00:00 in UTC


@pytest.fixture(scope="module")
def running() -> Iterator[LocalEngine]:
    with LocalEngine() as engine:
        yield engine


@pytest.fixture
def engine(running: LocalEngine) -> Iterator[LocalEngine]:
    with redis.Redis.from_url(running.url) as client:
        client.flushall()
    yield running
    running.reset_clock()
    forget_all()


@pytest.fixture
def client(engine: LocalEngine) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(engine.url, decode_responses=True) as client:
        yield client


def test_ids_follow(engine: LocalEngine, client: redis.Redis) -> None:
    engine.freeze("2026-01-01")
    assert [client.xadd("s", {"n": n}) for n in range(2)] == [f"{NEW_YEAR}-0", f"{NEW_YEAR}-1"]
    engine.advance("10m")
    assert client.xadd("s", {"n": 2}) == f"{NEW_YEAR + 600_000}-0"
    assert client.time() == (NEW_YEAR // 1000 + 600, 0)


@pytest.mark.parametrize("by", ["1h", 3600, datetime.timedelta(hours=1)])
def test_a_running_clock_moves_on_and_goes_on(
    engine: LocalEngine, client: redis.Redis, by: str | float | datetime.timedelta
) -> None:
    engine.advance(by)
    ahead = client.time()[0] - time.time()
    assert 3598 < ahead < 3602
    engine.reset_clock()
    assert abs(client.time()[0] - time.time()) < 2


def test_a_frozen_clock_stands_until_it_is_let_go(engine: LocalEngine, client: redis.Redis) -> None:
    moment = datetime.datetime(2026, 1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
    engine.freeze(moment)
    stands = client.time()
    time.sleep(0.02)
    assert client.time() == stands == (NEW_YEAR // 1000, 0)
    engine.unfreeze()
    until(lambda: client.time() > stands, "the clock stands")
    assert client.time()[0] - stands[0] < 60
    engine.freeze()
    assert client.time() == client.time()


def test_keys_expire(engine: LocalEngine, client: redis.Redis) -> None:
    client.set("lease", "mine", px=60_000)
    engine.advance("59s")
    assert client.get("lease") == "mine"
    engine.advance("2s")
    assert client.get("lease") is None
    assert client.info("stats")["expired_keys"] >= 1


def test_idle_times_follow(engine: LocalEngine, client: redis.Redis) -> None:
    client.xgroup_create("s", "g", "0", mkstream=True)
    entry_id = client.xadd("s", {"n": 1})
    client.xreadgroup("g", "ann", {"s": ">"})
    assert client.xautoclaim("s", "g", "bob", 3_600_000)[1] == []
    engine.advance("1h")
    assert client.xpending_range("s", "g", "-", "+", 1)[0]["time_since_delivered"] >= 3_600_000
    assert [claimed for claimed, _ in client.xautoclaim("s", "g", "bob", 3_600_000)[1]] == [entry_id]


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_blocked_reader_is_answered_when_its_time_is_over(
    engine: LocalEngine, client: redis.Redis, is_frozen: bool
) -> None:
    client.xadd("s", {"n": 1})
    if is_frozen:
        engine.freeze()
    replies: list[object] = []

    def read() -> None:
        with redis.Redis.from_url(engine.url) as own:
            replies.append(own.xread({"s": "$"}, block=600_000))

    reading = threading.Thread(target=read)
    reading.start()
    until(lambda: client.info("clients")["blocked_clients"] == 1, "nobody reads")
    engine.advance("9m")
    assert client.info("clients")["blocked_clients"] == 1
    engine.advance("2m")
    reading.join(10)
    assert replies == [[]]


def test_an_idle_query_claims_what_has_become_old_enough(engine: LocalEngine, client: redis.Redis) -> None:
    server = Server("engine", engine.url)
    add(client, 3)
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "elsewhere", {"s": ">"})
    assert drain(reader(server, claimIdle="1h")) == []
    engine.advance("61m")
    forget_all()
    assert drain(reader(server, claimIdle="1h")) == [[0, 1, 2]]


def test_the_lease_of_another_machine_expires(engine: LocalEngine, client: redis.Redis) -> None:
    a_lease_from_elsewhere(client, 60_000)
    engine.advance("61s")
    began = machine_seconds()
    reader(Server("engine", engine.url)).initialOffset()
    assert machine_seconds() - began < 5


def test_debug_is_refused_unless_it_is_enabled_at_start() -> None:
    with serving() as server, server.client(decode_responses=True) as client:
        with pytest.raises(redis.ResponseError, match="^DEBUG command not allowed. If the enable-debug-command"):
            client.execute_command("DEBUG", "CLOCK", "ADVANCE", "1")
        with pytest.raises(redis.ResponseError, match="immutable"):
            client.config_set("enable-debug-command", "yes")
        assert client.config_get("enable-debug-command") == {"enable-debug-command": "no"}


@pytest.mark.parametrize("allowed", ["yes", "local"])
def test_debug_moves_the_clock_of_a_server_that_allows_it(allowed: str) -> None:
    with serving("--enable-debug-command", allowed) as server, server.client(decode_responses=True) as client:
        assert client.execute_command("DEBUG", "CLOCK", "FREEZE", NEW_YEAR) == "OK"
        assert client.xadd("s", {"n": 1}) == f"{NEW_YEAR}-0"


@pytest.mark.parametrize("words", ["", "ADVANCE", "ADVANCE -1", "ADVANCE x", "FREEZE 1 2", "RUN 1", "RESET 1", "STOP"])
def test_wrong_words_are_refused_and_change_nothing(engine: LocalEngine, client: redis.Redis, words: str) -> None:
    engine.freeze(NEW_YEAR)
    with pytest.raises(redis.ResponseError):
        client.execute_command("DEBUG", "CLOCK", *words.split())
    assert client.time() == (NEW_YEAR // 1000, 0)


@pytest.mark.parametrize("by", ["soon", -1, "1 year", datetime.timedelta(days=-1), float("inf"), 1e300])
def test_a_wrong_duration_is_an_error(engine: LocalEngine, by: str | float | datetime.timedelta) -> None:
    with pytest.raises((ValueError, OverflowError)):
        engine.advance(by)


def test_an_engine_that_does_not_run_has_no_clock() -> None:
    with pytest.raises(RuntimeError, match="the engine is not running: use it in a with block"):
        LocalEngine().freeze()
