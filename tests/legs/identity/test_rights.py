"""Users with exactly the rights that docs/reference/access.md lists: each can do what its role is for, and no more."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from spark_streams import dead_letters
from spark_streams.base.ids import MIN_ID
from spark_streams.cli import main
from spark_streams.connector.admin import groups as group_snapshot
from spark_streams.connector.errors import NotPermittedError
from spark_streams.connector.keys import MicroBatchName, origins_key, retry_stream
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.batch_commit import begin_job, begin_run, rows_written, void_batch
from spark_streams.connector.sink.chunk_writer import append
from spark_streams.connector.source.commit_mark import committed_key
from spark_streams.connector.source.stream_names import PatternRead
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.operations.groups import unused
from spark_streams.operations.monitor.last_entries import Follower
from tests.connector.sink.writing import batch_of, close, frame, numbers, options, write
from tests.connector.source.limited_user import read_in_all_ways
from tests.holding import OLD, hold
from tests.legs.identity.documented_rights import as_user, besides, documented, rights
from tests.operations.console.process import running_console
from tools.driving import ALL, add, drain, forget_all, reader
from tools.rights import LINES, ROLES, rights_of
from tools.sending import before_sending
from tools.servers.server import Server


@pytest.fixture
def empty(redis_server: Server) -> Iterator[Server]:
    """(The bundled engine has one user only.)"""
    with redis_server.client() as admin:
        admin.flushall()
        admin.execute_command("ACL", "LOG", "RESET")
        yield redis_server
        forget_all()
        admin.acl_deluser("limited")


@pytest.fixture
def filled(empty: Server) -> Server:
    """A stream, a group that has read some of it, and dead letters."""
    with empty.client(decode_responses=True) as admin:
        add(admin, 20)
        for n in range(3):
            admin.xadd("s", {"n": f"bad {n}"})
        one = reader(empty, mode="DEADLETTER", deadLetterStream="dead")
        start = one.initialOffset()
        end = one.latestOffset(start, ALL)
        for partition in one.partitions(start, end):
            list(one.read(partition))
        one.latestOffset(end, ALL)
        forget_all()
        assert admin.xlen("dead") == 3
        add(admin, 5)
    return empty


def rstream(server: Server, line: str) -> Result:
    return CliRunner().invoke(main, line.split(), env={"RSTREAM_URL": server.url})


def refusals(server: Server) -> list[tuple[str, str]]:
    """What the server has refused: (why, command or key)."""
    with server.client(decode_responses=True) as admin:
        return [(one["reason"], one["object"]) for one in admin.acl_log()]


def test_the_docs_have_a_user_for_each_role_with_no_category_and_no_wide_pattern() -> None:
    assert documented() == {role: rights_of(role) for role in ROLES}
    for words in documented().values():
        assert words[0] == "reset"
        assert not [word for word in words if word.startswith(("+@", "allkeys", "allcommands"))]
        assert not {"~*", "~rstream:*", "%R~*", "%R~rstream:*"} & set(words)


def test_a_reader(empty: Server) -> None:
    users = [*rights("reader"), *rights("reader", group="w"), *rights("reader", group="h")]
    limited = as_user(empty, *users, *rights("reader", stream="o:*"))
    read_in_all_ways(limited, empty)
    with empty.client() as admin:
        add(admin, 10, first=50)  # type: ignore[arg-type]
    for way in ("trim", "delete"):
        drain(reader(limited, onCommit=way))
    # Asked for, and done without: what the server's memory does, and whether it counts entries.
    assert set(refusals(empty)) <= {("command", "info"), ("command", "xsetid")}


def test_a_reader_of_one_group_reaches_no_other_and_no_other_stream(empty: Server) -> None:
    with empty.client(decode_responses=True) as admin:
        add(admin, 3)
        add(admin, 3, stream="other")
    limited = as_user(empty, *rights("reader"))
    assert drain(reader(limited)) == [[0, 1, 2]]
    for given in ({"group": "another"}, {"streams": "other"}):
        with pytest.raises(NotPermittedError):
            drain(reader(limited, **given))
    with empty.client(decode_responses=True) as admin:
        assert admin.xinfo_groups("other") == []


@pytest.mark.parametrize("role", ["reader", "a consumer without Spark"])
def test_a_consumer_that_writes_dead_letters_itself(empty: Server, role: str) -> None:
    with empty.client() as admin:
        admin.xgroup_create("s", "g", "0", mkstream=True)
        admin.xadd("s", {"n": "bad"})
    own = ["~s", "~dead", "~rstream:origins:{dead}", *besides("`spark_streams.dead_letters.write`").split()]
    limited = as_user(empty, *(rights("reader") if role == "reader" else own))
    with limited.client() as client:
        [[_, [(entry_id, fields)]]] = client.xreadgroup("g", "c", {"s": ">"})
        assert dead_letters.write(client, "s", "g", entry_id, fields, to="dead", reason="no number")
    with empty.client() as admin:
        assert admin.xlen("dead") == 1
        assert admin.xpending("s", "g")["pending"] == 0
    assert refusals(empty) == []


def test_a_writer(empty: Server) -> None:
    """Also one that is told what an earlier version of job `load` has loaded."""
    with empty.client() as admin:
        admin.hset("rstream:load:{out}:x", "file:/a.csv", "1 1")
        admin.hset("rstream:load:{s}:x", "file:/b.csv", "1 1")
    limited = as_user(empty, *rights("writer"))
    given = (
        {"maxlen": "100000", "trim": "acked"}, {"retention": "1h"}, {"minId": "5-0"}, {"retentionBytes": "64mb"},
        {"rowsPerSecond": "100000"},
    )  # fmt: skip
    for more in given:
        checked = options(limited.url, **more)
        for batch in (Batch("q", 0, begin_run(checked.address), expires=False), begin_job(checked.address)):
            close(checked, batch, write([frame(range(100))], checked, batch))
        void_batch(checked.address, batch_of(1))
        with empty.client() as admin:
            admin.delete(*admin.scan_iter("rstream:sink:*"))
    assert sum(numbers(empty).values()) == 1000
    with connect(options(limited.url).address) as server:
        assert rows_written(server, "out", "q", 0) == 0
    assert set(refusals(empty)) <= {("command", "info")}
    elsewhere = options(limited.url, stream="s")
    with pytest.raises(NotPermittedError):
        write([frame(range(3))], elsewhere, batch_of(0))


def test_a_writer_of_dead_letters_records_their_origin(empty: Server) -> None:
    """In a query whose pattern matches the stream, too."""
    with empty.client() as admin:
        admin.hset("rstream:told:q", mapping=dict([PatternRead("o*", (), (), "").field("g", "spark")]))
    limited = as_user(empty, *rights("writer"))
    rows = pa.RecordBatch.from_pydict({"dl.stream": ["s"], "dl.group": ["g"]})
    append([rows], options(limited.url), None, query=MicroBatchName("q", 0), letters=True)
    with empty.client() as admin:
        assert admin.hkeys(origins_key("out").decode()) == [b"s g"]
    assert refusals(empty) == []


def test_the_way_back(filled: Server) -> None:
    limited = as_user(filled, *rights("redrive"))
    ran = rstream(limited, "dead redrive dead --limit 2 --yes")
    assert ran.exit_code == 0, ran.output
    ran = rstream(limited, "dead purge dead --yes")
    assert ran.exit_code == 0, ran.output
    with filled.client() as admin:
        assert (admin.xlen("s"), admin.xlen("dead")) == (30, 0)
    assert refusals(filled) == []


# Commands that other tests run, or that need no role.
OF_OTHERS = {
    "console": "test_the_console_needs_the_rights_of_the_exporter",
    "doctor": "test_the_doctor_finds_nothing_missing",
    "release": "test_an_operator_releases_entries",
    "run": "the roles of source and sink",
    "trim": "test_an_operator_trims",
    "url": "it only asks the bundled engine",
    "verify": "a user who may do all",
}


def is_done_without(refusal: tuple[str, str]) -> bool:
    """Memory, and the names of shards of a stream: the page says for what."""
    return refusal[1] in ("info", "memory|usage") or refusal[1].startswith("out:")


def names_of_commands(command: click.Command, name: str = "") -> Iterator[str]:
    """The last words of commands that connect to a server."""
    if any("--url" in parameter.opts for parameter in command.params):
        yield name
    for one, below in getattr(command, "commands", {}).items():
        yield from names_of_commands(below, one)


def test_each_command_is_run_with_exactly_the_rights_of_a_role() -> None:
    run = {word for lines in LINES.values() for line in lines for word in line.split()[:2]}
    assert set(names_of_commands(main)) - {*run, *OF_OTHERS} == set()


@pytest.mark.parametrize(("roles", "line"), [(roles, line) for roles, lines in LINES.items() for line in lines])
def test_a_command_of_a_role(
    filled: Server, roles: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a report is a file
    (tmp_path / "x.jsonl").write_text('{"id": "1-1", "fields": {"n": "1"}}\n')
    with filled.client(decode_responses=True) as admin:
        [(first, _)] = admin.xrange("s", count=1)
    limited = as_user(filled, *[word for role in roles.split() for word in rights(role)])
    ran = rstream(limited, line.replace("{id}", first))
    assert ran.exit_code == 0, ran.output
    assert "no right" not in ran.output
    assert [one for one in refusals(filled) if not is_done_without(one)] == []


def test_who_looks_may_follow(filled: Server) -> None:
    """`rstream tail -f`, and `rstream wait` while there is nothing to read, send XREAD."""
    limited = as_user(filled, *rights("looker"))
    with connect(Address.parse(limited.url)) as server:
        assert [entry.stream for entry in Follower({"dead": MIN_ID}).step(server, 10)] == ["dead"] * 3
    with filled.client() as admin:
        admin.xgroup_create("s", "done", "$")
    ran = rstream(limited, "wait s --group done --for 1s")
    assert ran.exit_code == 3, ran.output
    assert refusals(filled) == []


@pytest.mark.parametrize(
    ("roles", "more", "line"),
    [
        (("looker", "writer", "operator"), "", "copy s out --groups --yes"),
        (("looker",), "`looker`, for `rstream export --with-groups`", "export s x.jsonl --with-groups"),
    ],
)
def test_groups_of_a_stream_are_copied(
    filled: Server, roles: tuple[str, ...], more: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word for role in roles for word in rights(role, stream="out" if role == "operator" else "s")]
    ran = rstream(as_user(filled, *words, *(besides(more).split() if more else ())), line)
    assert ran.exit_code == 0, ran.output
    assert [one for one in refusals(filled) if not is_done_without(one)] == []


def test_an_operator_trims(filled: Server) -> None:
    more = besides("`operator`, for `rstream trim --acked`").split()
    ran = rstream(as_user(filled, *rights("operator"), *more), "trim s --acked --yes")
    assert ran.exit_code == 0, ran.output
    assert [one for one in refusals(filled) if not is_done_without(one)] == []


def test_who_may_only_look_adds_and_moves_nothing(filled: Server) -> None:
    limited = as_user(filled, *rights("looker"))
    for line in ("add s n=1", "dead redrive dead --yes", "dead purge dead --yes", "groups delete s g --yes"):
        assert rstream(limited, line).exit_code != 0
    with filled.client() as admin:
        assert (admin.xlen("s"), admin.xlen("dead")) == (28, 3)


def test_the_exporter(filled: Server) -> None:
    ran = rstream(as_user(filled, *rights("exporter")), "exporter --once")
    assert ran.exit_code == 0, ran.output
    assert 'group="g"' in ran.output
    assert "rstream_missing_right{" not in ran.output
    assert refusals(filled) == []


@pytest.mark.in_turn
def test_the_console_needs_the_rights_of_the_exporter(filled: Server) -> None:
    with running_console(as_user(filled, *rights("exporter")).url) as console:
        browser = console.browser()
        for path in ("/", "/streams", "/stream?name=s", "/group?stream=s&group=g", "/dead", "/dead/stream?name=dead"):
            page = browser.get(path)
            assert (page.status, "lacks rights" in page.text) == (200, False), path
    assert refusals(filled) == []


def test_an_operator_of_groups(filled: Server) -> None:
    limited = as_user(filled, *rights("operator"))
    ran = rstream(limited, "replay s --group g --from earliest --yes")
    assert ran.exit_code == 0, ran.output
    with filled.client(decode_responses=True) as admin:
        assert admin.xpending("s", "g")["pending"] == 23
    for line in (
        "groups create s --group new --start earliest --yes",
        "groups seek s --group new --to latest --yes",
        "groups claim s --group g --from spark --to another --yes",
        "groups ack s --group g --consumer another --last-id 99999999999999-0 --even-active --yes",
        "groups delete s --group new --yes",
        "groups list s",
    ):
        ran = rstream(limited, line)
        assert ran.exit_code == 0, (line, ran.output)
    with filled.client(decode_responses=True) as admin:
        assert [group["name"] for group in admin.xinfo_groups("s")] == ["g"]
        assert admin.xpending("s", "g")["pending"] == 0
    assert refusals(filled) == []


def test_an_operator_deletes_idle_consumers(filled: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """And gives back what one of them has read meanwhile."""
    monkeypatch.setattr(unused, "SHORTEST_MS", 1)
    with filled.client(decode_responses=True) as admin:
        for name in ("old", "back"):
            admin.xgroup_createconsumer("s", "g", name)
        admin.xadd("s", {"n": 1}, id="99999999999998-0")
        time.sleep(0.01)
        limited = as_user(filled, *rights("operator"))
        line = "groups prune s --group g --idle 5ms --consumers --yes"
        with before_sending(b"XPENDING", act=lambda *_: admin.xreadgroup("g", "back", {"s": ">"}, count=1), times=1):
            ran = rstream(limited, line)
        assert ran.exit_code == 0, ran.output
        found = {one["name"]: one["pending"] for one in admin.xinfo_consumers("s", "g")}
    assert ("old" in found, found["back"]) == (False, 1)
    assert refusals(filled) == []


def test_an_operator_takes_entries_that_a_query_has_claimed(filled: Server) -> None:
    consumer = "spark~claim~1"
    with filled.client(decode_responses=True) as admin:
        admin.xreadgroup("g", consumer, {"s": ">"})
    limited = as_user(filled, *rights("operator"))
    for line in (
        f"groups ack s --group g --consumer {consumer} --limit 2 --even-active --yes",
        f"groups claim s --group g --from {consumer} --to another --even-active --yes",
    ):
        ran = rstream(limited, line)
        assert ran.exit_code == 0, (line, ran.output)
    with filled.client(decode_responses=True) as admin:
        assert not admin.xpending_range("s", "g", "-", "+", 1, consumername=consumer)
    assert refusals(filled) == []


def test_an_operator_forgets_groups_with_the_right_to_trim(empty: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, nothing is removed, and the error names the right."""
    monkeypatch.setattr(unused, "SHORTEST_MS", 1)
    more = besides("`operator`, for `rstream trim --acked` and `rstream groups prune --hold`").split()
    line = "groups prune s --hold --idle 50ms --yes"
    with empty.client(decode_responses=True) as admin:
        hold(admin, since=OLD)
        ran = rstream(as_user(empty, *rights("operator", stream="s")), line)
        assert (ran.exit_code, "xtrim" in ran.output, admin.xlen("s")) == (1, True, 10)
        ran = rstream(as_user(empty, *rights("operator", stream="s"), *more), line)
        assert (ran.exit_code, admin.xlen("s")) == (0, 0), ran.output


@pytest.mark.parametrize("line", ["groups prune s --idle 50ms --yes", "groups delete s --group g --yes"])
def test_an_operator_deletes_a_group_with_what_queries_keep_for_it(
    filled: Server, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unused, "SHORTEST_MS", 1)
    monkeypatch.setattr(group_snapshot, "ACTIVE_MS", 1)
    with filled.client(decode_responses=True) as admin:
        admin.xadd(retry_stream("s", "g", 1), {"n": 1})  # waits for another try, and stays
        assert admin.exists(committed_key("s", "g", "spark"))
    time.sleep(0.06)
    ran = rstream(as_user(filled, *rights("operator")), line)
    assert ran.exit_code == 0, ran.output
    with filled.client(decode_responses=True) as admin:
        assert admin.xinfo_groups("s") == []
        assert {*admin.keys("rstream:*")} <= {retry_stream("s", "g", 1), "rstream:origins:{dead}"}
    assert refusals(filled) == []


def test_an_operator_releases_entries(filled: Server) -> None:
    """XNACK came with Redis 8.8: an older server has no right of that name, and the command is refused by name."""
    line = "groups release s --group g --consumer spark --mode silent --even-active --yes"
    with filled.client(decode_responses=True) as admin:
        there = bool(admin.execute_command("COMMAND INFO", "xnack")[0])
        admin.xreadgroup("g", "spark", {"s": ">"})
    added = besides("`operator`, for `rstream groups release`").split() if there else []
    ran = rstream(as_user(filled, *rights("operator"), *added), line)
    if there:
        assert ran.exit_code == 0, ran.output
    else:
        assert "RSTREAM_UNSUPPORTED" in ran.output, ran.output
    assert refusals(filled) == []


@pytest.mark.parametrize(("role", "use"), [("reader", "reading"), ("redrive", "redrive"), ("looker", "looking")])
def test_the_doctor_finds_nothing_missing(filled: Server, role: str, use: str) -> None:
    limited = as_user(filled, *rights(role), *besides("`rstream doctor`").split())
    ran = rstream(limited, f"doctor --stream s --for {use} --json")
    [found] = [one for one in json.loads(ran.output)["findings"] if one["about"] == "rights"]
    assert found["level"] == "ok", found
    assert set(refusals(filled)) <= {("command", "discard")}  # asked for, to see whether others can be
