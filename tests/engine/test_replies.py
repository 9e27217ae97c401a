# ruff: noqa: E501 - a reply is shown on one line, as it comes
"""Replies of single commands, byte for byte, on the bundled engine and on a real Redis."""

from __future__ import annotations

import pytest

from tests.engine.wire import wire
from tools.servers.server import Server

WRONGTYPE = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
BAD_ID = b"-ERR Invalid stream ID specified as stream command argument\r\n"
NOT_INT = b"-ERR value is not an integer or out of range\r\n"
SYNTAX = b"-ERR syntax error\r\n"

# Each row: the command, and its reply in RESP2. Rows build on one another, from an empty server.
STREAM_ROWS: list[tuple[str, bytes]] = [
    ("XADD s 1-1 a 1 b 2", b"$3\r\n1-1\r\n"),
    ("XADD s 1-* a 3", b"$3\r\n1-2\r\n"),
    ("XADD s 5 c 4", b"$3\r\n5-0\r\n"),
    ("XADD s 5-0 c 4", b"-ERR The ID specified in XADD is equal or smaller than the target stream top item\r\n"),
    ("XADD s 0-0 c 4", b"-ERR The ID specified in XADD must be greater than 0-0\r\n"),
    ("XADD s 6-0 c", b"-ERR wrong number of arguments for 'xadd' command\r\n"),
    ("XADD s 6-0 c 4 d", b"-ERR wrong number of arguments for 'xadd' command\r\n"),
    ("XADD s x c 4", BAD_ID),
    ("XADD s + c 4", BAD_ID),
    ("XADD s MAXLEN -1 * c 4", b"-ERR The MAXLEN argument must be >= 0.\r\n"),
    ("XADD s MAXLEN x * c 4", NOT_INT),
    ("XADD s LIMIT 5 * c 4", b"-ERR syntax error, LIMIT cannot be used without specifying a trimming strategy\r\n"),
    ("XADD s MAXLEN 5 LIMIT 5 * c 4", b"-ERR syntax error, LIMIT cannot be used without the special ~ option\r\n"),
    (
        "XADD s MAXLEN 5 MINID 5 * c 4",
        b"-ERR syntax error, MAXLEN and MINID options at the same time are not compatible\r\n",
    ),
    ("XADD none NOMKSTREAM * c 4", b"$-1\r\n"),
    ("XLEN s", b":3\r\n"),
    ("XLEN none", b":0\r\n"),
    ("XRANGE s - + COUNT 1", b"*1\r\n*2\r\n$3\r\n1-1\r\n*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n"),
    ("XRANGE s (1-1 (5-0", b"*1\r\n*2\r\n$3\r\n1-2\r\n*2\r\n$1\r\na\r\n$1\r\n3\r\n"),
    ("XREVRANGE s 4 1", b"*2\r\n*2\r\n$3\r\n1-2\r\n*2\r\n$1\r\na\r\n$1\r\n3\r\n*2\r\n$3\r\n1-1\r\n*4\r\n$1\r\na\r\n$1\r\n1\r\n"
     b"$1\r\nb\r\n$1\r\n2\r\n"),
    ("XRANGE s - + COUNT 0", b"*-1\r\n"),
    ("XRANGE s - + COUNT -3", b"*-1\r\n"),
    ("XRANGE none - +", b"*0\r\n"),
    ("XRANGE s - + BAD 1", SYNTAX),
    ("XRANGE s - + COUNT", SYNTAX),
    ("XRANGE s (18446744073709551615-18446744073709551615 +", b"-ERR invalid start ID for the interval\r\n"),
    ("XRANGE s - (0", b"*0\r\n"),
    ("XRANGE s - (0-0", b"-ERR invalid end ID for the interval\r\n"),
    ("XRANGE s (- +", BAD_ID),
    ("XREAD COUNT 1 STREAMS s none 1-2 0", b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n5-0\r\n*2\r\n$1\r\nc\r\n$1\r\n4\r\n"),
    ("XREAD STREAMS s $", b"*-1\r\n"),
    ("XREAD STREAMS s >", b"-ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> "
     b"<consumer> option.\r\n"),
    ("XREAD NOACK STREAMS s 0", b"-ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.\r\n"),
    ("XREAD BLOCK -1 STREAMS s 0", b"-ERR timeout is negative\r\n"),
    ("XREAD BLOCK x STREAMS s 0", b"-ERR timeout is not an integer or out of range\r\n"),
    ("XGROUP CREATE none g $", b"-ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want "
     b"to use the MKSTREAM option to create an empty stream automatically.\r\n"),
    ("XGROUP CREATE s g 0", b"+OK\r\n"),
    ("XGROUP CREATE s g 0", b"-BUSYGROUP Consumer Group name already exists\r\n"),
    ("XGROUP CREATE s g2 0 ENTRIESREAD -2", b"-ERR value for ENTRIESREAD must be positive or -1\r\n"),
    ("XGROUP CREATE s g2 0 BAD", b"-ERR unknown subcommand or wrong number of arguments for 'CREATE'. Try XGROUP HELP.\r\n"),
    ("XGROUP SETID s nog 0", b"-NOGROUP No such consumer group 'nog' for key name 's'\r\n"),
    ("XGROUP CREATECONSUMER s g bob", b":1\r\n"),
    ("XGROUP CREATECONSUMER s g bob", b":0\r\n"),
    ("XGROUP BAD s g", b"-ERR unknown subcommand 'BAD'. Try XGROUP HELP.\r\n"),
    ("XGROUP DESTROY s", b"-ERR wrong number of arguments for 'xgroup|destroy' command\r\n"),
    ("XREADGROUP GROUP g bob COUNT 2 STREAMS s >", b"*1\r\n*2\r\n$1\r\ns\r\n*2\r\n*2\r\n$3\r\n1-1\r\n*4\r\n$1\r\na\r\n$1\r\n1\r\n"
     b"$1\r\nb\r\n$1\r\n2\r\n*2\r\n$3\r\n1-2\r\n*2\r\n$1\r\na\r\n$1\r\n3\r\n"),
    ("XREADGROUP GROUP nog bob STREAMS s >",
     b"-NOGROUP No such key 's' or consumer group 'nog' in XREADGROUP with GROUP option\r\n"),
    ("XREADGROUP COUNT 2 STREAMS s s > >", b"-ERR Missing GROUP option for XREADGROUP\r\n"),
    ("XREADGROUP GROUP g bob STREAMS s $", b"-ERR The $ ID is meaningless in the context of XREADGROUP: you want to read "
     b"the history of this consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would just "
     b"return an empty result set.\r\n"),
    ("XPENDING s g", b"*4\r\n:2\r\n$3\r\n1-1\r\n$3\r\n1-2\r\n*1\r\n*2\r\n$3\r\nbob\r\n$1\r\n2\r\n"),
    ("XPENDING s g - + 10 nobody", b"*0\r\n"),
    ("XPENDING s g - +", SYNTAX),
    ("XPENDING s nog", b"-NOGROUP No such key 's' or consumer group 'nog'\r\n"),
    ("XDEL s 1-2", b":1\r\n"),
    ("XREADGROUP GROUP g bob STREAMS s 1-1", b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-2\r\n*-1\r\n"),
    ("XREADGROUP GROUP g ann STREAMS s 0", b"*1\r\n*2\r\n$1\r\ns\r\n*0\r\n"),
    ("XCLAIM s g ann 0 1-1 JUSTID", b"*1\r\n$3\r\n1-1\r\n"),
    ("XCLAIM s g ann 0 1-1 BAD", b"-ERR Unrecognized XCLAIM option 'BAD'\r\n"),
    ("XCLAIM s g ann x 1-1", b"-ERR Invalid min-idle-time argument for XCLAIM\r\n"),
    ("XAUTOCLAIM s g eve 0 - COUNT 1", b"*3\r\n$3\r\n1-2\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n"
     b"*0\r\n"),
    ("XAUTOCLAIM s g eve 0 (1-1", b"*3\r\n$3\r\n0-0\r\n*0\r\n*1\r\n$3\r\n1-2\r\n"),
    ("XAUTOCLAIM s g eve 0 - COUNT 0", b"-ERR COUNT must be > 0\r\n"),
    ("XACK s g 1-1 1-1 9-9", b":1\r\n"),
    ("XACK s g x", BAD_ID),
    ("XACK none g 1-1", b":0\r\n"),
    ("XACK s nog x", b":0\r\n"),
    ("XPENDING s g", b"*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n"),
    ("XGROUP DELCONSUMER s g bob", b":0\r\n"),
    ("XSETID s 4-0", b"-ERR The ID specified in XSETID is smaller than the target stream top item\r\n"),
    ("XSETID s 9-0 ENTRIESADDED 1", b"-ERR The entries_added specified in XSETID is smaller than the target stream length\r\n"),
    ("XSETID s 9-0 ENTRIESADDED -1", b"-ERR entries_added must be positive\r\n"),
    ("XSETID s 1-0 MAXDELETEDID 2-0",
     b"-ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id\r\n"),
    ("XSETID s 9-0 ENTRIESADDED 100 MAXDELETEDID 8-0", b"+OK\r\n"),
    ("XSETID none 9-0", b"-ERR no such key\r\n"),
    ("XTRIM s MAXLEN 1", b":1\r\n"),
    ("XTRIM s MAXLEN ~ 0 LIMIT 0", b":1\r\n"),
    ("XTRIM s", b"-ERR wrong number of arguments for 'xtrim' command\r\n"),
    ("XTRIM s BAD 5", SYNTAX),
    ("XLEN s", b":0\r\n"),
    ("TYPE s", b"+stream\r\n"),
    ("XGROUP DESTROY s g", b":1\r\n"),
    ("XGROUP DESTROY s g", b":0\r\n"),
    ("XADD top 18446744073709551615-18446744073709551615 a 1", b"$41\r\n18446744073709551615-18446744073709551615\r\n"),
    ("XADD top * a 1", b"-ERR The stream has exhausted the last possible ID, unable to add more items\r\n"),
    ("XINFO STREAM none", b"-ERR no such key\r\n"),
    ("XINFO STREAM s BAD", b"-ERR unknown subcommand or wrong number of arguments for 'STREAM'. Try XINFO HELP.\r\n"),
    ("XINFO GROUPS s", b"*0\r\n"),
    ("XINFO CONSUMERS s nog", b"-NOGROUP No such consumer group 'nog' for key name 's'\r\n"),
]  # fmt: skip

OTHER_ROWS: list[tuple[str, bytes]] = [
    ("PING", b"+PONG\r\n"),
    ("PING hi", b"$2\r\nhi\r\n"),
    ("PING a b", b"-ERR wrong number of arguments for 'ping' command\r\n"),
    ("ECHO", b"-ERR wrong number of arguments for 'echo' command\r\n"),
    ("NOSUCH a b", b"-ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b' \r\n"),
    ("CLIENT NOSUCH", b"-ERR unknown subcommand 'NOSUCH'. Try CLIENT HELP.\r\n"),
    ("CLIENT MAINT_NOTIFICATIONS ON", b"-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n"),
    ("CLIENT GETNAME", b"$-1\r\n"),
    ("CLIENT SETNAME me", b"+OK\r\n"),
    ("CLIENT GETNAME", b"$2\r\nme\r\n"),
    ("AUTH secret", b"-ERR AUTH <password> called without any password configured for the default user. Are you sure "
     b"your configuration is correct?\r\n"),
    ("HELLO 4", b"-NOPROTO unsupported protocol version\r\n"),
    ("SELECT 16", b"-ERR DB index is out of range\r\n"),
    ("SELECT x", NOT_INT),
    ("SELECT 3", b"+OK\r\n"),
    ("SET k v", b"+OK\r\n"),
    ("SELECT 0", b"+OK\r\n"),
    ("GET k", b"$-1\r\n"),
    ("SET k v EX 100", b"+OK\r\n"),
    ("SET k w NX", b"$-1\r\n"),
    ("SET k w XX GET", b"$1\r\nv\r\n"),
    ("TTL k", b":-1\r\n"),
    ("SET k w PX", SYNTAX),
    ("SET k w EX 0", b"-ERR invalid expire time in 'set' command\r\n"),
    ("SET k w NX XX", SYNTAX),
    ("EXPIRE k 100", b":1\r\n"),
    ("EXPIRE k 10 GT", b":0\r\n"),
    ("EXPIRE k 10 BAD", b"-ERR Unsupported option BAD\r\n"),
    ("TTL k", b":100\r\n"),
    ("PERSIST k", b":1\r\n"),
    ("PERSIST k", b":0\r\n"),
    ("TTL none", b":-2\r\n"),
    ("EXISTS k k none", b":2\r\n"),
    ("INCR k", NOT_INT),
    ("INCR n", b":1\r\n"),
    ("INCRBY n 41", b":42\r\n"),
    ("DECRBY n 1", b":41\r\n"),
    ("SET n 9223372036854775807", b"+OK\r\n"),
    ("INCR n", b"-ERR increment or decrement would overflow\r\n"),
    ("MSET a 1 b 2", b"+OK\r\n"),
    ("MSET a 1 b", b"-ERR wrong number of arguments for 'mset' command\r\n"),
    ("MGET a none b", b"*3\r\n$1\r\n1\r\n$-1\r\n$1\r\n2\r\n"),
    ("XADD k * a 1", WRONGTYPE),
    ("XLEN k", WRONGTYPE),
    ("XREAD STREAMS k 0", WRONGTYPE),
    ("XACK k g 0", WRONGTYPE),
    ("XINFO STREAM k", WRONGTYPE),
    ("HGET k f", WRONGTYPE),
    ("LPUSH l a b c", b":3\r\n"),
    ("LRANGE l 0 -1", b"*3\r\n$1\r\nc\r\n$1\r\nb\r\n$1\r\na\r\n"),
    ("XADD l * a 1", WRONGTYPE),
    ("HSET h a 1 b 2", b":2\r\n"),
    ("HSET h a", b"-ERR wrong number of arguments for 'hset' command\r\n"),
    ("HGETALL h", b"*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n"),
    ("HMGET h b none", b"*2\r\n$1\r\n2\r\n$-1\r\n"),
    ("HEXISTS h a", b":1\r\n"),
    ("HSTRLEN h a", b":1\r\n"),
    ("HSTRLEN h none", b":0\r\n"),
    ("HDEL h a b x", b":2\r\n"),
    ("EXISTS h", b":0\r\n"),
    ("SADD st a b a", b":2\r\n"),
    ("SISMEMBER st a", b":1\r\n"),
    ("SREM st b c", b":1\r\n"),
    ("SMEMBERS st", b"*1\r\n$1\r\na\r\n"),
    ("RENAME none x", b"-ERR no such key\r\n"),
    ("RENAME st st2", b"+OK\r\n"),
    ("TYPE st2", b"+set\r\n"),
    ("TYPE none", b"+none\r\n"),
    ("OBJECT ENCODING n", b"$3\r\nint\r\n"),
    ("DEL n st2 none", b":2\r\n"),
    ("SCAN x", b"-ERR invalid cursor\r\n"),
    ("CONFIG SET nosuch 1", b"-ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'\r\n"),
    ("CONFIG GET maxmemory", b"*2\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n"),
    ("EXEC", b"-ERR EXEC without MULTI\r\n"),
    ("DISCARD", b"-ERR DISCARD without MULTI\r\n"),
    ("MULTI", b"+OK\r\n"),
    ("MULTI", b"-ERR MULTI calls can not be nested\r\n"),
    ("WATCH a", b"-ERR WATCH inside MULTI is not allowed\r\n"),
    ("INCR c", b"+QUEUED\r\n"),
    ("INCR l", b"+QUEUED\r\n"),
    ("XREAD BLOCK 0 STREAMS none 0", b"+QUEUED\r\n"),
    ("EXEC", b"*3\r\n:1\r\n" + WRONGTYPE + b"*-1\r\n"),
    ("MULTI", b"+OK\r\n"),
    ("NOSUCH", b"-ERR unknown command 'NOSUCH', with args beginning with: \r\n"),
    ("EXEC", b"-EXECABORT Transaction discarded because of previous errors.\r\n"),
    ("WAIT 0 0", b":0\r\n"),
    ("FLUSHDB BAD", SYNTAX),
    ("FLUSHALL", b"+OK\r\n"),
    ("DBSIZE", b":0\r\n"),
    ("RESET", b"+RESET\r\n"),
]  # fmt: skip


@pytest.mark.parametrize("rows", [STREAM_ROWS, OTHER_ROWS], ids=["streams", "others"])
def test_replies_are_those_of_redis_byte_for_byte(server: Server, rows: list[tuple[str, bytes]]) -> None:
    """Each command's RESP2 reply is the one that Redis gives, error texts included."""
    with wire(server) as client:
        for text, expected in rows:
            assert client.raw(*text.split()) == expected, text


RESP3_ROWS: list[tuple[str, bytes]] = [
    ("XADD s 1-1 a 1", b"$3\r\n1-1\r\n"),
    ("XADD none NOMKSTREAM * a 1", b"_\r\n"),
    ("XREAD STREAMS s 0", b"%1\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n"),
    ("XREAD STREAMS s $", b"_\r\n"),
    ("XGROUP CREATE s g 0", b"+OK\r\n"),
    ("XREADGROUP GROUP g c STREAMS s >", b"%1\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n"),
    (
        "XINFO GROUPS s",
        b"*1\r\n%6\r\n$4\r\nname\r\n$1\r\ng\r\n$9\r\nconsumers\r\n:1\r\n$7\r\npending\r\n:1\r\n$17\r\nlast-delivered-id\r\n"
        b"$3\r\n1-1\r\n$12\r\nentries-read\r\n:1\r\n$3\r\nlag\r\n:0\r\n",
    ),
    ("XDEL s 1-1", b":1\r\n"),
    ("XREADGROUP GROUP g c STREAMS s 0", b"%1\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-1\r\n_\r\n"),
    ("XRANGE s - + COUNT 0", b"_\r\n"),
    ("HSET h a 1", b":1\r\n"),
    ("HGETALL h", b"%1\r\n$1\r\na\r\n$1\r\n1\r\n"),
    ("HGET h none", b"_\r\n"),
    ("SADD t a", b":1\r\n"),
    ("SMEMBERS t", b"~1\r\n$1\r\na\r\n"),
    ("CONFIG GET maxmemory", b"%1\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n"),
]


def test_resp3_types(server: Server) -> None:
    """In RESP3, maps are maps, sets are sets and there is one null."""
    with wire(server, resp=3) as client:
        for text, expected in RESP3_ROWS:
            assert client.raw(*text.split()) == expected, text
        assert client.raw("INFO", "server").startswith(b"=")
        client.call("HELLO", "2")
        assert client.raw("HGETALL", "h") == b"*2\r\n$1\r\na\r\n$1\r\n1\r\n"


def test_help_texts(server: Server) -> None:
    """XGROUP HELP and XINFO HELP are Redis' own."""
    with wire(server) as client:
        group, info = client.call("XGROUP", "HELP"), client.call("XINFO", "HELP")
    assert group[0] == b"XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    assert b"    * MKSTREAM" in group
    assert b"    Show information about the stream." in info
    assert info[-2:] == [b"HELP", b"    Prints this help."]


def test_help_texts_are_equal(engine_server: Server, redis_server: Server) -> None:
    """Line for line."""
    with wire(engine_server) as engine, wire(redis_server) as redis:
        for command in ("XGROUP", "XINFO"):
            assert engine.raw(command, "HELP") == redis.raw(command, "HELP")


def test_xinfo_of_7_2_and_later(engine_server: Server) -> None:
    """XINFO CONSUMERS tells `inactive`; a consumer that never got anything has -1 (7.2)."""
    with wire(engine_server) as client:
        client.call("FLUSHALL")
        client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        assert client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">") is None
        (consumer,) = client.call("XINFO", "CONSUMERS", "s", "g")
        assert consumer[::2] == [b"name", b"pending", b"idle", b"inactive"]
        assert consumer[7] == -1


def test_xread_last_entry_of_7_4(engine_server: Server) -> None:
    """XREAD with `+` gives the last entry (7.4)."""
    with wire(engine_server) as client:
        client.call("FLUSHALL")
        assert client.call("XREAD", "STREAMS", "s", "+") is None
        client.call("XADD", "s", "1-1", "a", "1")
        client.call("XADD", "s", "2-1", "a", "2")
        assert client.call("XREAD", "STREAMS", "s", "+") == [[b"s", [[b"2-1", [b"a", b"2"]]]]]
