"""Where a redrive may write: what a dead letter says of its stream and its group is what somebody wrote."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
import redis

from spark_streams.connector.deadletter.envelope import dead_letter_fields
from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.keys import returned_stream
from spark_streams.dead_letters import write
from tests.connector.deadletter.making import DEAD, fill, numbers, record_origin, redrive
from tests.connector.deadletter.test_cli import dead
from tools.servers.server import Server


def forge(server: Server, stream: bytes | str, group: bytes | str = "g", into: str = DEAD, n: int = 1) -> None:
    """Append a dead letter that names this stream and this group."""
    with server.client() as client:
        told = {"id": "1-0", "reason": "odd"}
        fields: list[Any] = dead_letter_fields([b"n", b"%d" % n], told)
        fields[fields.index(b"dl.stream") + 1] = stream
        fields[fields.index(b"dl.group") + 1] = group
        client.execute_command("XADD", into, "*", *fields)


OWN = ["rstream:retry:{s}:g:1", returned_stream("s", "g"), "rstream:lease:{s}:g:c", "rstream:anything"]


@pytest.mark.parametrize("allow", [(), ("*",), ("rstream:*",)])
@pytest.mark.parametrize("own", OWN)
def test_no_dead_letter_goes_to_a_key_of_the_product(server: Server, own: str, allow: tuple[str, ...]) -> None:
    """Whatever is allowed, and whether the group is there."""
    with server.client() as client:
        client.xgroup_create(own, "g", id="0", mkstream=True)
        forge(server, own)
        for report in (redrive(server, dry_run=True, allow=allow), redrive(server, allow=allow)):
            assert (report.moved, report.refused) == (0, 1)
            assert report.destinations() == [("refuse", own, 1)]
        assert (client.xlen(own), client.xlen(DEAD)) == (0, 1)
    with pytest.raises(InvalidOptionError, match="a redrive never writes to them"):
        redrive(server, to=own)
    with pytest.raises(InvalidOptionError, match="a redrive never writes to them"):
        redrive(server, parking=own)


def test_a_stream_that_no_query_has_recorded_gets_nothing_unless_it_is_named(server: Server) -> None:
    fill(server, 6)
    with server.client() as client:
        client.xgroup_create("payments", "g", id="0", mkstream=True)
        client.set("text", "x")
        for stream in ("payments", "new", "text", b"\xff", "a\nb"):
            forge(server, stream)
        forge(server, "payments", b"\xff")
        looked = redrive(server, dry_run=True)
        report = redrive(server)
        assert (looked.moved, looked.refused) == (report.moved, report.refused) == (6, 6)
        assert looked.destinations() == report.destinations()
        assert ("move", "s", 6) in report.destinations()
        assert ("refuse", "payments", 2) in report.destinations()
        assert client.xlen("payments") == 0
        assert not client.exists("new", b"\xff", "a\nb")
        assert numbers(server) == list(range(6))
        named = redrive(server, allow=("new", "pay*"))
        assert (named.moved, named.refused) == (3, 3)
        assert (client.xlen("payments"), client.xlen("new")) == (2, 1)


def test_a_forged_dead_letter_names_no_other_stream_of_a_known_group(server: Server) -> None:
    """Group g reads payments, too, and its dead letters go to another stream."""
    fill(server, 2)
    with server.client() as client:
        client.xgroup_create("payments", "g", id="0", mkstream=True)
        record_origin(client, "other:dead", "payments", "g")
        forge(server, "payments")
        forge(server, "s", "other")
        forge(server, "s g", "")
        report = redrive(server)
        assert (report.moved, report.refused) == (2, 3)
        assert not client.exists("s g")
        assert client.xlen("payments") == 0


def test_a_parking_stream_has_the_origins_of_its_dead_letter_stream(server: Server) -> None:
    fill(server, 3)
    assert redrive(server, max_redrives=0).parked == 3
    with server.client() as client:
        forge(server, "payments", into=f"{DEAD}:parked")
        report = redrive(server, stream=f"{DEAD}:parked", max_redrives=9)
        assert (report.moved, report.refused, client.xlen("s")) == (3, 1, 3)


@pytest.mark.parametrize("stream", ["s", "{t}s", "ä:%", "a b"])
def test_an_entry_that_becomes_a_dead_letter_can_be_sent_back(server: Server, stream: str) -> None:
    """What writes the dead letter records the origin."""
    with server.client(decode_responses=True) as client:
        for to in (DEAD, f"{stream}:dead"):
            entry = client.xadd(stream, {"n": 1})
            with contextlib.suppress(redis.ResponseError):
                client.xgroup_create(stream, "g g", id="0")
            client.xreadgroup("g g", "c", {stream: ">"})
            assert write(client, stream, "g g", entry, {"n": 1}, to=to)
            assert redrive(server, stream=to).moved == 1
    assert numbers(server, stream) == [1, 1, 1, 1]


def test_named_streams_are_the_only_ones(server: Server) -> None:
    """So a forged group opens no other stream."""
    fill(server, 4)
    with server.client() as client:
        client.xgroup_create("payments", "pay", id="0", mkstream=True)
        forge(server, "payments", "pay")
        report = redrive(server, allow=("s",))
        assert (report.moved, report.refused, client.xlen("payments")) == (4, 1, 0)
    with pytest.raises(InvalidOptionError, match="Set it without allow"):
        redrive(server, allow=("s",), to="s")


def test_a_redrive_lists_its_destinations_first(server: Server) -> None:
    fill(server, 3)
    forge(server, "pay\u202e[red]")
    shown = dead(server, "redrive", DEAD).output
    first, s, pay, *_ = sorted(shown.splitlines()[:3], key=lambda line: not line.startswith("destination"))
    assert first.split() == ["destination", "dead", "letters", "action"]
    assert [line.split()[1] for line in (s, pay)] in (["3", "1"], ["1", "3"])
    assert "pay\\u202e[red]" in shown
    assert "1 stay: no query has recorded that stream and group as an origin, or --allow does not" in shown
    told = json.loads(dead(server, "redrive", DEAD, "--yes", "--json", "--allow", "s").output)
    assert (told["moved"], told["refused"]) == (3, 1)
    assert {"action": "move", "to": "s", "letters": 3} in told["destinations"]
