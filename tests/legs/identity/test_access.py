"""Who connects, by options, environment and commands: each way works, two ways at once are refused by name, and what is
wrong is said without the password."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.errors import InvalidOptionError, LoginError, RStreamError, ServerUnreachableError
from spark_streams.connector.options.access_options import AccessOptions, SinkOptions, server_of
from spark_streams.connector.options.source_options import BatchSourceOptions, SourceOptions
from spark_streams.connector.wire.connect import connect
from spark_streams.jobs.job import inherit_access
from tests.legs.identity import tokens
from tools.servers.server import Server

SECRET = "s3cret-word"
NEEDED = {"streams": "s", "group": "g"}


@pytest.fixture
def guarded(redis_server: Server) -> Iterator[Server]:
    """With a user `app`."""
    with redis_server.client() as admin:
        admin.flushall()
        admin.execute_command("ACL", "SETUSER", "app", "reset", "on", f">{SECRET}", "~*", "&*", "+@all")
        yield redis_server
        admin.acl_deluser("app")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "password"
    made.write_text(f"{SECRET}\nnot this line\n")
    return made


def who(**given: str) -> bytes:
    with connect(server_of(given, "source")) as server:
        found: bytes = server.execute("ACL", "WHOAMI")
        return found


def test_each_way_to_say_who_connects(guarded: Server, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tokens.FILE, str(file))
    url = guarded.url
    assert who(url=url) == b"default"
    assert who(url=url, username="app", password=SECRET) == b"app"
    assert who(url=url, username="app", passwordFile=str(file)) == b"app"
    file.write_text(SECRET)
    assert who(url=url, credentialProvider="tests.legs.identity.tokens:provider") == b"app"


def test_the_environment_speaks_of_its_own_server_only(
    guarded: Server, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSTREAM_USERNAME", "app")
    monkeypatch.setenv("RSTREAM_PASSWORD_FILE", str(file))
    assert who(url=guarded.url) == b"default"
    monkeypatch.setenv("RSTREAM_URL", guarded.url)
    assert who() == who(url=guarded.url) == b"app"
    monkeypatch.setenv("RSTREAM_PASSWORD", SECRET)
    with pytest.raises(InvalidOptionError, match="RSTREAM_PASSWORD and RSTREAM_PASSWORD_FILE: set one of them"):
        who()
    assert who(username="app", password=SECRET) == b"app"


@pytest.mark.parametrize("kind", [SourceOptions, BatchSourceOptions, SinkOptions])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"password": SECRET, "passwordFile": "/f"}, "options password and passwordFile contradict each other"),
        ({"passwordFile": "/f", "credentialProvider": "a:b"}, "options passwordFile and credentialProvider contradict"),
        (
            {"username": "u", "credentialProvider": "a:b"},
            "credentialProvider contradict each other: the provider names",
        ),
        ({"username": "u"}, "option username needs option password or passwordFile"),
        (
            {"url": f"redis://u:{SECRET}@h", "password": SECRET},
            "url .* holds a login in addition to the one of options username and password",
        ),
        (
            {"url": f"redis://h?password={SECRET}", "passwordFile": "/f"},
            "url .* holds a login in addition to the one in passwordFile /f: give it once",
        ),
        ({"url": "embedded:", "password": SECRET}, "url 'embedded:' takes no login"),
        ({"credentialProvider": "a.b"}, "must be module:function"),
        ({"url": "redis://h?socket_timeout=9", "replyTimeout": "5s"}, "url's socket_timeout set the same time"),
        ({"replyTimeout": "5"}, "must be a duration above 0 with its unit"),
    ],
)
def test_what_contradicts_itself_is_refused(kind: type[AccessOptions], given: dict[str, str], said: str) -> None:
    needed = {"url": "redis://h", **({"stream": "s"} if kind is SinkOptions else {"streams": "s"})}
    if kind is SourceOptions:
        needed["group"] = "g"
    with pytest.raises(InvalidOptionError, match=said) as caught:
        kind.parse({**needed, **given})
    assert SECRET not in str(caught.value)


def test_neither_options_nor_what_is_wrong_show_a_password(guarded: Server, file: Path) -> None:
    checked = SourceOptions.parse({**NEEDED, "url": guarded.url, "username": "app", "password": SECRET})
    identity = checked.address.identity
    assert SECRET not in f"{checked!r} {checked} {checked.address!r} {checked.address} {identity!r} {identity}"
    assert pickle.loads(pickle.dumps(checked)).address.identity == checked.address.identity
    file.write_text(f"{SECRET}x")
    with pytest.raises(LoginError, match=f"refuses the user and password in passwordFile {file} .invalid") as caught:
        who(url=guarded.url, username="app", passwordFile=str(file))
    assert SECRET not in str(caught.value)
    with pytest.raises(LoginError, match="of options username and password .invalid"):
        who(url=guarded.url, username="app", password=f"{SECRET}x")
    file.write_text("\n")
    with pytest.raises(LoginError, match="is empty: its first line is the password"):
        who(url=guarded.url, passwordFile=str(file))
    with pytest.raises(LoginError, match="cannot be read: No such file or directory; every machine with a task needs"):
        who(url=guarded.url, passwordFile="/nowhere/file")


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("tests.nowhere:provider", InvalidOptionError, "ModuleNotFoundError: No module named 'tests.nowhere'"),
        (
            "tests.legs.identity.tokens:nothing",
            InvalidOptionError,
            "AttributeError.*it is module:function, where the driver",
        ),
        ("tests.legs.identity.tokens:failing", InvalidOptionError, "RuntimeError: no region is set"),
        (
            "tests.legs.identity.tokens:number",
            InvalidOptionError,
            "returned a int, which is no redis.CredentialProvider",
        ),
        (
            "tests.legs.identity.tokens:Away",
            ServerUnreachableError,
            "returned no credentials: TimeoutError: the token service",
        ),
    ],
)
def test_a_provider_that_cannot_be_used(guarded: Server, name: str, kind: type[RStreamError], said: str) -> None:
    with pytest.raises(kind, match=said):
        who(url=guarded.url, credentialProvider=name)


def test_the_commands_take_it_from_files_and_from_the_environment(guarded: Server, file: Path) -> None:
    with guarded.client() as admin:
        admin.xadd("orders", {"n": 1})
        admin.execute_command("ACL", "SETUSER", "default", "-xinfo")
    try:
        streams, url = ["streams", "--url", guarded.url], guarded.url
        run = CliRunner().invoke
        assert "no right to run XINFO" in run(main, streams).output
        for words, around in (
            (["--username", "app", "--password-file", str(file)], {}),
            ([], {"RSTREAM_USERNAME": "app", "RSTREAM_PASSWORD": SECRET}),
            ([], {"RSTREAM_USERNAME": "app", "RSTREAM_PASSWORD_FILE": str(file)}),
            (["--username", "app", "--password-file", str(file)], {"RSTREAM_PASSWORD": "another"}),
        ):
            ran = run(main, [*streams, *words], env=around)
            assert (ran.exit_code, "orders" in ran.output) == (0, True), ran.output
        ran = run(main, ["streams", "--url", url.replace("://", f"://app:{SECRET}@")], env={"RSTREAM_PASSWORD": SECRET})
        assert "holds a login in addition to the one" in ran.output
        ran = run(main, [*streams, "--reply-timeout", "0"])
        assert "server option replyTimeout='0' must be a duration above 0" in ran.output
    finally:
        with guarded.client() as admin:
            admin.execute_command("ACL", "SETUSER", "default", "+@all")


def test_a_jobs_tables_take_the_jobs_server_unless_they_name_one() -> None:
    access = {"url": "redis://h", "username": "app", "passwordFile": "/f", "replyTimeout": "9s"}
    assert inherit_access(access, {"stream": "s"}) == {**access, "stream": "s"}
    assert inherit_access(access, {"url": "redis://other"}) == {"url": "redis://other"}
    own = inherit_access(access, {"CredentialProvider": "a:b"})
    assert own == {"url": "redis://h", "replyTimeout": "9s", "CredentialProvider": "a:b"}


def test_the_reply_timeout_is_the_connections(guarded: Server) -> None:
    assert server_of({"url": guarded.url}, "source").patience.reply == 5
    quick = server_of({"url": guarded.url, "replyTimeout": "200ms"}, "source")
    with connect(quick) as server, pytest.raises(ServerUnreachableError, match=r"no answer for 0\.2 s"):
        server.execute("BLPOP", "nothing", 3)
