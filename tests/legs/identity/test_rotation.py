"""Passwords and tokens that change while queries go on: each new connection takes the one of now, and one that lives
long logs in again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from spark_streams.connector.errors import LoginError
from spark_streams.connector.options.access_options import server_of
from spark_streams.connector.wire import connection
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.session import Session
from tests.legs.identity import tokens
from tests.legs.identity.rotation import Rotation
from tests.piping import Piping
from tools.driving import forget_all
from tools.servers.server import Server

WAYS = ("passwordFile", "credentialProvider")


@pytest.fixture
def rotation(redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rotation]:
    with redis_server.client() as admin:
        admin.flushall()
    made = Rotation(redis_server, tmp_path / "password")
    monkeypatch.setenv(tokens.FILE, str(made.file))
    yield made
    forget_all()
    with redis_server.client() as admin:
        admin.acl_deluser("app")


def access(way: str, rotation: Rotation) -> dict[str, str]:
    if way == "passwordFile":
        return {"username": "app", "passwordFile": str(rotation.file)}
    return {"credentialProvider": "tests.legs.identity.tokens:provider"}


def logins(client: redis.Redis) -> int:
    told = client.info("commandstats").get("cmdstat_auth", {"calls": 0})
    return int(told["calls"]) + int(told.get("rejected_calls", 0))


@pytest.mark.in_turn
@pytest.mark.parametrize("way", WAYS)
def test_a_source_and_a_sink_go_on_while_the_password_changes_every_second(
    way: str, rotation: Rotation, redis_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def direct() -> redis.Redis:
        return redis_server.client(decode_responses=True)

    with rotation.going_on():
        piping = Piping(redis_server, direct, **access(way, rotation))
        while len(rotation.passwords) < 5:
            piping.at_least(50)
        piping.end()
    piping.nothing_is_lost_or_doubled()
    assert not [one for one in rotation.passwords if one in caplog.text]


@pytest.mark.parametrize("way", WAYS)
def test_a_connection_that_lives_long_logs_in_again_when_there_is_another_password(
    way: str, rotation: Rotation, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RENEW_EVERY", 0.0)
    address = server_of({"url": redis_server.url, **access(way, rotation)}, "source")
    with Session(address) as session, redis_server.client() as admin:
        server = session.get()
        before = logins(admin)
        session.renew_login()
        assert logins(admin) == before, "it is the same password"
        rotation.renew(admin)
        session.renew_login()
        assert logins(admin) == before + 1
        session.renew_login()
        assert logins(admin) == before + 1
        assert session.get() is server
        assert session.run(lambda server: server.execute("ACL", "WHOAMI")) == b"app"


def test_a_new_password_that_the_server_does_not_know_yet_ends_no_connection(
    rotation: Rotation, redis_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "RENEW_EVERY", 0.0)
    address = server_of({"url": redis_server.url, **access("passwordFile", rotation)}, "source")
    with connect(address) as server, redis_server.client() as admin:
        rotation.file.write_text("s3cret-too-early\n")
        with caplog.at_level(logging.WARNING):
            server.renew_login()
        assert server.execute("PING") == b"PONG"
        assert f"refuses the user and password in passwordFile {rotation.file}" in caplog.text
        assert "the connection continues with the earlier login" in caplog.text
        assert "s3cret" not in caplog.text
        admin.execute_command("ACL", "SETUSER", "app", ">s3cret-too-early")
        before = logins(admin)
        server.renew_login()
        assert logins(admin) == before + 1


@pytest.mark.in_turn
def test_a_source_and_a_sink_wait_for_a_password_file_that_is_empty_while_it_is_replaced(
    rotation: Rotation, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def direct() -> redis.Redis:
        return redis_server.client(decode_responses=True)

    monkeypatch.setattr(connection, "RENEW_EVERY", 0.0)
    piping = Piping(redis_server, direct, **access("passwordFile", rotation))
    piping.at_least(50)
    for is_shut_out in (False, True):
        rotation.file.write_text("")
        filling = threading.Timer(1.0, rotation.file.write_text, [f"{rotation.passwords[-1]}\n"])
        filling.start()
        if is_shut_out:
            with redis_server.client() as admin:
                rotation.forget(admin)
        piping.at_least(50)
        filling.join()
    piping.end()
    piping.nothing_is_lost_or_doubled()


def test_at_first_an_empty_password_file_is_an_error_at_once(rotation: Rotation, redis_server: Server) -> None:
    rotation.file.write_text("")
    address = server_of({"url": redis_server.url, **access("passwordFile", rotation)}, "source")
    began = time.monotonic()
    with Session(address) as session, pytest.raises(LoginError, match="is empty: its first line is the password"):
        session.get()
    assert time.monotonic() - began < 1
    with Session(address, is_known=True) as session:
        filling = threading.Timer(0.3, rotation.file.write_text, [f"{rotation.passwords[-1]}\n"])
        filling.start()
        assert session.run(lambda server: server.execute("ACL", "WHOAMI")) == b"app"
