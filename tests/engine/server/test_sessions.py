"""What a connection carries: reply mode, transactions, watched keys, names; and expiry."""

from __future__ import annotations

import time

from tests.engine.wire import wire
from tools.servers.server import Server


def test_reply_skip_and_off(server: Server) -> None:
    """SKIP swallows one reply, OFF all until ON; the commands are carried out."""
    with wire(server) as client:
        client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        client.call("XADD", "s", "1-1", "a", "1")
        client.send("CLIENT", "REPLY", "SKIP")
        client.send("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
        client.send("XINFO", "GROUPS", "s")
        assert client.reply()[0][5] == 1  # pending
        client.send("CLIENT", "REPLY", "OFF")
        client.send("SET", "k", "v")
        client.send("NOSUCH")
        client.send("CLIENT", "REPLY", "ON")
        assert client.reply() == b"OK"
        assert client.call("GET", "k") == b"v"


def test_watch(server: Server) -> None:
    """EXEC answers nil when another changed the entries of a watched stream or dropped it."""
    with wire(server) as client, wire(server) as other:
        other.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        for change in ("XADD s 1-1 a 1", "XADD s 2-1 a 1", "XDEL s 1-1", "XTRIM s MAXLEN 0", "DEL s"):
            client.call("WATCH", "s", "other")
            other.call(*change.split())
            client.call("MULTI")
            client.call("SET", "k", "v")
            assert client.call("EXEC") is None, change
        client.call("WATCH", "s")
        other.call("SET", "s", "1")
        client.call("UNWATCH")
        client.call("MULTI")
        client.call("SET", "k", "v")
        assert client.call("EXEC") == [b"OK"]


def test_group_commands_do_not_count_for_watch(server: Server) -> None:
    """What only moves a group is no change of the key, as in Redis."""
    with wire(server) as client, wire(server) as other:
        other.call("XADD", "s", "1-1", "a", "1")
        client.call("WATCH", "s")
        for change in ("XGROUP CREATE s g 0", "XREADGROUP GROUP g c STREAMS s >", "XCLAIM s g d 0 1-1", "XACK s g 1-1"):
            other.call(*change.split())
        client.call("MULTI")
        client.call("PING")
        assert client.call("EXEC") == [b"PONG"]


def test_watch_of_an_untouched_key(server: Server) -> None:
    """Reading does not count, and one's own changes before MULTI do."""
    with wire(server) as client, wire(server) as other:
        client.call("WATCH", "k")
        other.call("GET", "k")
        client.call("MULTI")
        client.call("INCR", "k")
        assert client.call("EXEC") == [1]
        client.call("WATCH", "k")
        client.call("INCR", "k")
        client.call("MULTI")
        client.call("INCR", "k")
        assert client.call("EXEC") is None


def test_expiry(server: Server) -> None:
    """An expired key is gone for every command, streams too; a live one tells its time."""
    with wire(server) as client:
        client.call("XADD", "s", "1-1", "a", "1")
        assert client.call("PEXPIRE", "s", 40) == 1
        assert 0 < client.call("PTTL", "s") <= 40
        time.sleep(0.08)
        assert client.call("EXISTS", "s") == 0
        assert client.call("XLEN", "s") == 0
        client.call("SET", "k", "v", "PX", "40")
        client.call("SET", "k", "w", "KEEPTTL")
        time.sleep(0.08)
        assert client.call("GET", "k") is None
        client.call("SET", "k", "v")
        assert client.call("EXPIREAT", "k", 1) == 1
        assert client.call("EXISTS", "k") == 0


def test_scan_and_keys(server: Server) -> None:
    """SCAN finds every key once the cursor is back at 0, by pattern and by type."""
    with wire(server) as client:
        for number in range(50):
            client.call("SET", f"k{number}", "v")
        client.call("XADD", "stream:1", "*", "a", "1")
        cursor, found = b"0", []
        while True:
            cursor, page = client.call("SCAN", cursor, "MATCH", "k*", "COUNT", "7")
            found += page
            if cursor == b"0":
                break
        assert sorted(set(found)) == sorted(b"k%d" % number for number in range(50))
        assert client.call("SCAN", "0", "COUNT", "1000", "TYPE", "stream")[1] == [b"stream:1"]
        assert len(client.call("KEYS", "k[12]?")) == 20
        assert client.call("KEYS", "k[^0-9]*") == []


def test_generated_ids_do_not_go_backwards(server: Server) -> None:
    """Below an id from the future, `*` goes on counting from it."""
    with wire(server) as client:
        client.call("XADD", "s", "99999999999999-18446744073709551615", "a", "1")
        assert client.call("XADD", "s", "*", "a", "1") == b"100000000000000-0"


def test_consumer_times(server: Server) -> None:
    """XINFO CONSUMERS' idle and XPENDING's idle count milliseconds."""
    with wire(server) as client:
        client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        client.call("XADD", "s", "1-1", "a", "1")
        client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
        time.sleep(0.05)
        assert 50 <= client.call("XPENDING", "s", "g", "-", "+", "1")[0][2] < 2000
        assert 50 <= client.call("XINFO", "CONSUMERS", "s", "g")[0][5] < 2000
        assert client.call("XCLAIM", "s", "g", "d", "60000", "1-1") == []
        assert client.call("XPENDING", "s", "g", "IDLE", "60000", "-", "+", "1") == []
        assert len(client.call("XCLAIM", "s", "g", "d", "20", "1-1", "IDLE", "5000", "RETRYCOUNT", "9")) == 1
        ((_, name, idle, deliveries),) = client.call("XPENDING", "s", "g", "-", "+", "1")
        assert (name, deliveries) == (b"d", 9)
        assert 5000 <= idle < 7000
