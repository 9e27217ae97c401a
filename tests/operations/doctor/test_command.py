"""`rstream doctor` on servers of all kinds: what people see, what programs read, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from spark_streams.cli import main
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Argument, Connection, Reply
from spark_streams.connector.wire.replies import is_syntax_error
from spark_streams.engine import LocalEngine
from spark_streams.operations.doctor.server_facts import fetch_facts
from tools.servers.server import (
    Server,
    free_port,
    running_redis,
    skip_without_redis,
)
from tools.waiting import until

PASSWORD = "s3cr3t-word"


def doctor(url: str, *words: str) -> Result:
    """On a terminal of 80 columns."""
    ran = CliRunner().invoke(main, ["doctor", url, *words], env={"COLUMNS": "80"})
    assert PASSWORD not in ran.output
    return ran


def doctor_json(url: str, *words: str) -> dict[str, Any]:
    ran = doctor(url, "--json", *words)
    assert ran.exit_code in (0, 3), ran.output
    told: dict[str, Any] = json.loads(ran.output)
    return told


def levels(told: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["level"], one["about"]) for one in told["findings"] if one["level"] != "ok"]


@pytest.fixture(scope="module")
def master() -> Iterator[Server]:
    """As a master should be: a file, a limit, a replica that it waits for."""
    skip_without_redis()
    well = ("--appendonly", "yes", "--appendfsync", "always", "--maxmemory", "200mb", "--min-replicas-to-write", "1")
    with running_redis(*well, "--repl-diskless-sync-delay", "0") as server:
        yield server


@pytest.fixture(scope="module")
def replica(master: Server) -> Iterator[Server]:
    with running_redis("--replicaof", "127.0.0.1", str(urlsplit(master.url).port)) as server:
        with master.client() as client:
            until(lambda: client.info("replication")["min_slaves_good_slaves"], "the master counts no good replica")
        yield server


def test_a_master_as_it_should_be_is_well(master: Server, replica: Server) -> None:
    ran = doctor(master.url)
    assert (ran.exit_code, "danger" in ran.output, "warning" in ran.output) == (0, False, False), ran.output
    assert ran.output.endswith("nothing worse than a note\n")
    assert max(map(len, ran.output.splitlines())) <= 80
    told = doctor_json(master.url)
    assert (told["worst"], levels(told)) == ("ok", [])
    assert (told["server"]["role"], told["server"]["mode"], told["server"]["database"]) == ("master", "standalone", 0)
    assert (told["server"]["user"], abs(told["server"]["clock_ahead_ms"]) < 1000) == ("default", True)


def test_a_replica_is_no_server_to_write_to(master: Server, replica: Server) -> None:
    ran = doctor(replica.url)
    assert ran.exit_code == 3
    port = urlsplit(master.url).port
    assert f"a replica of 127.0.0.1:{port}" in ran.output
    assert ("danger", "replication") in levels(doctor_json(replica.url))


def test_a_server_whose_settings_endanger_streams(redis_server: Server) -> None:
    """Each is said with what follows and what to do, within 80 columns."""
    bad = ("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru", "--timeout", "300", "--requirepass", PASSWORD,
           "--client-output-buffer-limit", "normal 1mb 1mb 10", "--min-replicas-to-write", "2")  # fmt: skip
    with running_redis(*bad) as server:
        ran = doctor(server.url.replace("://", f"://:{PASSWORD}@"))
        told = doctor_json(server.url.replace("://", f"://:{PASSWORD}@"))
        locked = doctor(server.url)
    assert ran.exit_code == 3
    assert levels(told) == [
        ("danger", "persistence"), ("danger", "memory"), ("danger", "replication"), ("danger", "limits"),
        ("note", "limits"),
    ]  # fmt: skip
    words = " ".join(ran.output.split())
    for said in (
        "neither an append-only file",
        "maxmemory-policy allkeys-lru",
        "NOREPLICAS",
        "4 dangers",
        "Do: run CONFIG SET appendonly yes",
    ):
        assert said in words, ran.output
    assert max(map(len, ran.output.splitlines())) <= 80
    assert (locked.exit_code, locked.output.count("\n")) == (1, 1)
    assert locked.output.startswith("Error: [RSTREAM_LOGIN] ")


def test_the_version_of_a_server_from_which_queries_read_is_no_danger(redis_server: Server) -> None:
    """Which version this is, scripts/test --servers chooses."""
    assert ("danger", "version") not in levels(doctor_json(redis_server.url))


def test_the_bundled_engine(server: Server) -> None:
    told = doctor_json(server.url)
    assert ("warning" if server.kind == "engine" else "danger", "persistence") in levels(told)
    assert (told["server"]["kind"] == "the bundled engine") == (server.kind == "engine")


def test_an_engine_that_keeps_its_streams_is_well(tmp_path: Any) -> None:
    with LocalEngine(directory=tmp_path) as engine:
        ran = doctor(engine.url)
    assert ran.exit_code == 0, ran.output


def test_a_user_of_few_rights(redis_server: Server) -> None:
    """It is told what it lacks; that it may not ask all is a note, and `--for` says what it needs."""
    url = redis_server.url.replace("://", f"://reader:{PASSWORD}@")
    rights = "+@stream +@connection +@transaction +@hash +@set +@string +@keyspace -@dangerous +time +role -xtrim"
    with redis_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "reader", "reset", "on", f">{PASSWORD}", "~orders", "~rstream:*",
                              *rights.split())  # fmt: skip
        try:
            told = doctor_json(url, "--stream", "orders", "--stream", "audit")
            one = doctor(url, "--stream", "orders", "--for", "reading")
            nowhere = doctor_json(url, "--stream", "orders", "--for", "writing")
        finally:
            admin.acl_deluser("reader")
    said = [finding["said"] for finding in told["findings"] if finding["about"] == "rights"]
    assert said == [
        "user reader lacks rights for looking, reading and redrive: ~audit",
        "user reader lacks rights for writing: ~audit +xtrim",
    ]
    assert [(finding["about"], finding["said"]) for finding in nowhere["findings"] if finding["level"] != "ok"] == [
        ("rights", "user reader lacks rights for writing: +xtrim"),
        ("asking", "reader may not run INFO and CONFIG"),
    ]
    assert one.exit_code == 0, one.output
    assert "user reader has all rights for reading, on orders and rstream:*" in " ".join(one.output.split())
    assert told["server"]["version"] == redis_version(redis_server)


def redis_version(server: Server) -> str:
    with server.client() as client:
        told = client.info("server")
    return str(told.get("valkey_version", told["redis_version"]))


def test_what_cannot_be_found_out_is_one_line() -> None:
    ran = doctor(f"redis://u:{PASSWORD}@127.0.0.1:{free_port()}/0")
    assert (ran.exit_code, ran.output.count("\n")) == (1, 1)
    assert "no stream server answers at redis://***@127.0.0.1" in ran.output
    assert doctor("redis://h", "--for", "dancing").exit_code == 2


def test_the_url_may_be_given_as_to_every_other_command(redis_server: Server) -> None:
    words = ["doctor", "--json"]
    by_option = CliRunner().invoke(main, [*words, "--url", redis_server.url])
    by_name = CliRunner().invoke(main, words, env={"RSTREAM_URL": redis_server.url})
    assert json.loads(by_option.output)["server"]["address"] == redis_server.url
    assert json.loads(by_name.output)["server"]["address"] == redis_server.url


class HasXackdelAlone:
    """A connection to a server that has the command XACKDEL, whatever its XTRIM knows: as Valkey 9.2."""

    def __init__(self, server: Connection) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        has = ("COMMAND", "INFO", "XACKDEL")
        replies = self._server.pipeline(commands)
        return [[[b"xackdel"]] if command == has else reply for command, reply in zip(commands, replies, strict=True)]


def test_whether_a_server_trims_by_acked_is_asked_of_xtrim(server: Server) -> None:
    """What it says is what XTRIM does; that it has XACKDEL says nothing of it."""
    with Connection(Address.parse(server.url)) as connection:
        [tried] = connection.pipeline([("XTRIM", "rstream:doctor", "MINID", "=", "0", "ACKED")])
        facts = fetch_facts(cast("Connection", HasXackdelAlone(connection)))
    assert facts.trims_by_acked is not is_syntax_error(tried)
    said = doctor(server.url).output
    assert ("XTRIM supports ACKED" in " ".join(said.split())) is facts.trims_by_acked


def test_a_named_key_that_is_no_stream_is_a_warning(server: Server) -> None:
    with server.client() as client:
        client.set("text", "x")
        client.xadd("orders", {"n": 1})
    told = doctor_json(server.url, "--stream", "text", "--stream", "orders", "--stream", "none")
    assert [finding["said"] for finding in told["findings"] if "stream" in finding["about"]][:1] == [
        "key 'text' is not a stream"
    ]


def test_the_engine_says_how_large_its_streams_are(engine_server: Server) -> None:
    with engine_server.client() as client:
        client.flushall()
        for number in range(9):
            client.xadd("orders", {"n": number})
        client.xadd("audit", {"n": 1})
    [said] = [
        finding["said"] for finding in doctor_json(engine_server.url)["findings"] if finding["about"] == "streams"
    ]
    assert said == "2 in this database; the largest has 8 to 15 entries"
