"""What docs/guide/review.md says of connections and cryptography is what the code does."""

from __future__ import annotations

import ast
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from spark_streams.connector.schemas.schema_registry import client_context
from spark_streams.connector.wire.sockets import _tls
from spark_streams.engine.server.listeners import _tls_context
from spark_streams.engine.settings import Config
from spark_streams.engine.store.node_limits import NodeLimits
from tests.certificates import certificates

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "spark_streams"
PAGE = (ROOT / "docs" / "guide" / "review.md").read_text(encoding="utf-8")
CLIENTS = (
    *("urllib.request", "http.client", "httpx", "httpx2", "requests", "aiohttp", "smtplib", "ftplib", "xmlrpc"),
    *("websockets", "urllib3", "openlineage.client.transport"),
)


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.in_turn
def test_the_modules_that_open_a_connection_are_known() -> None:
    """HTTP: the registry, the collector. Else a socket of Redis, or of this machine's engine."""
    by_http, by_socket = set(), set()
    for name, tree in trees():
        if any(one == client or one.startswith(f"{client}.") for one in imported(tree) for client in CLIENTS):
            by_http.add(name)
        calls = {_method(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        if calls & {"connect", "create_connection", "open_connection"}:
            by_socket.add(name)
    assert by_http == {
        "connector/schemas/schema_registry.py",
        "connector/watch/lineage/lineage.py",
    }
    assert by_socket == {
        "connector/wire/sockets.py",  # your servers
        "operations/verify/relay.py",  # rstream verify, to the server that it tries
        "engine/launch/engine_process.py",  # the engine's socket file
        "engine/server/listeners.py",  # whether another engine has that file
        "engine/server/client_connections.py",  # a method of the engine
        "operations/console/web_server.py",  # whether another console has the file of --socket
    }


def _method(node: ast.Call) -> str:
    """The name of the method that is called. Of the commands, `shared.connect` is a function: connector/wire opens its
    socket."""
    if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) != "shared":
        return node.func.attr
    return ""


@pytest.mark.in_turn
def test_hashes_that_protect_something_are_those_that_the_page_names() -> None:
    """MD5 and SHA-1 say that they protect nothing, so Python has them on a FIPS system, too."""
    used: dict[str, set[str]] = {}
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hashlib":
                used.setdefault(node.attr, set()).add(name)
    assert used.keys() == {"sha256", "sha1", "md5", "blake2b"}
    for kind in ("sha1", "md5"):
        for name in used[kind]:
            text = (PACKAGE / name).read_text(encoding="utf-8")
            assert text.count(f"hashlib.{kind}(") == len(
                re.findall(rf"hashlib\.{kind}\([^)]*usedforsecurity=False", text)
            )


def test_tls_before_1_2_is_refused_everywhere(tmp_path: Path) -> None:
    folder = certificates(tmp_path)
    certificate, key = str(folder / "server.pem"), str(folder / "server.key")
    config = Config(NodeLimits())
    config.fill("tls-cert-file", certificate)
    config.fill("tls-key-file", key)
    pool = redis.ConnectionPool.from_url("rediss://127.0.0.1", **_tls("rediss://127.0.0.1"))
    assert vars(pool.make_connection())["ssl_min_version"] == ssl.TLSVersion.TLSv1_2
    contexts = [client_context(), _tls_context(config)]
    assert [one.minimum_version for one in contexts] == [ssl.TLSVersion.TLSv1_2] * 2


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:tests|docs)/[\w/]+\.py)`", PAGE))))
def test_each_test_that_the_page_names_is_there(path: str) -> None:
    assert (ROOT / path).is_file()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"python -m (tools\.\w+)", PAGE))))
def test_each_program_that_the_page_names_is_there(name: str) -> None:
    assert (ROOT / f"{name.replace('.', '/')}.py").is_file()
