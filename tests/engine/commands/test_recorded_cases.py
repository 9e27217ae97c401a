"""Cases on which users of other fakes and engines have stumbled: the same on the bundled engine and on a real Redis."""

from __future__ import annotations

from contextlib import ExitStack

from tests.engine.wire import Failed, Wire, wait_blocked, wire
from tools.servers.server import Server


def filled(client: Wire, *numbers: int) -> None:
    """A stream `s` with a group `g` at its beginning."""
    for number in numbers:
        client.call("XADD", "s", f"{number}-0", "n", number)
    client.call("XGROUP", "CREATE", "s", "g", "0")


def entry(number: int) -> list[object]:
    return [b"%d-0" % number, [b"n", b"%d" % number]]


def test_entries_deleted_while_pending(server: Server) -> None:
    """History shows them as an id with nil and does not count that as a delivery; XCLAIM and XACK get rid of them."""
    with wire(server) as client:
        filled(client, 1, 2, 3)
        client.call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", ">")
        client.call("XDEL", "s", "2-0")
        assert client.call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", "0") == [
            [b"s", [entry(1), [b"2-0", None], entry(3)]]
        ]
        assert [row[3] for row in client.call("XPENDING", "s", "g", "-", "+", "9")] == [2, 1, 2]
        assert client.call("XCLAIM", "s", "g", "bob", "0", "2-0", "3-0") == [entry(3)]
        assert client.call("XPENDING", "s", "g")[:3] == [2, b"1-0", b"3-0"]
        client.call("XTRIM", "s", "MAXLEN", "0")
        assert client.call("XACK", "s", "g", "1-0", "2-0", "3-0") == 2


def test_xautoclaim_names_what_is_deleted(server: Server) -> None:
    """Its third element; what it names is pending no more, and counts against COUNT."""
    with wire(server) as client:
        filled(client, 1, 2, 3, 4)
        client.call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", ">")
        client.call("XDEL", "s", "1-0", "3-0")
        assert client.call("XAUTOCLAIM", "s", "g", "bob", "0", "0", "COUNT", "2") == [b"3-0", [entry(2)], [b"1-0"]]
        assert client.call("XAUTOCLAIM", "s", "g", "bob", "0", "3-0") == [b"0-0", [entry(4)], [b"3-0"]]
        assert client.call("XPENDING", "s", "g")[0] == 2


def test_noack_leaves_nothing_pending(server: Server) -> None:
    """The group moves on, its counters count, the consumer is there."""
    with wire(server) as client:
        filled(client, 1, 2)
        assert client.call("XREADGROUP", "GROUP", "g", "ann", "NOACK", "STREAMS", "s", ">") == [
            [b"s", [entry(1), entry(2)]]
        ]
        assert client.call("XPENDING", "s", "g")[0] == 0
        (group,) = client.call("XINFO", "GROUPS", "s")
        assert dict(zip(group[::2], group[1::2], strict=True)) == {
            b"name": b"g", b"consumers": 1, b"pending": 0, b"last-delivered-id": b"2-0", b"entries-read": 2, b"lag": 0,
        }  # fmt: skip


def test_groups_of_keys_that_do_not_exist(server: Server) -> None:
    """Each XGROUP subcommand fails; MKSTREAM makes an empty stream, which stays; a second time it is busy."""
    with wire(server) as client:
        for words in ("CREATE s g $", "SETID s g $", "DESTROY s g", "CREATECONSUMER s g ann", "DELCONSUMER s g ann"):
            reply = client.call("XGROUP", *words.split())
            assert isinstance(reply, Failed), words
            assert "requires the key to exist" in reply
        assert client.call("XINFO", "GROUPS", "s") == "ERR no such key"
        assert client.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM") == b"OK"
        assert (client.call("TYPE", "s"), client.call("XLEN", "s")) == (b"stream", 0)
        assert str(client.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")).startswith("BUSYGROUP")
        assert client.call("XGROUP", "DESTROY", "s", "g") == 1
        assert client.call("EXISTS", "s") == 1


def test_an_entry_wakes_one_reader_of_each_group(server: Server) -> None:
    """Readers of several groups wait on several streams: one of each group is served, the others wait on."""
    with ExitStack() as stack:
        client = stack.enter_context(wire(server))
        for key in ("s", "t"):
            for group in ("g", "h"):
                client.call("XGROUP", "CREATE", key, group, "$", "MKSTREAM")
        readers = {(group, name): stack.enter_context(wire(server)) for group in "gh" for name in ("first", "second")}
        for number, ((group, name), reader) in enumerate(readers.items()):
            reader.send("XREADGROUP", "GROUP", group, name, "BLOCK", "0", "STREAMS", "s", "t", ">", ">")
            wait_blocked(client, number + 1)
        client.call("XADD", "t", "1-0", "n", "1")
        for group in "gh":
            assert readers[group, "first"].reply() == [[b"t", [entry(1)]]]
        wait_blocked(client, 2)
        client.call("XADD", "s", "2-0", "n", "2")
        for group in "gh":
            assert readers[group, "second"].reply() == [[b"s", [entry(2)]]]


def test_lag_after_a_deletion(server: Server) -> None:
    """Unknown while a deleted entry lies ahead of the group, known again once it is behind."""
    with wire(server) as client:
        filled(client, 1, 2, 3, 4)

        def lag() -> object:
            return client.call("XINFO", "GROUPS", "s")[0][11]

        assert lag() == 4
        client.call("XREADGROUP", "GROUP", "g", "ann", "COUNT", "1", "STREAMS", "s", ">")
        assert lag() == 3
        client.call("XDEL", "s", "3-0")
        assert lag() is None
        client.call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", ">")
        assert lag() == 0
        client.call("XADD", "s", "5-0", "n", "5")
        assert lag() == 1


def test_xinfo_full(server: Server) -> None:
    """Entries, groups, their pending entries and those of each consumer, as many as COUNT says."""
    with wire(server) as client:
        filled(client, 1, 2, 3)
        client.call("XREADGROUP", "GROUP", "g", "bob", "COUNT", "1", "STREAMS", "s", ">")
        client.call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", ">")
        reply = client.call("XINFO", "STREAM", "s", "FULL", "COUNT", "2")
        info = dict(zip(reply[::2], reply[1::2], strict=True))
        assert info[b"entries"] == [entry(1), entry(2)]
        (group,) = [dict(zip(one[::2], one[1::2], strict=True)) for one in info[b"groups"]]
        assert [(row[0], row[1], row[3]) for row in group[b"pending"]] == [(b"1-0", b"bob", 1), (b"2-0", b"ann", 1)]
        consumers = [dict(zip(one[::2], one[1::2], strict=True)) for one in group[b"consumers"]]
        assert [(one[b"name"], one[b"pel-count"], len(one[b"pending"])) for one in consumers] == [
            (b"ann", 2, 2), (b"bob", 1, 1),
        ]  # fmt: skip
