"""RSTREAM_ALLOW_HOSTS, _FILES, _PROVIDERS, _EMBEDDED: with one of them set, options may name only what it lists."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import spark_streams
from spark_streams.cli import main
from spark_streams.connector.deadletter import transform
from spark_streams.connector.errors import NotAllowedError, OptionError
from spark_streams.connector.options.access_options import AccessOptions, SinkOptions
from spark_streams.connector.options.source_options import BatchSourceOptions, SourceOptions

PACKAGE = Path(spark_streams.__file__).parent
NEEDED: dict[type[AccessOptions], dict[str, str]] = {
    SourceOptions: {"streams": "s", "group": "g"},
    BatchSourceOptions: {"streams": "s"},
    SinkOptions: {"stream": "s"},
    AccessOptions: {},
}
KINDS = [
    pytest.param(SourceOptions, id="source"),
    pytest.param(BatchSourceOptions, id="batch"),
    pytest.param(SinkOptions, id="sink"),
    pytest.param(AccessOptions, id="commands-and-jobs"),
]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOSTS", "FILES", "PROVIDERS", "EMBEDDED"):
        monkeypatch.delenv(f"RSTREAM_ALLOW_{name}", raising=False)
    monkeypatch.delenv("RSTREAM_URL", raising=False)


def parse(kind: type[AccessOptions] = AccessOptions, **options: str) -> None:
    kind.parse({**NEEDED[kind], **options})


def refused(variable: str, kind: type[AccessOptions] = AccessOptions, **options: str) -> str:
    with pytest.raises(NotAllowedError) as caught:
        parse(kind, **options)
    assert isinstance(caught.value, OptionError)
    assert str(caught.value).startswith("[RSTREAM_NOT_ALLOWED] ")
    assert f"RSTREAM_ALLOW_{variable}" in str(caught.value)
    return str(caught.value)


HOSTS = "streams.internal, cache:6380,*.trusted.example,[::1],unix:///run/streams"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "url",
    [
        "redis://streams.internal",
        "redis://me:secret@STREAMS.internal:7000/3",
        "rediss://cache:6380",
        "redis://a.trusted.example:1",
        "redis://[::1]:6379",
        "unix:///run/streams/one.sock",
        "redis+sentinel://streams.internal:26379,cache:6380/master",
        "redis+cluster://streams.internal,b.trusted.example",
        "embedded:",
    ],
)
def test_a_listed_host_is_accepted(kind: type[AccessOptions], url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSTREAM_ALLOW_HOSTS", HOSTS)
    parse(kind, url=url)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("redis://evil", "evil:6379"),
        ("redis://streams.internal.evil:6379", "streams.internal.evil:6379"),
        ("redis://streams.internal@evil", "evil:6379"),
        ("redis://streams.internal:6379@evil:1/0", "evil:1"),
        ("redis://evil#@streams.internal", ""),
        ("redis://evil?client_name=@streams.internal", ""),
        ("redis://cache:6379", "cache:6379"),
        ("redis://cache", "cache:6379"),
        ("redis://trusted.example", "trusted.example:6379"),
        ("redis://eviltrusted.example", "eviltrusted.example:6379"),
        ("redis://%65vil", "evil:6379"),
        ("redis://[::2]", "[::2]:6379"),
        ("unix:///run/other/one.sock", "unix:///run/other/one.sock"),
        ("unix:///run/streams/../other.sock", "unix:///run/other.sock"),
        ("unix:///run/streams/%2e%2e/other.sock", "unix:///run/other.sock"),
        ("redis+sentinel://streams.internal,evil/master", "evil:26379"),
        ("redis+cluster://evil,streams.internal", "evil:6379"),
    ],
)
def test_any_other_host_is_refused(
    kind: type[AccessOptions], url: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSTREAM_ALLOW_HOSTS", HOSTS)
    if not host:  # the URL itself is refused
        with pytest.raises(OptionError):
            parse(kind, url=url)
        return
    assert host in refused("HOSTS", kind, url=url)


def test_an_empty_list_accepts_nothing_and_an_unset_one_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = {
        "HOSTS": {"url": "redis://anywhere"},
        "FILES": {"url": "redis://anywhere", "passwordFile": "/etc/passwd"},
        "PROVIDERS": {"url": "redis://anywhere", "credentialProvider": "os:getcwd"},
        "EMBEDDED": {"url": "embedded:"},
    }
    for options in everything.values():
        parse(**options)
    for name, options in everything.items():
        monkeypatch.setenv(f"RSTREAM_ALLOW_{name}", "")
        refused(name, **options)
        monkeypatch.delenv(f"RSTREAM_ALLOW_{name}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`allowed` and its link `alias`, with a file and links out of it; `secret` beside them."""
    inside = tmp_path / "allowed"
    inside.mkdir()
    (tmp_path / "alias").symlink_to(inside)
    (tmp_path / "secret").write_text("not yours\n")
    (inside / "password").write_text("pw\n")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "loop").symlink_to(inside / "loop")
    (inside / "out").symlink_to(tmp_path)
    monkeypatch.setenv("RSTREAM_ALLOW_FILES", f"{inside}, /etc/streams/ca.pem")
    return tmp_path


TLS = ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_ca_path")


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_those_of_the_list_and_below_its_folders(kind: type[AccessOptions], folder: Path) -> None:
    for path in ("allowed/password", "alias/password", "allowed/../allowed/password", "allowed/not-yet"):
        parse(kind, url="redis://h", passwordFile=str(folder / path))
    parse(kind, url="redis://h", passwordFile="/etc/streams/ca.pem")
    for path in ("secret", "allowed/link", "allowed/../secret", "allowed/out/secret", "alias/link", "allowedly"):
        assert str(folder / path) in refused("FILES", kind, url="redis://h", passwordFile=str(folder / path))
    around = str(Path("/proc/self", "root", "etc/passwd"))  # the link by which a process sees the whole file system
    for path in ("/etc/streams/ca.pem.bak", around, "/etc/streams", "password"):
        refused("FILES", kind, url="redis://h", passwordFile=path)


@pytest.mark.parametrize("scheme", ["rediss://h", "rediss+cluster://h,i", "rediss+sentinel://h/name"])
@pytest.mark.parametrize("name", TLS)
def test_files_of_the_url_too(scheme: str, name: str, folder: Path) -> None:
    parse(url=f"{scheme}?{name}={folder}/allowed/password")
    for path in (f"{folder}/secret", f"{folder}/allowed/%2e%2e/secret", f"{folder}/allowed/link", "%00", "x%ff"):
        assert name in refused("FILES", url=f"{scheme}?{name}={path}")
    with pytest.raises(OptionError, match=f"parameter '{name}' is given twice; give it once"):
        parse(url=f"{scheme}?{name}={folder}/secret&{name}={folder}/allowed/password")


def test_a_function_of_a_redrive_is_imported_only_if_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert transform.load("os.path:join") is os.path.join
    monkeypatch.setenv("RSTREAM_ALLOW_PROVIDERS", "os.path:join")
    assert transform.load("os.path:join") is os.path.join
    for name in ("os:system", "os.path:exists", "antigravity:geohash"):
        with pytest.raises(NotAllowedError, match=f"transform {name} is refused: RSTREAM_ALLOW_PROVIDERS"):
            transform.load(name)
    assert "antigravity" not in sys.modules


def test_a_provider_is_called_only_if_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSTREAM_ALLOW_PROVIDERS", "aws_login:provider, tests.legs.identity.tokens:provider")
    parse(url="redis://h", credentialProvider="tests.legs.identity.tokens:provider")
    for name in ("tests.legs.identity.tokens:failing", "os:getcwd", "aws_login:other", "x.aws_login:provider"):
        assert name in refused("PROVIDERS", url="redis://h", credentialProvider=name)


def test_the_bundled_engine_runs_in_listed_folders_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSTREAM_ALLOW_EMBEDDED", str(tmp_path / "engines"))
    parse(url=f"embedded://{tmp_path}/engines")
    parse(url=f"embedded://{tmp_path}/engines/mine?idle=5")
    for url in (
        "embedded:",
        "embedded:?idle=5",
        f"embedded://{tmp_path}/other",
        f"embedded://{tmp_path}/engines/%2e%2e/other",
    ):
        refused("EMBEDDED", url=url)
    refused("EMBEDDED")  # what is used if nothing is given
    assert not list(tmp_path.iterdir()), "nothing is made before the list is asked"
    monkeypatch.setenv("RSTREAM_ALLOW_EMBEDDED", "embedded:")
    parse(url="embedded:")
    parse(url="embedded:?idle=5")
    refused("EMBEDDED", url=f"embedded://{tmp_path}/engines")


def test_the_operators_own_server_and_login_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RSTREAM_URL and RSTREAM_PASSWORD_FILE come from who sets the lists. Beside them options are limited all the
    same."""
    for name in ("HOSTS", "FILES", "PROVIDERS", "EMBEDDED"):
        monkeypatch.setenv(f"RSTREAM_ALLOW_{name}", "")
    own = "rediss://streams.internal/0?ssl_ca_certs=/etc/streams/ca.pem"
    monkeypatch.setenv("RSTREAM_URL", own)
    monkeypatch.setenv("RSTREAM_PASSWORD_FILE", str(tmp_path / "password"))
    parse()
    parse(url=own)
    refused("HOSTS", url=own.replace("/0", "/1"))
    refused("FILES", url=own, passwordFile=str(tmp_path / "password"))
    refused("PROVIDERS", credentialProvider="os:getcwd")


def test_commands_and_jobs_are_limited_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSTREAM_ALLOW_HOSTS", "streams.internal")
    ran = CliRunner().invoke(main, ["streams", "--url", "redis://evil"])
    assert ran.exit_code == 2
    assert "[RSTREAM_NOT_ALLOWED] host evil:6379" in ran.output
    config = str(PACKAGE.parent / "conf" / "etl.toml")
    job = ["run", "etl", "--config", config, "--check", "--set", "source.url=redis://evil"]
    ran = CliRunner().invoke(main, job)
    assert ran.exit_code != 0
    assert "[RSTREAM_NOT_ALLOWED] host evil:6379" in ran.output, ran.output


@pytest.mark.in_turn
def test_addresses_and_identities_are_made_from_options_in_one_place() -> None:
    """Where the lists are asked: spark_streams/connector/options/access_options.py."""
    makers = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            made = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if made in ("Address", "Address.parse", "Identity"):
                makers.add((str(path.relative_to(PACKAGE)), made))
    assert makers == {
        (
            "connector/options/table.py",
            "Address.parse",
        ),  # the option url, of which connector/options/access_options.py makes the server
        ("connector/options/access_options.py", "Identity"),
        (
            "connector/admin/streams.py",
            "Address.parse",
        ),  # an engine as the target of a copy; the list is asked there, too
        ("connector/wire/address.py", "Identity"),  # of the environment
        ("operations/commands/verify.py", "Address.parse"),  # an engine that the command has started
        (
            "operations/verify/verify_run.py",
            "Address.parse",
        ),  # a relay of its own on this machine, to a server that was asked for
    }
