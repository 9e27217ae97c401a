"""Adds with XADD IDMP (Redis 8.6): `rstream streams`, `doctor` and the exporter show how many, and duplicates."""

from __future__ import annotations

import json

import pytest
import redis
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.lag.survey import survey, view_streams
from spark_streams.connector.wire.connection import Connection
from tests.operations.monitor.test_exporter import read, samples_of
from tools.servers.server import Server, skip_without_idempotent_adds


@pytest.fixture
def orders(client: redis.Redis) -> None:
    """Three entries of two producers, and two duplicates; another stream has one entry that was added without IDMP."""
    skip_without_idempotent_adds(client)
    for producer, message in (("p", "1"), ("p", "1"), ("p", "2"), ("q", "1"), ("q", "1")):
        client.execute_command("XADD", "orders", "IDMP", producer, message, "*", "a", 1)
    client.xadd("plain", {"a": 1})


def printed(server: Server, *words: str) -> str:
    ran = CliRunner().invoke(main, [*words, "--url", server.url], env={"COLUMNS": "160"})
    assert ran.exit_code in (0, 3), ran.output
    return ran.stdout


@pytest.mark.usefixtures("orders")
def test_streams_shows_them(server: Server) -> None:
    rows = {row["stream"]: row["idempotent"] for row in json.loads(printed(server, "streams", "--json"))}
    assert rows == {"orders": {"producers": 2, "messages": 3, "added": 3, "duplicates": 2}, "plain": None}
    head, first, second = [line.split() for line in printed(server, "streams").splitlines() if line.strip()]
    assert head[-5:] == ["idempotent", "duplicates", "last", "id", "groups"]
    assert (first[0], first[3:5], second[0], second[3:5]) == ("orders", ["3", "2"], "plain", ["0", "0"])


@pytest.mark.usefixtures("orders")
def test_the_exporter_counts_them_of_streams_that_have_them(server: Server) -> None:
    page = read(printed(server, "exporter", "--once"))
    assert samples_of(page, "rstream_idempotent_adds_total") == {'{stream="orders"}': 3}
    assert samples_of(page, "rstream_duplicate_adds_total") == {'{stream="orders"}': 2}


@pytest.mark.usefixtures("orders")
def test_doctor_counts_them_of_a_named_stream(server: Server) -> None:
    findings = json.loads(printed(server, "doctor", "--stream", "orders", "--stream", "plain", "--json"))["findings"]
    [text] = [finding["said"] for finding in findings if "IDMP" in finding["said"]]
    assert text == (
        "stream 'orders': 3 entries were added with XADD IDMP, 2 duplicates were recognized; 3 messages of 2 "
        "producers are remembered"
    )


def test_a_stream_without_such_adds_and_a_server_without_them_have_none(
    server: Server, client: redis.Redis, connection: Connection
) -> None:
    client.xadd("s", {"a": 1})
    assert [view.idempotent for view in view_streams(connection, ["s"])] == [None]
    assert [stream.idempotent for stream in survey(connection, ["s"]).streams] == [None]
    assert printed(server, "streams").split()[:5] == ["stream", "entries", "ever", "added", "last"]
    assert "_adds_total{" not in printed(server, "exporter", "--once")
