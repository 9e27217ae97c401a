"""What a user lacks is found out without carrying anything out; and what is asked for is what each use really takes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

import pytest
import redis

from spark_streams.connector.deadletter.redrive import DeadLetterRedrive
from spark_streams.connector.deadletter.redrive_plan import RedriveOptions
from spark_streams.connector.lag.survey import survey, view_streams
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.batch_commit import begin_job, begin_run, void_batch
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.scan import list_streams
from spark_streams.operations.doctor.rights import (
    LOOKING,
    OWN,
    READING,
    REDRIVE,
    USES,
    WRITING,
    Missing,
    ask_rights,
    names_of,
    rights_findings,
)
from spark_streams.operations.doctor.server_facts import Level
from tests.connector.sink.writing import batch_of, close, frame, numbers, options, write
from tests.connector.source.limited_user import read_in_all_ways
from tests.legs.identity.documented_rights import rights
from tools.key_copies import copies
from tools.servers.server import Server, running_redis, skip_without_redis

Makes = Callable[..., Server]


@pytest.fixture
def user(redis_server: Server) -> Iterator[Makes]:
    """Makes a user with these rights. (The bundled engine has one user only.)"""
    with redis_server.client() as admin:
        admin.flushall()

        def make(*rights: str) -> Server:
            if admin.info("server")["redis_version"].startswith("6."):  # it has no rights for reading alone
                rights = tuple(right.replace("%R~", "~") for right in rights)
            admin.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", *rights)
            return Server("redis", redis_server.url.replace("://", "://limited:pw@"))

        yield make
        admin.acl_deluser("limited")


def lacking(server: Server, *streams: str, uses: tuple[str, ...] = USES) -> dict[str, tuple[str, ...]]:
    with Connection(Address.parse(server.url)) as connection:
        found = ask_rights(connection, uses, streams)
        assert connection.execute("ECHO", "in step") == b"in step"
    return {use: missing.rights for use, missing in found.items()}


@pytest.mark.parametrize("streams", [("s",), ()])
def test_a_command_that_the_server_does_not_know_is_lacking(streams: tuple[str, ...]) -> None:
    """The operator has renamed it. A query that needs it fails."""
    skip_without_redis()
    with running_redis("--rename-command", "XCLAIM", "") as server:
        missing = lacking(server, *streams)
        assert missing == {LOOKING: (), READING: ("xclaim",), WRITING: (), REDRIVE: ()}
        found = list(rights_findings("default", {use: Missing(rights) for use, rights in missing.items()}, streams))
    assert [one.level for one in found] == [Level.WARNING, Level.OK]
    assert found[0].remedy == "the server does not know xclaim: remove rename-command from its configuration"


def test_who_may_do_everything_lacks_nothing_and_nothing_is_done(server: Server) -> None:
    with server.client() as client:
        client.xadd("orders", {"a": 1})
        client.xgroup_create("orders", "g", id="0")
        client.set(OWN, "somebody's")
        before = copies(client, ("orders", OWN))
        assert set(lacking(server, "orders", "payments").values()) == {()}
        assert copies(client, ("orders", OWN)) == before
        assert sorted(client.scan_iter()) == [b"orders", OWN.encode()]


@pytest.mark.parametrize(
    ("rights", "lacks"),
    [
        (("~*", "+@all", "-xadd"), {LOOKING: (), READING: ("+xadd",), WRITING: ("+xadd",), REDRIVE: ("+xadd",)}),
        (("~*", "+@all", "-client"), {LOOKING: (), READING: ("+client|reply",), WRITING: (), REDRIVE: ()}),
        (("~*", "+@all", "-wait"), {LOOKING: (), READING: (), WRITING: ("+wait",), REDRIVE: ()}),
        (("~*", "+@all", "-watch"), {LOOKING: (), READING: ("+watch",), WRITING: ("+watch",), REDRIVE: ("+watch",)}),
        (("~orders", "~rstream:*", "+@all"), dict.fromkeys(USES, ("~payments",))),
        (("~orders", "~payments", "+@all"), {use: () if use == LOOKING else ("~rstream:*",) for use in USES}),
    ],
)
def test_what_is_missing_is_named_for_each_use(
    user: Makes, rights: tuple[str, ...], lacks: dict[str, tuple[str, ...]]
) -> None:
    assert lacking(user(*rights), "orders", "payments") == lacks


def test_without_client_reply_a_query_works_and_it_is_said(user: Makes) -> None:
    with Connection(Address.parse(user("~*", "+@all", "-client|reply").url)) as connection:
        [one, _] = rights_findings("limited", ask_rights(connection, (READING, WRITING), []), [])
    assert (one.level, one.observation) == (
        Level.NOTE,
        "replies cannot be suppressed for user limited (CLIENT REPLY)",
    )


def test_without_transactions_one_can_still_look_and_the_rest_is_unknown(user: Makes, redis_server: Server) -> None:
    server = user("~*", "+@stream", "+@connection", "+time", "+type")
    with Connection(Address.parse(server.url)) as connection:
        found = ask_rights(connection, (LOOKING, WRITING), ["orders"])
    assert found[LOOKING].rights == ("+scan",)
    assert {"+multi", "+watch", "+discard"} & set(found[WRITING].rights)
    one, other = rights_findings("limited", found, ["orders"])
    assert (one.level, one.observation) == (Level.WARNING, "user limited lacks rights for looking: +scan")
    assert "the other rights cannot be checked without MULTI and DISCARD" in other.observation
    assert other.remedy.startswith("ACL SETUSER limited +")
    assert other.remedy.endswith(" +@transaction; then run this again")
    with redis_server.client() as client:
        assert client.dbsize() == 0


def test_the_remedy_gives_rights_on_a_stream_of_any_name(user: Makes, redis_server: Server) -> None:
    server, name = user("~other", "+@all", "-xinfo"), "it's [1]"
    with Connection(Address.parse(server.url)) as connection:
        [one] = rights_findings("limited", ask_rights(connection, (LOOKING,), [name]), [name])
    with redis_server.client() as client:
        client.execute_command(*shlex.split(one.remedy))
    assert lacking(server, name, uses=(LOOKING,)) == {LOOKING: ()}


def test_where_no_stream_is_named_none_is_asked_for(user: Makes) -> None:
    assert lacking(user("~orders", "+@all"), uses=(LOOKING, READING)) == {LOOKING: (), READING: ("~rstream:*",)}
    assert lacking(user("~orders", "+@all", "-xack"), uses=(READING,)) == {READING: ("+xack", "~rstream:*")}


def exactly(use: str) -> list[str]:
    """The commands that the doctor asks for, and no other."""
    return [f"+{name}" for name in names_of(use)]


def test_the_rights_that_are_asked_for_are_enough_for_reading(user: Makes, redis_server: Server) -> None:
    limited = user("~s", "~o:*", "~dead", "~rstream:*", *exactly(READING))
    read_in_all_ways(limited, redis_server)
    assert set(lacking(limited, "s", "dead", uses=(LOOKING, READING)).values()) == {()}


def test_the_rights_that_are_asked_for_are_enough_for_writing(user: Makes, redis_server: Server) -> None:
    limited = user("~out", "~rstream:*", *exactly(WRITING))
    for trim in ({"trim": "acked"}, {"retention": "1h"}, {"minId": "5-0"}):
        checked = options(limited.url, **({"maxlen": "100000"} if "trim" in trim else {}), **trim)
        for batch in (Batch("q", 0, begin_run(checked.address), expires=False), begin_job(checked.address)):
            close(checked, batch, write([frame(range(100))], checked, batch))
        void_batch(checked.address, batch_of(1))
        with redis_server.client() as admin:
            admin.delete(*admin.scan_iter("rstream:sink:*"))
    assert sum(numbers(redis_server).values()) == 600


def test_the_rights_that_are_asked_for_are_enough_for_redrive_and_looking(user: Makes, redis_server: Server) -> None:
    with redis_server.client(decode_responses=True) as admin:
        for n in range(3):
            admin.xadd("dead", {"n": n, "dl.stream": "s", "dl.id": f"{n}-1", "dl.stage": "read", "dl.reason": "decode"})
        limited = user("~s", "~dead", "~dead:parked", "~rstream:*", *exactly(REDRIVE))
        assert DeadLetterRedrive(Address.parse(limited.url), RedriveOptions("dead", allow=("s",))).run().moved == 3
        assert (admin.xlen("s"), admin.exists("dead") and admin.xlen("dead")) == (3, 0)
        admin.xgroup_create("s", "g", id="0")
        looker = user("~*", *exactly(LOOKING))
        with Connection(Address.parse(looker.url)) as connection:
            assert [one.stream for one in view_streams(connection, sorted(list_streams(connection)))] == ["dead", "s"]
            assert [one.lag for one in survey(connection, ["s"]).groups] == [3]


@pytest.mark.parametrize(
    ("use", "role"), [(LOOKING, "looker"), (READING, "reader"), (WRITING, "writer"), (REDRIVE, "redrive")]
)
def test_the_user_that_is_documented_for_a_use_lacks_nothing(user: Makes, use: str, role: str) -> None:
    named = {"stream": "orders", "out": "orders", "group": "g", "dead": "orders"}
    server = user(*[word for word in rights(role, **named) if word not in ("reset", "on")])
    assert lacking(server, "orders", uses=(use,)) == {use: ()}


def test_a_client_library_sees_no_queue_left_behind(redis_server: Server) -> None:
    with Connection(Address.parse(redis_server.url)) as connection:
        ask_rights(connection, USES, ())
        assert isinstance(connection.execute("XLEN", "nowhere"), int)
        with redis_server.client() as other:
            assert isinstance(other, redis.Redis)
            other.set(OWN, 1)
        assert connection.pipeline([("MULTI",), ("PING",), ("EXEC",)])[-1] == [b"PONG"]  # nothing is watched
