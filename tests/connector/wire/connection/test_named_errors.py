"""What a server refuses for want of a password or a right is an error that says what to do, and shows no password."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.errors import LoginError, NotPermittedError, ServerReplyError
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connection.connection import Connection, ReplyError
from spark_streams.connector.wire.connection.named_errors import error_behind
from spark_streams.connector.wire.session import Session
from tools.servers.server import (
    Server,
    free_port,
    redis_server_path,
    running_redis,
    serving,
    skip_without_redis,
)

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
        (["-xadd"], ("XADD", "orders", "*", "a", "1"), "no right to run XADD (.*) ACL SETUSER user \\+xadd "),
        (["-xgroup|create"], ("XGROUP", "CREATE", "orders", "g", "0"), "to run XGROUP CREATE .* \\+xgroup\\|create "),
        (["resetkeys", "~other"], ("XLEN", "orders"), "to use key 'orders' .* ~orders "),
        (["resetkeys", "~other"], ("XINFO", "STREAM", "orders"), "to use key 'orders' .* ~orders "),
        (["resetkeys", "~o*"], ("GET", "rstream:x:{o}"), "to use key 'rstream:x:\\{o\\}' .* ~rstream:\\*:\\{o\\}\\* "),
    ],
)
def test_a_right_that_is_missing_is_named(
    redis_server: Server, rights: list[str], command: tuple[str, ...], said: str
) -> None:
    """(The bundled engine has no ACLs.)"""
    with redis_server.client() as admin:
        admin.flushall()
        admin.execute_command("ACL", "SETUSER", "half", "reset", "on", f">{SECRET}", "~*", "+@all", *rights)
        try:
            with Connection(Address.parse(redis_server.url.replace("://", f"://half:{SECRET}@"))) as connection:
                with pytest.raises(NotPermittedError, match=said) as caught:
                    connection.execute(*command)
                assert (caught.value.code, SECRET in str(caught.value)) == ("NOPERM", False)
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
    assert "~s " in error_text(no_key, "XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    assert "a key of this transaction" in error_text(no_key, "EXEC", "(the ledger)")
    assert "redis://user:password@h:1/2," in error_text("NOAUTH Authentication required.", "PING")
