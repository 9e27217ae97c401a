"""What a server refuses for want of a password or a right is an error that says what to do, and shows no password."""

from __future__ import annotations

import re
import shlex
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.errors import (
    LoginError,
    NotPermittedError,
    RetriesExhaustedError,
    RStreamError,
    ServerFullError,
    ServerReplyError,
    find_in_text,
)
from spark_streams.connector.keys import shards_key
from spark_streams.connector.shards.shard_sets import RULE
from spark_streams.connector.wire.address import Address, Patience
from spark_streams.connector.wire.connection import Connection, ReplyError
from spark_streams.connector.wire.connection import Server as AnyServer
from spark_streams.connector.wire.named_errors import Memory, error_behind
from spark_streams.connector.wire.replies import transact
from spark_streams.connector.wire.session import Backoff, Session, is_transient
from tests.full_server import full
from tests.runner import separate_runner
from tools.servers.server import Server, free_port, redis_server_path, running_redis, serving, skip_without_redis

SECRET = "s3cr3t-word"


@pytest.fixture(scope="module", params=["engine", "redis"])
def locked(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that wants a password."""
    if request.param == "engine":
        with serving("--requirepass", SECRET) as engine:
            yield engine
    else:
        skip_without_redis()
        with running_redis("--requirepass", SECRET) as real:
            yield real


def refused(url: str) -> str:
    with pytest.raises(LoginError) as caught, Connection(Address.parse(url)):
        pass
    assert isinstance(caught.value, ServerReplyError)
    assert SECRET not in str(caught.value)
    assert "ECHO" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("database", [0, 3])  # another one than the first is selected before anything else
def test_a_server_that_wants_a_password_says_where_to_write_it(locked: Server, database: int) -> None:
    url = locked.url.replace("/0", f"/{database}")
    assert refused(url).startswith(
        f"[RSTREAM_LOGIN] the server at {url} needs a password: write it into the url (or RSTREAM_URL), "
        f"{url.replace('://', '://user:password@')}"
    )


@pytest.mark.parametrize("login", [f":not-{SECRET}", f"nobody:{SECRET}", f"default:{SECRET}x", "default"])
def test_a_wrong_login_is_distinguished_from_a_missing_one(locked: Server, login: str) -> None:
    said = refused(locked.url.replace("://", f"://{login}@"))
    assert "refuses the user and password of the url (invalid username-password pair or user is disabled)" in said
    assert "%40" in said


def test_a_password_for_a_server_that_has_none(server: Server) -> None:
    assert "has no password, and the url gives one" in refused(server.url.replace("://", f"://:{SECRET}@"))


def test_the_right_password_is_taken(locked: Server) -> None:
    with Connection(Address.parse(locked.url.replace("://", f"://:{SECRET}@"))) as connection:
        assert connection.execute("PING") == b"PONG"


def test_the_command_says_it_in_one_line(locked: Server) -> None:
    ran = CliRunner().invoke(main, ["lag", "--url", locked.url])
    assert ran.exit_code == 1
    assert ran.output.startswith("Error: [RSTREAM_LOGIN] the server at ")
    assert ran.output.count("\n") == 1


@pytest.mark.parametrize(
    ("rights", "command", "said"),
    [
        (["-xadd"], ("XADD", "orders", "*", "a", "1"), "no right to run XADD (.*) ACL SETUSER USER \\+xadd "),
        (["-xgroup|create"], ("XGROUP", "CREATE", "orders", "g", "0"), "to run XGROUP CREATE .* '\\+xgroup\\|create' "),
        (["resetkeys", "~other"], ("XLEN", "orders"), "to use key 'orders' .* '~orders' "),
        (["resetkeys", "~other"], ("XINFO", "STREAM", "orders"), "to use key 'orders' .* '~orders' "),
        (["resetkeys", "~o*"], ("GET", "rstream:x:{o}"), "key 'rstream:x:\\{o\\}' .* '~rstream:\\*:\\{o\\}\\*' "),
        (["resetkeys", "~o*"], ("GET", "rstream:x:{[1]}"), "'~rstream:\\*:\\{\\\\\\[1"),
        (["resetkeys", "~o*"], ("XLEN", "it's [1]"), "to use key .it's "),
    ],
)
def test_a_right_that_is_missing_is_named_as_a_shell_takes_it(
    redis_server: Server, rights: list[str], command: tuple[str, ...], said: str
) -> None:
    """The command of the error gives the right. (The bundled engine has no ACLs.)"""
    with redis_server.client() as admin:
        admin.flushall()
        admin.xgroup_create(command[-1] if command[0] == "XLEN" else "orders", "other", mkstream=True)
        admin.execute_command("ACL", "SETUSER", "half", "reset", "on", f">{SECRET}", "~*", "+@all", *rights)
        try:
            with Connection(Address.parse(redis_server.url.replace("://", f"://half:{SECRET}@"))) as connection:
                with pytest.raises(NotPermittedError, match=said) as caught:
                    connection.execute(*command)
                assert (caught.value.code, SECRET in str(caught.value)) == ("NOPERM", False)
                [given] = re.findall(r"ACL SETUSER USER (.+) \(rstream help", caught.value.message)
                admin.execute_command("ACL", "SETUSER", "half", *shlex.split(given))
                connection.execute(*command)
        finally:
            admin.acl_deluser("half")


def test_a_sentinel_is_no_server_of_streams(tmp_path: Path) -> None:
    skip_without_redis()
    file, port = tmp_path / "sentinel.conf", free_port()
    file.touch()
    command = [str(redis_server_path()), str(file), "--sentinel", "--port", str(port), "--bind", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=tmp_path) as process:
        try:
            with pytest.raises(ServerReplyError, match="holds no streams .* as a Sentinel does: write redis.sentinel"):
                Session(Address.parse(f"redis://127.0.0.1:{port}/0"), "streams").get()
        finally:
            process.terminate()


@pytest.mark.parametrize("may_not", ["echo", "select"])
def test_a_user_who_may_not_even_begin(redis_server: Server, may_not: str) -> None:
    with redis_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "half", "reset", "on", f">{SECRET}", "~*", "+@all", f"-{may_not}")
        try:
            url = redis_server.url.replace("://", f"://half:{SECRET}@").replace("/0", "/3")
            with (
                pytest.raises(NotPermittedError, match=f"to run {may_not.upper()} .* \\+{may_not} "),
                Connection(Address.parse(url)),
            ):
                pass
        finally:
            admin.acl_deluser("half")


def test_newer_servers_name_the_user_and_mean_the_same() -> None:
    def error_text(text: str, *words: str) -> str:
        return str(error_behind(Address.parse("redis://h:1/2?client_name=x"), ReplyError(text).code, text, words))

    assert "+xadd " in error_text("NOPERM User half has no permissions to run the 'xadd' command", "EXEC")
    no_key = "NOPERM No permissions to access a key"
    assert "'~s' " in error_text(no_key, "XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    assert "a key of this transaction" in error_text(no_key, "EXEC", "(the ledger)")
    assert "redis://user:password@h:1/2," in error_text("NOAUTH Authentication required.", "PING")


# -- A server whose memory is full: each refused write says how full it is and what to do, whoever wrote ---------------


HASTY = Patience(limit=0.2, first_pause=0.001)
# Numbers of both servers: 1.95 MB used of maxmemory 488 KB.
SAID = r"the server's memory is full \([0-9.,]+ [KM]B used of maxmemory 488 KB\)\. Free memory or raise maxmemory: "


@pytest.mark.parametrize(
    ("write", "shown"),
    [
        (lambda server: server.execute("SET", "rstream:session:g:1", '{"pid": 1}'), "SET rstream:session:g:1 at "),
        (lambda server: server.execute("XADD", "s", "*", "secret", "1"), "XADD s * at "),
        (lambda server: server.execute_all([("PING",), ("HSET", "k", "f", "v")]), "HSET k at "),
        (lambda server: transact(server, [("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")]), "XGROUP CREATE s g at "),
    ],
)
def test_a_refused_write_says_how_full_the_memory_is_and_shows_no_value(
    server: Server, write: Callable[[AnyServer], object], shown: str
) -> None:
    with full(server), Connection(Address.parse(server.url)) as connection:
        with pytest.raises(ServerFullError, match=SAID + ".*rstream trim --acked .* rstream doctor") as caught:
            write(connection)
        assert caught.value.message.startswith(f"{shown}{server.url}: ")
        assert (caught.value.code, is_transient(caught.value)) == ("OOM", True)
        assert connection.execute("PING") == b"PONG"


def test_memory_that_becomes_full_before_exec_is_the_same_error(server: Server) -> None:
    """Then EXEC itself is refused: `EXECABORT … because of: OOM …` (redis-server) or `OOM …`."""
    with Connection(Address.parse(server.url)) as connection:
        assert connection.pipeline([("MULTI",), ("SET", "a", "1")]) == [b"OK", b"QUEUED"]
        with full(server):
            [reply] = connection.pipeline([("EXEC",)])
            assert isinstance(reply, ReplyError)
            assert is_transient(reply), reply
            assert isinstance(connection.error_of(reply, ("EXEC",)), ServerFullError)
    assert ReplyError("EXECABORT Transaction discarded because of: LOADING Redis is loading").code == "LOADING"
    assert ReplyError("EXECABORT Transaction discarded because of previous errors.").code == "EXECABORT"


def test_a_thousand_refusals_ask_the_server_once(server: Server) -> None:
    with full(server), Connection(Address.parse(server.url)) as connection, server.client() as client:
        before = client.info("stats")["total_connections_received"]
        replies = connection.pipeline([("XADD", "s", "*", "a", "1")] * 1000)
        assert {str(connection.error_of(reply, ("XADD", "s"))) for reply in replies}
        assert client.info("stats")["total_connections_received"] - before <= 2  # `client` may connect again


def test_a_user_who_may_not_ask_for_the_memory_gets_the_same_advice(redis_server: Server) -> None:
    """(The bundled engine has no ACLs.)"""
    with redis_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "half", "reset", "on", ">word", "~*", "+@all", "-info")
        try:
            url = redis_server.url.replace("://", "://half:word@")
            with full(redis_server), Connection(Address.parse(url)) as connection:
                with pytest.raises(ServerFullError, match="the server's memory is full\\. Free memory") as caught:
                    connection.execute("SET", "a", "1")
                assert "word" not in str(caught.value)
        finally:
            admin.acl_deluser("half")


def test_replies_without_numbers_tell_nothing() -> None:
    assert Memory.read(ReplyError("NOPERM")) == Memory.read(b"# Memory\r\nused_memory:x\r\n") == Memory()
    assert Memory.read(b"# Memory\r\nused_memory:10\r\nmaxmemory:4\r\nmaxmemory_human:9\r\n") == Memory(10, 4)
    told = b"# Memory\r\nused_memory:10\r\nmaxmemory:4\r\nmaxmemory_policy:allkeys-lru\r\n"
    assert Memory.read(told) == Memory(10, 4, "allkeys-lru")


@pytest.mark.parametrize("as_value", [True, False])
def test_a_step_that_waited_in_vain_ends_with_one_error_that_names_the_memory(server: Server, as_value: bool) -> None:
    """Spark passes the text of the whole traceback on: an error that was replaced would be found there first."""

    def step(connection: AnyServer) -> None:
        [reply] = connection.pipeline([("SET", "rstream:committed:{s}:g:spark", "1-0")])
        raise reply if as_value else connection.error_of(reply, ("SET", "rstream:committed:{s}:g:spark", "1-0"))

    with full(server), Session(Address(server.url, HASTY), "group 'g'", is_known=True) as session:
        with pytest.raises(
            RetriesExhaustedError, match=r"was tried for \d+ s without success, at last: .*" + SAID
        ) as one:
            session.run(step)
        text = "".join(traceback.format_exception(one.value))
        assert text.count("Traceback") == 1
        assert (find_in_text(text) or "").startswith("[RSTREAM_RETRIES_EXHAUSTED]")


def test_of_a_traceback_with_several_errors_the_one_that_was_raised_is_found() -> None:
    def chained(first: Exception, second: Exception, from_first: bool) -> str:
        try:
            try:
                raise first
            except Exception as error:
                if from_first:
                    raise second from error
                raise second  # noqa: B904 - that is tested
        except Exception as error:  # noqa: BLE001 - whichever
            return find_in_text("Job aborted: " + "".join(traceback.format_exception(error))) or ""

    ours = ServerFullError("first"), RetriesExhaustedError("second")
    for from_first in (True, False):
        assert chained(*ours, from_first) == "[RSTREAM_RETRIES_EXHAUSTED] second"
        assert chained(ours[0], ValueError("of the user"), from_first) == "[RSTREAM_SERVER_FULL] first"
    assert issubclass(ServerFullError, RStreamError)


@pytest.mark.parametrize(
    "words",
    [
        "add s a=1",
        "add s -",
        "groups create s --group new --start 0 --yes",
        "groups seek s --group g --to 1-1 --even-active --yes",
        "import FILE new.s --yes",
        "dead redrive letters --yes",
        "shards sharded --recreate --yes",
    ],
)
def test_a_command_that_cannot_write_names_the_next_command(
    server: Server, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, also if it has waited before (import, redrive: they repeat what may pass)."""
    wait = Backoff.wait

    def wait_less(backoff: Backoff, action: str, where: str, reason: str, lost: bool) -> None:
        backoff.limit = HASTY.limit
        wait(backoff, action, where, reason, lost)

    monkeypatch.setattr(Backoff, "wait", wait_less)
    file = tmp_path / "in.jsonl"
    file.write_text('{"id": "1-1", "fields": {"a": "1"}}\n')
    with server.client() as client:
        for number in range(1, 4):
            client.xadd("s", {"a": "1"}, id=f"1-{number}")
        client.xgroup_create("s", "g", "0")
        envelope = {"rstream:stream": "s", "rstream:id": "1-1", "rstream:group": "g", "a": "1"}
        client.xadd("letters", envelope)
        client.hset(shards_key("sharded"), mapping={"shards": 2, "rule": RULE, "by": "a"})
    with full(server):
        ran = CliRunner().invoke(
            main, [*words.replace("FILE", str(file)).split(), "--url", server.url], input='{"a": "1"}\n'
        )
    assert ran.exit_code == 1, ran.output
    last = ran.output.splitlines()[-1]
    assert last.startswith(("Error: [RSTREAM_SERVER_FULL] ", "Error: [RSTREAM_RETRIES_EXHAUSTED] ")), ran.output
    assert "the server's memory is full (" in last
    assert "rstream trim --acked" in last


def test_looking_works_on_a_full_server(server: Server) -> None:
    with server.client() as client:
        client.xadd("s", {"a": "1"})
        client.xgroup_create("s", "g", "0")
    with full(server):
        for words in ("lag", "streams", "groups s", "pending s", "show s --last 1", "dead list"):
            ran = separate_runner().invoke(main, [*words.split(), "--url", server.url])
            assert (ran.exit_code, ran.stderr) == (0, ""), (words, ran.output)
        ran = separate_runner().invoke(main, ["doctor", "--url", server.url])
        assert ran.exit_code == 3
        assert "the memory is full (maxmemory)" in ran.stdout
