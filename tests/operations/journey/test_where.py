"""`rstream where`: the lives of entries that a script has led are told as the script has them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from spark_streams.base.ids import MAX_ID
from spark_streams.cli import main
from spark_streams.connector.deadletter.mover import redrive_key
from spark_streams.connector.deadletter.post import FailedEntry, now, post
from spark_streams.connector.deadletter.waiting_entries import return_due_entries
from spark_streams.connector.keys import delays_key, retry_stream, returned_stream
from spark_streams.connector.source.commit_mark import committed_key
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from tests.connector.deadletter.making import fill, redrive
from tools.servers.server import Server

HOUR = 3_600_000


def where(server: Server, *words: str) -> Result:
    return CliRunner().invoke(main, ["where", *words, "--url", server.url], env={"COLUMNS": "300"})


def told(server: Server, *words: str) -> list[dict[str, Any]]:
    """The journeys of these entries."""
    ran = where(server, *words, "--json")
    assert ran.exit_code == 0, ran.output
    found: list[dict[str, Any]] = json.loads(ran.output)
    return found


def lines(server: Server, *words: str) -> list[dict[str, Any]]:
    """The lines of the first journey."""
    found: list[dict[str, Any]] = told(server, *words)[0]["lines"]
    return found


def events(server: Server, *words: str) -> list[tuple[str, bool]]:
    """Event of each line, and whether it is exact."""
    return [(line["event"], line["exact"]) for line in lines(server, *words)]


def one(server: Server, event: str, *words: str) -> dict[str, Any]:
    """The only line of an event."""
    [line] = [line for line in lines(server, *words) if line["event"] == event]
    return line


def fail(server: Server, entry: str, to: str, stream: str = "orders", **told_of: str) -> None:
    """Post the entry as a query of group `etl` does: to a dead-letter stream, or to a retry stream."""
    with connect(Address.parse(server.url)) as connection:
        fields = connection.execute("XRANGE", stream, entry, entry)[0][1]
        envelope = {"stream": stream, "id": entry, "group": "etl", "consumer": "spark", "last-failed": now()}
        failed = FailedEntry(stream, entry.encode(), fields, envelope | told_of, pending_for="spark")
        assert post(connection, to, "etl", [failed]) == 1


@pytest.fixture
def orders(client: redis.Redis) -> list[str]:
    """Ten entries of an hour ago. Group etl has them all, and has acknowledged 1; group late stands behind the 3rd."""
    since = int(time.time() * 1000) - HOUR
    ids = [f"{since + n}-0" for n in range(1, 11)]
    for n, entry in enumerate(ids):
        client.xadd("orders", {"n": n}, id=entry)
    client.xgroup_create("orders", "etl", id="0")
    client.xgroup_create("orders", "late", id=ids[2])
    client.xreadgroup("etl", "spark", {"orders": ">"})
    client.xack("orders", "etl", ids[0])
    return ids


def test_an_entry_that_is_not_delivered_has_the_number_of_those_before_it(server: Server, orders: list[str]) -> None:
    line = one(server, "not delivered", "orders", orders[7])
    assert (line["group"], line["before"], line["exact"]) == ("late", 4, True)
    cut = one(server, "not delivered", "orders", orders[7], "--limit", "2")
    assert (cut["before_at_least"], cut["exact"]) == (2, False)
    assert "--limit" in cut["because"]


def test_a_pending_entry_has_its_consumer_its_deliveries_and_its_idle_time(
    server: Server, client: redis.Redis, orders: list[str]
) -> None:
    client.xclaim("orders", "etl", "other", 0, [orders[4]])
    line = one(server, "pending", "orders", orders[4])
    assert (line["group"], line["consumer"], line["deliveries"]) == ("etl", "other", 2)
    assert 0 <= line["idle_ms"] < 60_000
    added = one(server, "added", "orders", orders[4])
    assert (added["at_ms"], added["exact"]) == (int(orders[4].partition("-")[0]), True)


def test_an_acknowledged_entry_and_one_that_the_group_passed_leave_the_same_trace(
    server: Server, client: redis.Redis, orders: list[str]
) -> None:
    by_group = {line["group"]: line for line in lines(server, "orders", orders[0])}
    for group in ("etl", "late"):
        assert by_group[group]["event"] == "acknowledged or passed"
        assert "no acknowledgement" in by_group[group]["because"]
    client.set(str(committed_key("orders", "late", "spark"), "ascii"), f"{orders[2]} 0.3")
    by_group = {line["group"]: line for line in lines(server, "orders", orders[0])}
    assert (by_group["late"]["event"], by_group["late"]["exact"]) == ("never", True)
    assert by_group["late"]["begins_above"] == orders[2]
    client.set(str(committed_key("orders", "etl", "spark"), "ascii"), f"{orders[9]} 12.a-b")
    assert "batch 12 of the stream for spark" in one_of(lines(server, "orders", orders[0]), "etl")["text"]


def one_of(found: list[dict[str, Any]], group: str) -> dict[str, Any]:
    [line] = [line for line in found if line["group"] == group]
    return line


def test_what_has_left_the_stream_is_told_as_far_as_the_server_records_it(
    server: Server, client: redis.Redis, orders: list[str]
) -> None:
    client.xtrim("orders", minid=orders[3], approximate=False)
    assert (one(server, "trimmed", "orders", orders[2])["exact"]) is True  # it is pending for etl: lost by the trim
    never = one(server, "absent", "orders", orders[0])  # acknowledged: it may as well never have been added
    assert (never["possible"], never["exact"]) == (["trimmed", "never added"], False)
    between = one(server, "absent", "orders", orders[5].replace("-0", "-1"))
    assert (between["possible"], between["exact"]) == (["trimmed", "never added"], False)
    client.xdel("orders", orders[6], orders[7])
    assert one(server, "deleted", "orders", orders[7])["exact"] is True
    assert one(server, "deleted", "orders", orders[6])["exact"] is True  # it is pending, and not at the head
    above = orders[9].replace("-0", "-5")
    assert events(server, "orders", above) == [("never added", False)]
    assert "XSETID" in one(server, "never added", "orders", above)["because"]
    late = one_of(lines(server, "orders", orders[7]), "late")
    assert (late["event"], late["exact"]) == ("never", True)
    client.pexpire("orders", HOUR)
    assert one(server, "expires", "orders", orders[5])["at_ms"] > time.time() * 1000
    client.delete("orders")
    fill(server, 1, stream="orders", id=orders[0], has_group=False)
    gone = one(server, "absent", "orders", orders[0])
    assert (gone["exact"], "no trace" in gone["because"]) == (False, True)


def test_an_entry_waits_for_a_retry_is_returned_and_dies(
    server: Server, client: redis.Redis, orders: list[str]
) -> None:
    entry = orders[3]
    client.set(str(delays_key("orders", "etl"), "ascii"), "60000 120000")
    waits_in = retry_stream("orders", "etl", 1)
    fail(server, entry, waits_in, deliveries="1")
    line = one(server, "waiting", "orders", entry)
    assert (line["attempt"], line["stream"], line["exact"]) == (2, waits_in, True)
    assert line["due_ms"] == int(line["id"].partition("-")[0]) + 60_000
    delivered = one_of([one for one in lines(server, "orders", entry) if one["event"] != "waiting"], "etl")
    assert (delivered["event"], delivered["exact"]) == ("delivered", True)

    returned = returned_stream("orders", "etl")
    with connect(Address.parse(server.url)) as connection:
        assert return_due_entries(connection, waits_in, returned, "etl", MAX_ID) == 1
    assert "waiting" not in dict(events(server, "orders", entry))
    assert one(server, "returned", "orders", entry)["stream"] == returned
    undelivered = [line for line in lines(server, "orders", entry) if line["event"] == "not delivered"]
    assert {line["group"]: line["before"] for line in undelivered} == {"late": 0, "etl": 0}
    client.xreadgroup("etl", "spark", {returned: ">"})
    assert one(server, "pending", "orders", entry)["consumer"] == "spark"

    fail(server, orders[4], "orders:dead", reason="decode", message="n does not fit", batch="7")
    dead = one(server, "dead", "orders", orders[4])
    assert (dead["reason"], dead["batch"], dead["same_fields"], dead["exact"]) == ("decode", "7", True, True)
    assert dead["stream"] == "orders:dead"


def test_a_forged_dead_letter_is_not_exact(server: Server, client: redis.Redis, orders: list[str]) -> None:
    fill(server, 1, into="orders:dead", stream="orders", id=orders[4], group="etl", has_group=False)
    line = one(server, "dead", "orders", orders[4])
    assert (line["exact"], line["same_fields"]) == (False, False)
    assert "any client" in line["because"]
    client.xack("orders", "etl", orders[4])  # the forged dead letter proves nothing about the group
    groups = [line for line in lines(server, "orders", orders[4]) if line["event"] != "dead"]
    assert one_of(groups, "etl")["event"] == "acknowledged or passed"
    forged = f"{int(orders[9].partition('-')[0]) + 1}-0"
    fill(server, 1, into="orders:dead", stream="orders", id=forged, group="etl", has_group=False)
    assert "XSETID" in one(server, "never added", "orders", forged)["because"]


def test_a_mark_that_a_producer_forges_sends_no_dead_letter_back(
    server: Server, client: redis.Redis, orders: list[str]
) -> None:
    fail(server, orders[4], "orders:dead", reason="decode")
    [(letter, _)] = client.xrange("orders:dead")
    client.xadd("orders", {"n": 5, "dl.redriven": f"1 2026-01-01T00:00:00Z orders:dead/{letter}"})
    line = one(server, "sent back", "orders:dead", letter)
    assert (line["exact"], "any producer" in line["because"]) == (False, True)


def test_a_mark_that_a_producer_forges_is_no_proof_after_a_purge(
    server: Server, client: redis.Redis, orders: list[str]
) -> None:
    """The dead letter was deleted, and not sent back."""
    fail(server, orders[4], "orders:dead", reason="decode")
    [(letter, _)] = client.xrange("orders:dead")
    client.xadd("orders", {"n": 5, "dl.redriven": f"1 2026-01-01T00:00:00Z orders:dead/{letter}"})
    client.xdel("orders:dead", letter)
    line = one(server, "sent back", "orders:dead", letter)
    assert (line["exact"], "any producer" in line["because"]) == (False, True)
    assert "perhaps sent back as orders/" in told(server, "orders:dead", letter)[0]["verdict"]


def test_never_added_is_not_proved_by_counts_that_xsetid_has_set(server: Server, client: redis.Redis) -> None:
    for n in range(1, 6):
        client.xadd("reset", {"n": n}, id=f"{n}-0")
    client.xtrim("reset", maxlen=0, approximate=False)
    client.execute_command("XSETID", "reset", "2-0", "ENTRIESADDED", "0", "MAXDELETEDID", "0-0")
    for entry in ("1-0", "4-0"):
        line = one(server, "never added", "reset", entry)
        assert (line["exact"], "XSETID" in line["because"]) == (False, True)
        assert told(server, "reset", entry)[0]["verdict"] == "perhaps never added"


def test_a_hole_that_a_trim_of_acknowledged_entries_leaves_is_no_proof(engine_server: Server) -> None:
    with engine_server.client(decode_responses=True) as client:
        client.flushall()
        for n in range(1, 6):
            client.xadd("orders", {"n": n}, id=f"{n}-0")
        client.xgroup_create("orders", "etl", id="0")
        client.xreadgroup("etl", "spark", {"orders": ">"})
        client.xack("orders", "etl", "3-0")
        client.execute_command("XTRIM", "orders", "MINID", "5-0", "ACKED")
        assert [entry for entry, _ in client.xrange("orders")] == ["1-0", "2-0", "4-0", "5-0"]
    line = one(engine_server, "absent", "orders", "3-0")
    assert (line["possible"], line["exact"]) == (["trimmed", "never added"], False)


def test_a_dead_letter_is_followed_to_the_entry_that_it_was_sent_back_as(
    server: Server, client: redis.Redis, orders: list[str]
) -> None:
    fail(server, orders[4], "orders:dead", reason="decode")
    [(letter, _)] = client.xrange("orders:dead")
    assert dict(events(server, "orders:dead", letter))["not sent back"] is True
    assert one(server, "copy", "orders:dead", letter)["of_id"] == orders[4]
    redrive(server, stream="orders:dead")
    [first, second] = told(server, "orders:dead", letter)
    back = client.xrevrange("orders", count=1)[0][0]
    [sent] = [line for line in first["lines"] if line["event"] == "sent back"]
    assert (sent["id"], sent["stream"], sent["redrive"], sent["exact"]) == (back, "orders", 1, False)
    assert "any producer may write this field" in sent["because"]
    assert (second["stream"], second["id"]) == ("orders", back)
    assert [line["previous"] for line in second["lines"] if line["event"] == "sent back from"] == [
        f"orders:dead/{letter}"
    ]
    # The new one names the first entry, too.
    [origin, third] = told(server, "orders", orders[4])
    by_event = {line["event"]: line for line in origin["lines"]}
    assert by_event["no dead letter"]["exact"]
    assert (by_event["sent back"]["id"], by_event["sent back"]["exact"]) == (back, False)
    assert third == second
    # So does the dead letter of it, and what that is sent back as.
    client.xreadgroup("etl", "spark", {"orders": ">"})
    fail(server, back, "orders:dead", reason="decode")
    client.xdel("orders", back)
    [again] = client.xrange("orders:dead")
    sent = one(server, "sent back", "orders", orders[4])
    assert (sent["stream"], sent["id"], sent["redrive"]) == ("orders:dead", again[0], 1)
    redrive(server, stream="orders:dead")
    [_, last] = told(server, "orders", orders[4])
    assert last["id"] == client.xrevrange("orders", count=1)[0][0]
    assert [line["first"] for line in last["lines"] if line["event"] == "sent back from"] == [orders[4]]
    client.xdel("orders", last["id"])
    assert "nothing in orders" in one(server, "sent back", "orders", orders[4])["because"]
    assert "was deleted" in one(server, "sent back", "orders:dead", letter)["because"]


def test_a_dead_letter_that_was_sent_to_another_stream_is_found_there(
    server: Server, client: redis.Redis, orders: list[str]
) -> None:
    """The first ID and the dead letter tell it, and so does the dead letter of what was sent there."""
    fail(server, orders[4], "orders:dead", reason="decode")
    [(letter, _)] = client.xrange("orders:dead")
    redrive(server, stream="orders:dead", to="repaired")
    assert "--sent-to" in one(server, "sent back", "orders", orders[4])["because"]
    assert "--sent-to" in one(server, "sent back", "orders:dead", letter)["because"]
    [(back, _)] = client.xrange("repaired")
    for words in (("orders", orders[4]), ("orders:dead", letter)):
        [first, second] = told(server, *words, "--sent-to", "repaired")
        [sent] = [line for line in first["lines"] if line["event"] == "sent back"]
        assert (sent["stream"], sent["id"], sent["redrive"], sent["exact"]) == ("repaired", back, 1, False)
        assert (second["stream"], second["id"]) == ("repaired", back)
    client.xgroup_create("repaired", "etl", "0")
    client.xreadgroup("etl", "spark", {"repaired": ">"})
    fail(server, back, "orders:dead", "repaired")
    client.delete("repaired")
    sent = one(server, "sent back", "orders", orders[4], "--sent-to", "repaired")
    assert (sent["stream"], sent["redrive"]) == ("orders:dead", 1)


def test_no_name_or_value_of_a_stranger_reaches_the_terminal_raw(server: Server, client: redis.Redis) -> None:
    evil = "a\x1b[31m\u202eb"
    entry = client.xadd(evil, {evil: evil})
    client.xgroup_create(evil, evil, id="0")
    client.xreadgroup(evil, evil, {evil: ">"})
    letter = fill(server, 1, into="orders:dead", stream=evil, id=entry, group=evil, reason=evil, message=evil)[0]
    for words in ((evil, entry), ("orders:dead", letter)):
        for more in ((), ("--json",)):
            ran = where(server, *words, *more)
            assert ran.exit_code == 0, ran.output
            assert "\x1b" not in ran.output
            assert "\u202e" not in ran.output
    for wrong in ("\x1b[31m", "5", "x-y"):
        ran = where(server, evil, wrong)
        assert ran.exit_code == 2
        assert "\x1b" not in ran.output


def test_a_missing_stream_is_an_error_with_the_nearest_name(server: Server, orders: list[str]) -> None:
    ran = where(server, "order", "1-0")
    assert ran.exit_code == 1
    assert "orders" in str(ran.exception or "") + ran.output


def told_to_one_who_may_only_look(server: Server, *words: str) -> list[dict[str, Any]]:
    """The lines that a user gets who may read streams, but none of the product's keys."""
    rights = ("xinfo", "xrange", "xrevrange", "xlen", "xpending", "time", "echo", "scan", "type", "hello", "auth")
    with server.client(decode_responses=True) as client:
        client.execute_command("ACL", "SETUSER", "look", "reset", "on", ">p", "~*", *[f"+{right}" for right in rights])
        client.execute_command("ACL", "SETUSER", "look", "+client", "+ping", "+info", "+select")
        command = ["where", *words, "--json", "--url", server.url]
        ran = CliRunner().invoke(main, command, env={"RSTREAM_USERNAME": "look", "RSTREAM_PASSWORD": "p"})
        client.execute_command("ACL", "DELUSER", "look")
    assert ran.exit_code == 0, ran.output
    found: list[dict[str, Any]] = json.loads(ran.output)[0]["lines"]
    return found


def test_a_user_who_may_only_look_is_told_what_stays_unknown(redis_server: Server) -> None:
    with redis_server.client(decode_responses=True) as client:
        client.flushall()
        entry, waiting = client.xadd("orders", {"n": 1}), client.xadd("orders", {"n": 2})
        client.xgroup_create("orders", "etl", id="0")
        client.xreadgroup("etl", "spark", {"orders": ">"})
        fail(redis_server, entry, "orders:dead", reason="decode")
        fail(redis_server, waiting, retry_stream("orders", "etl", 1), deliveries="1")
        client.set(str(delays_key("orders", "etl"), "ascii"), "60000")
        client.set(str(committed_key("orders", "etl", "spark"), "ascii"), f"{entry} 1.a-b")
        letter = client.xrange("orders:dead")[0][0]
    for event, words in {
        "dead": ("orders", entry), "waiting": ("orders", waiting), "sent back": ("orders:dead", letter)
    }.items():  # fmt: skip
        [line] = [line for line in told_to_one_who_may_only_look(redis_server, *words) if line["event"] == event]
        assert (line["exact"], "may not read" in line["because"]) == (False, True), line


def test_a_redrive_whose_state_another_version_has_written_may_be_moving_the_letter(
    server: Server, client: redis.Redis, orders: list[str]
) -> None:
    fail(server, orders[4], "orders:dead")
    letter = client.xrange("orders:dead")[0][0]
    assert one(server, "not sent back", "orders:dead", letter)["exact"]
    client.set(str(redrive_key("orders:dead"), "ascii"), "a form of another version")
    assert not one(server, "sent back", "orders:dead", letter)["exact"]


def test_the_text_has_a_line_for_each_event_with_its_source(server: Server, orders: list[str]) -> None:
    output = where(server, "orders", orders[7]).output
    assert output.splitlines()[0] == (
        f"orders {orders[7]}: in the stream; pending in group etl; not delivered to group late"
    )
    assert "not delivered yet, as the group stands: 4 entries before it" in output
    assert "exact" in output
    assert "XINFO GROUPS, XRANGE" in output


@pytest.mark.parametrize("option", ["--archive", "--table"])
def test_a_uri_with_a_login_is_refused(server: Server, option: str) -> None:
    """Before it stands in an error, a line or its JSON."""
    ran = where(server, "s", "1-1", "--json", "--checkpoint", "/nowhere", option, "s3://KEY:SECRET@bucket/x")
    assert ran.exit_code == 2
    assert "has a login: give it by the environment or by a role" in ran.output
    assert "SECRET" not in ran.output
