"""`rstream verify` from end to end: a right server passes, Ctrl-C leaves nothing, and a prefix is used once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.keys import slot_of
from spark_streams.connector.wire.address import Address
from spark_streams.operations.verify import verify_run
from spark_streams.operations.verify.relay import Relay
from spark_streams.operations.verify.running_query import RunPlan, processes_of
from spark_streams.operations.verify.verify_run import reached_through, verify
from tools.servers.server import Server, serving
from tools.waiting import until

RSTREAM = [sys.executable, "-m", "spark_streams.cli", "verify"]


@pytest.mark.spark
def test_a_right_server_passes(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    client.set("orders", "a stranger's")
    command = [*RSTREAM, "--url", server.url, "--minutes", "0.1", "--json", "--html", str(tmp_path / "page.html")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(ended.stdout)
    assert report["verdict"] == "held"
    assert set(report["counts"].values()) == {0}
    assert all(report["evidence"].values())
    assert report["not tried"]["failover"] == "--allow-failover was not given"
    assert "The guarantees held." in (tmp_path / "page.html").read_text()
    assert set(client.keys()) == {"orders", "rstream:runs"}


@pytest.mark.spark
@pytest.mark.parametrize(("number", "keeps"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_a_signal_ends_the_run_and_deletes_its_keys(engine_server: Server, number: signal.Signals, keeps: bool) -> None:
    """--keep leaves them."""
    command = [*RSTREAM, "--url", engine_server.url, *(["--keep"] if keeps else [])]
    with engine_server.client() as client:
        client.flushall()
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            until(lambda: client.keys("rstream-verify-*:in:*"), "no entry was added")
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        assert errors.endswith("stopped, without a verdict\n")
        assert bool(client.keys("rstream-verify-*")) == keeps


def own_folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("rstream-verify-*"))


@pytest.mark.spark
@pytest.mark.parametrize("keeps", [False, True])
def test_a_killed_run_leaves_nothing(engine_server: Server, keeps: bool) -> None:
    """--keep leaves its keys."""
    before = own_folders()
    command = [*RSTREAM, "--url", engine_server.url, *(["--keep"] if keeps else [])]
    with engine_server.client() as client:
        client.flushall()
        client.set("orders", "a stranger's")
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            until(lambda: client.keys("rstream-verify-*:in:*"), "no entry was added")
            [folder] = own_folders() - before
            until((folder / "driver").exists, "no driver was started")
            driver = int((folder / "driver").read_text())
            assert processes_of(driver)
            process.kill()
        until(lambda: not folder.exists(), "its folder is left")
        assert not processes_of(driver)
        assert bool(client.keys("rstream-verify-*")) == keeps
        assert client.exists("orders")


@pytest.mark.spark
def test_a_killed_run_leaves_no_engine() -> None:
    before = own_folders()
    with subprocess.Popen([*RSTREAM, "--engine"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        engine = Path(process.stderr.readline().partition("unix://")[2].partition(",")[0]).parent
        until(lambda: any((one / "driver").exists() for one in own_folders() - before), "no driver was started")
        assert (engine / "engine.log").exists()
        process.kill()
    until(lambda: not engine.exists() and own_folders() <= before, "a folder is left")


@pytest.mark.spark
def test_a_second_signal_ends_the_cleaning_and_another_process_does_it() -> None:
    before = own_folders()
    with serving() as server, server.client() as client:
        with subprocess.Popen([*RSTREAM, "--url", server.url], stderr=subprocess.PIPE, text=True) as process:
            until(lambda: client.keys("rstream-verify-*:in:*"), "no entry was added")
            [folder] = own_folders() - before
            server.process.send_signal(signal.SIGSTOP)
            process.send_signal(signal.SIGINT)
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            _, errors = process.communicate(timeout=60)
            assert (process.returncode, time.monotonic() - began < 3) == (130, True), errors
            assert errors.endswith("stopped while it cleans: another process does that, within two minutes\n")
        server.process.send_signal(signal.SIGCONT)
        until(lambda: not folder.exists(), "its folder is left")
        assert client.keys("rstream-verify-*") == []


def test_keys_of_the_same_name_are_not_touched(server: Server, client: redis.Redis) -> None:
    client.set("taken:in:0", 1)
    plan = RunPlan("taken", 1, 60, {})
    with pytest.raises(InvalidOptionError, match="keys with the prefix taken exist"):
        verify(plan, Address.parse(server.url), {}, print, lambda: None)
    assert client.keys() == ["taken:in:0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the server with --url, or try the bundled engine with --engine"),
        (["--engine", "--url", "redis://h"], "one of them"),
        (["--engine", "--spark-submit", "spark-submit --deploy-mode cluster"], "remove --deploy-mode cluster"),
        (["--engine", "--minutes", "0"], "--minutes"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RSTREAM_URL", raising=False)
    ran = CliRunner().invoke(main, ["verify", *arguments])
    assert ran.exit_code == 2
    assert message in ran.output


def test_choices_depend_on_the_seed_alone() -> None:
    one, same, other = (RunPlan(name, seed, 60, {}) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert one.chance("x").random() == same.chance("x").random() != other.chance("x").random()
    assert one.sink()["chunkSize"] == same.sink()["chunkSize"]


def planned(url: str, monkeypatch: pytest.MonkeyPatch) -> RunPlan:
    """Return the plan that the command makes for a server."""
    plans = list[RunPlan]()

    def stop(plan: RunPlan, *_: object) -> None:
        plans.append(plan)
        raise KeyboardInterrupt

    monkeypatch.setattr(verify_run, "verify", stop)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert CliRunner().invoke(main, ["verify", "--url", url]).exit_code == 130
    return plans[0]


@pytest.mark.parametrize(
    ("url", "has_one_slot"),
    [
        ("redis://h", True),
        ("unix:///s", True),
        ("redis+sentinel://a:1,b:2/main", True),
        ("redis+cluster://a:1,b:2", False),
    ],
)
def test_streams_are_in_one_slot_if_there_is_one_address(
    url: str, has_one_slot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several shards may be behind it, and a transaction there has one slot. A cluster tries streams of several."""
    plan = planned(url, monkeypatch)
    names = [*plan.streams, plan.out, plan.dead]
    assert len(set(names)) == 4
    assert (len({slot_of(name.encode()) for name in names}) == 1) == has_one_slot


@pytest.mark.parametrize(
    ("url", "reached"),
    [
        ("redis+cluster://u:p@a:1,b:2", "redis+cluster://u:p@a:1,b:2?client_name=run"),
        ("rediss://h:1/3?ssl_cert_reqs=none", "rediss://h:1/3?ssl_cert_reqs=none&client_name=run"),
        ("rediss://h:1/3?client_name=mine&db=3", "rediss://h:1/3?db=3&client_name=run"),
        ("rediss://h:1/3?client_name=mine", "rediss://h:1/3?client_name=run"),
    ],
)
def test_connections_without_a_relay_have_the_name_of_the_run(url: str, reached: str) -> None:
    assert reached_through(Address.parse(url), None, "run").url == reached


def test_a_relay_keeps_login_and_database(tmp_path: Path) -> None:
    with Relay("redis://h:1", tmp_path) as relay:
        through = reached_through(Address.parse("redis://u:p@h:1/3"), relay, "run")
        assert through.url == f"redis://u:p@127.0.0.1:{relay.port}/3"
    with Relay("unix:///s", tmp_path) as relay:
        assert reached_through(Address.parse("unix:///s"), relay, "run").url == f"unix://{tmp_path}/relay.sock"


class Hanging:
    """A query that neither ends nor comes to the condition. It waits on a clock of its own."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wait(self, seconds: float, condition: object) -> bool:
        self.seconds += seconds
        return False

    def end(self) -> None:
        return None

    def log(self) -> str:
        return "waiting for\nlocks"


@pytest.mark.parametrize(("batch_at", "ended_at"), [(None, 300), (150, 480)])
def test_a_query_that_hangs_is_told_each_minute_and_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, batch_at: float | None, ended_at: float
) -> None:
    """Each batch gives it five minutes more."""
    query, told = Hanging(), list[str]()
    monkeypatch.setattr(verify_run, "time", SimpleNamespace(monotonic=lambda: query.seconds))
    logs = SimpleNamespace(logged=lambda: 7 + (batch_at is not None and query.seconds > batch_at), committed=lambda: 7)
    run = SimpleNamespace(_tell=told.append, _checkpoint=logs)
    with pytest.raises(verify_run.HungQueryError, match=r"no progress for 300 s, at batch [78]: waiting for locks"):
        verify_run._VerifyRun._advance(run, query)  # type: ignore[arg-type]
    assert query.seconds == ended_at
    assert told[:2] == ["no progress for 60 s, at batch 7", "no progress for 120 s, at batch 7"]
    assert len(told) == ended_at // 60 - 1 - (batch_at is not None)


def test_cleaning_has_an_end(server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client writes a key of the run again and again."""
    monkeypatch.setattr(verify_run, "QUIET", 0.1)
    honest, told = verify_run.server_side.delete_own_keys, list[str]()

    def deleting(*given: Any, **named: Any) -> int:
        client.set("run:in:0", 1)
        return honest(*given, **named)

    monkeypatch.setattr(verify_run.server_side, "delete_own_keys", deleting)
    verify_run._clean(Address.parse(server.url), RunPlan("run", 1, 60, {}), Path("/nowhere"), told.append)
    assert told[0] == "keys with run in their names are written again and again: end what writes them"
