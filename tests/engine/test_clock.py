"""Ids and time: a clock that jumps back, and the end of 64-bit ids. The clock is set by hand."""

from __future__ import annotations

import pytest

from spark_streams.engine.client import Client
from spark_streams.engine.commands import new_engine
from spark_streams.engine.resp.request_parser import RequestParser
from tests.engine.wire import command

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
