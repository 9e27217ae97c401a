"""What is used of redis-py: a connection that it makes, logs in and closes; the socket of it is a private part.

The next major version of redis-py and of hiredis is shut out in pyproject.toml until the tests pass with it; with the
oldest ones they are run by `scripts/test --oldest`.
"""

from __future__ import annotations

import ast
import importlib.metadata
import socket
from pathlib import Path

import hiredis
import pytest
import redis
from redis.connection import AbstractConnection

import spark_streams
from spark_streams.connector.spark.installation import NEEDED, numbers
from tools.servers.server import Server

PACKAGE = Path(spark_streams.__file__).parent
PRIVATE = {"_sock"}


def of_redis(name: str) -> bool:
    return name.split(".", 1)[0] == "redis"


@pytest.mark.in_turn
def test_one_file_alone_makes_connections_and_some_know_errors() -> None:
    """redis is imported in no other file of the package, except where users have a plain client: the plugin's fixture,
    assertions of tests, and dead letters of consumers without Spark."""
    importing = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(map(of_redis, names)):
                importing.add(str(path.relative_to(PACKAGE)))
    errors = {
        "connector/wire/connection.py",
        "connector/wire/sentinel.py",
        "connector/wire/named_errors.py",
    }
    assert importing == {
        "connector/wire/sockets.py",
        *errors,
        "pytest_plugin.py",
        "connector/testing.py",
        "connector/dead_letters.py",
    }


def test_the_socket_is_the_only_private_part() -> None:
    """Of redis-py's objects there are two in that file: the pool, and the connection that it makes."""
    tree = ast.parse((PACKAGE / "connector" / "wire" / "sockets.py").read_text(encoding="utf-8"))
    private = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and ast.unparse(node.value) in ("connection", "pool", "self._connection", "redis", "hiredis")
    }
    assert private == PRIVATE


def test_a_connection_has_a_socket_from_which_nothing_is_read_ahead(server: Server) -> None:
    """Whatever login and greeting were: the next byte on it belongs to the next command."""
    pool = redis.ConnectionPool.from_url(server.url, protocol=2, socket_timeout=5, socket_connect_timeout=5)
    connection = pool.make_connection()
    assert isinstance(connection, AbstractConnection)
    connection.connect()
    try:
        connected = connection._sock
        assert isinstance(connected, socket.socket)
        assert connected.gettimeout() == 5
        connected.sendall(hiredis.pack_command(("ECHO", b"x")))
        assert connected.recv(100) == b"$1\r\nx\r\n"
    finally:
        connection.disconnect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        connected.recv(1)


@pytest.mark.parametrize("name", ["redis", "hiredis"])
def test_what_is_installed_is_within_what_is_declared(name: str) -> None:
    least, below = NEEDED[name]
    assert below is not None
    assert least <= numbers(importlib.metadata.version(name)) < below
