"""The engine as a process: private, shared, from the command line; who starts it, who ends it."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from spark_streams.engine import EngineStartError, LocalEngine
from spark_streams.engine.launch.embedded import locate
from spark_streams.engine.launch.engine_process import wait_until_ready
from tests.engine.wire import wire
from tools.servers.server import Server, free_port, serving
from tools.waiting import until

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pid_of(url: str) -> int:
    """The process id that an engine tells in INFO."""
    with redis.Redis.from_url(url) as client:
        return int(client.info("server")["process_id"])


def shut_down(path: Path) -> None:
    """SHUTDOWN through its socket, without redis-py's retries; no matter when it is dead already."""
    with contextlib.suppress(ConnectionError), wire(Server("engine", f"unix://{path}")) as client:
        client.call("SHUTDOWN", "NOSAVE")


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A fresh Python that runs this code."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )


def test_the_engine_loads_no_spark_and_no_arrow() -> None:
    """Starting it costs a tenth of a second, not two."""
    code = (
        "import sys, spark_streams.engine.__main__\n"
        "import spark_streams.engine.launch.embedded, spark_streams.engine.launch.local\n"
        "print([name for name in ('pyspark', 'pyarrow', 'numpy', 'redis') if name in sys.modules])"
    )
    assert run(code).stdout.strip() == "[]"


def test_a_local_engine_is_private_and_ends_with_its_block() -> None:
    """Two engines share nothing; after the block neither process nor directory is left."""
    with LocalEngine() as one, LocalEngine() as two:
        assert len(one.url) < 100
        pid = one.pid
        with redis.Redis.from_url(one.url) as first, redis.Redis.from_url(two.url) as second:
            first.set("k", "v")
            assert second.get("k") is None
        directory = Path(one.url.removeprefix("unix://")).parent
        assert directory.is_dir()
    assert not alive(pid)
    assert not directory.exists()


def test_a_local_engine_dies_with_its_parent() -> None:
    """Even when the parent is killed and can do nothing about it."""
    code = (
        "import os, signal\nfrom spark_streams.engine import LocalEngine\n"
        "engine = LocalEngine().__enter__()\nprint(engine.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=30
    )
    until(lambda: not alive(int(killed.stdout)), "the engine outlives its owner")


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    """Exit code 1, what to know, and no Unix socket on which nobody listens."""
    path = tmp_path / "e.sock"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-m", "spark_streams.engine", "--port", str(port), "--unixsocket", str(path)],
            env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr == f"spark_streams.engine: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, "SHUTDOWN"])
def test_serving_on_a_port_and_stopping(ending: signal.Signals | str, tmp_path: Path) -> None:
    """A TCP port and a Unix socket at once; SIGTERM, Ctrl-C and SHUTDOWN end it with exit code 0 and no socket left."""
    port, path = free_port(), tmp_path / "e.sock"
    arguments = ["--port", str(port), "--unixsocket", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_streams.engine", *arguments], env=ENVIRONMENT, stderr=subprocess.DEVNULL
    )
    try:
        until(path.exists, "the engine has no socket")
        with redis.Redis(port=port) as client, redis.Redis(unix_socket_path=str(path)) as other:
            until(lambda: _answers(client), "the engine does not answer")
            client.xadd("s", {"a": 1})
            assert other.xlen("s") == 1
            if isinstance(ending, str):
                shut_down(path)
            else:
                process.send_signal(ending)
            assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
    assert not path.exists()


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.fixture
def meeting_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A rendezvous folder for this test alone; whatever engine was started there is stopped."""
    folder = tmp_path / "meet"
    monkeypatch.setenv("RSTREAM_EMBEDDED_DIR", str(folder))
    yield folder
    if (folder / "engine.sock").exists():
        shut_down(folder / "engine.sock")


@pytest.mark.in_turn
def test_processes_that_start_at_once_find_one_engine(meeting_place: Path) -> None:
    """Eight at the same moment end with the same engine, which outlives them."""
    code = "from spark_streams.engine.launch.embedded import locate; print(locate(idle=30))"
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=dict(os.environ, PYTHONPATH=str(ROOT)), stdout=subprocess.PIPE
        )
        for _ in range(8)
    ]
    urls = {starter.communicate(timeout=30)[0].decode().strip() for starter in starters}
    assert urls == {f"unix://{meeting_place}/engine.sock"}
    log = (meeting_place / "engine.log").read_text()
    assert log.count("ready on") == 1
    assert (meeting_place.stat().st_mode & 0o777) == 0o700
    assert alive(pid_of(urls.pop()))


def test_the_shared_engine_is_started_again_when_it_was_killed(meeting_place: Path) -> None:
    """Its socket is left behind, nobody answers: the next one to ask starts another."""
    url = locate(idle=30)
    first = pid_of(url)
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive(first) or os.waitpid(first, os.WNOHANG)[0] == first, "the killed engine is alive")
    assert (meeting_place / "engine.sock").exists()
    assert locate(idle=30) == url
    assert pid_of(url) != first


def test_the_shared_engine_goes_when_nobody_needs_it(meeting_place: Path) -> None:
    """Idle counts from the last client's leaving, and from the start when none ever came."""
    url = locate(idle=0.4)
    pid = pid_of(url)
    with redis.Redis.from_url(url) as client:
        client.ping()
        time.sleep(1)
        assert client.ping()
    until(lambda: not alive(pid), "the idle engine does not end")
    assert not (meeting_place / "engine.sock").exists()


def test_a_foreign_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that others can write to, or that is no folder, is not used."""
    open_folder = tmp_path / "open to all"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    monkeypatch.setenv("RSTREAM_EMBEDDED_DIR", str(open_folder))
    with pytest.raises(EngineStartError, match="open to other users: run chmod 700 ") as error:
        locate()
    assert shlex.split(str(error.value).rpartition("run ")[2]) == ["chmod", "700", str(open_folder)]
    link = tmp_path / "link"
    link.symlink_to(open_folder)
    monkeypatch.setenv("RSTREAM_EMBEDDED_DIR", str(link))
    with pytest.raises(EngineStartError, match="not a directory of this user"):
        locate()
    monkeypatch.setenv("RSTREAM_EMBEDDED_DIR", str(tmp_path / ("long" * 40)))
    with pytest.raises(EngineStartError, match="too long for a Unix socket .* Set RSTREAM_EMBEDDED_DIR to a shorter"):
        locate()


def test_why_it_did_not_start_is_in_the_error(meeting_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the log comes with the error."""
    broken = meeting_place.parent / "broken"
    broken.write_text("#!/bin/sh\necho no such luck\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(EngineStartError, match="ended with code 3: no such luck"):
        locate()


def test_an_engine_that_is_late_is_waited_for_by_its_clock(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """For a minute, with one line after five seconds."""
    steps = itertools.count(0, 7)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as late:
        try:
            with pytest.raises(EngineStartError, match="did not answer within 60 s: its log is empty"):
                wait_until_ready(late, tmp_path / "socket", tmp_path / "log", lambda: float(next(steps)))
        finally:
            late.kill()
    assert next(steps) == 7 * 10, "the clock was asked at the start and after 7, 14 … 63 s"
    assert [record.getMessage() for record in caplog.records] == [
        "the stream engine has not answered for 5 s: the machine is busy; waiting for up to 60 s"
    ]


@pytest.mark.parametrize("removed", ["the folder", "the socket", "another engine's socket in its place"])
def test_an_engine_whose_socket_is_removed_ends_with_a_line(tmp_path: Path, removed: str) -> None:
    """Although a client is connected: a new program would start a second engine."""
    path = tmp_path / "folder" / "engine.sock"
    path.parent.mkdir()
    with serving("--unixsocket", str(path), "--socket-check", "0.1") as engine:
        with wire(Server("engine", f"unix://{path}")) as client:
            assert client.call("PING") == b"PONG"
            time.sleep(0.3)
            assert engine.process.poll() is None
            path.unlink()
            if removed == "the folder":
                path.parent.rmdir()
            elif removed != "the socket":
                path.touch()
            assert engine.process.wait(timeout=30) == 0
        assert f"the socket {path} was removed, so no client can come in any more: stopping" in engine.log()
    assert path.exists() == removed.startswith("another")


def test_an_engine_with_a_port_serves_on_without_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    port = free_port()
    with serving("--unixsocket", str(path), "--port", str(port), "--socket-check", "0.1") as engine:
        path.unlink()
        time.sleep(1.5)
        with redis.Redis(port=port) as client:
            assert client.ping()
        assert engine.process.poll() is None
