"""`embedded:///dir` and LocalEngine(directory=…): engines that keep what they hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from spark_streams.engine import EngineStartError, LocalEngine
from spark_streams.engine.launch.embedded import find, locate, stored_bytes
from tests.engine.server.test_processes import ENVIRONMENT, alive, pid_of, shut_down
from tools.machine_time import machine_seconds
from tools.waiting import until


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for an engine, which is stopped at the end."""
    monkeypatch.setenv("RSTREAM_EMBEDDED_DIR", str(tmp_path / "meet"))
    made = tmp_path / "kept"
    yield made
    for path in [made / "engine.sock", *(tmp_path / "meet").glob("*.sock")]:
        if path.exists():
            shut_down(path)


def test_a_local_engine_with_a_directory_remembers(tmp_path: Path) -> None:
    """Stopped or killed, the next one begins with what was there."""
    with LocalEngine(directory=tmp_path) as engine, redis.Redis.from_url(engine.url) as client:
        client.xadd("s", {"a": 1}, id="1-1")
        client.xgroup_create("s", "g", "0")
    with LocalEngine(directory=tmp_path) as engine, redis.Redis.from_url(engine.url) as client:
        assert client.xlen("s") == 1
        client.xreadgroup("g", "ann", {"s": ">"})
        client.xadd("s", {"a": 2}, id="2-1")
        engine.kill()
    with LocalEngine(directory=tmp_path) as engine, redis.Redis.from_url(engine.url) as client:
        assert client.xrange("s") == [(b"1-1", {b"a": b"1"}), (b"2-1", {b"a": b"2"})]
        assert client.xpending("s", "g")["pending"] == 1


def test_two_engines_never_share_a_file(tmp_path: Path) -> None:
    """The second ends with one line that says so."""
    with LocalEngine(directory=tmp_path), pytest.raises(EngineStartError, match="in use by another engine"):
        LocalEngine(directory=tmp_path).__enter__()


@pytest.mark.in_turn
def test_one_engine_per_directory_found_by_all(folder: Path) -> None:
    """Eight processes that start at once end with one engine; another directory has another."""
    code = (
        "import sys; from pathlib import Path; from spark_streams.engine.launch.embedded import locate\n"
        "print(locate(Path(sys.argv[1]), idle=30))"
    )
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            env={**ENVIRONMENT, "RSTREAM_EMBEDDED_DIR": os.environ["RSTREAM_EMBEDDED_DIR"]},
            stdout=subprocess.PIPE,
        )
        for _ in range(8)
    ]
    urls = {starter.communicate(timeout=60)[0].decode().strip() for starter in starters}
    assert urls == {f"unix://{folder}/engine.sock"}
    assert (folder / "engine.log").read_text().count("ready on") == 1
    other = folder.parent / "other"
    assert pid_of(locate(other, idle=30)) != pid_of(urls.pop())
    shut_down(other / "engine.sock")


def test_it_is_started_again_from_its_file(folder: Path) -> None:
    """After SIGKILL, and after it went because nobody needed it."""
    url = locate(folder, idle=30)
    with redis.Redis.from_url(url) as client:
        client.xadd("s", {"a": 1})
    first = pid_of(url)
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive(first) or os.waitpid(first, os.WNOHANG)[0] == first, "the killed engine is alive")
    assert locate(folder, idle=0.3) == url
    second = pid_of(url)
    with redis.Redis.from_url(url) as client:
        assert client.xlen("s") == 1
        client.xadd("s", {"a": 2})
    until(lambda: not alive(second), "the idle engine does not end")
    assert not (folder / "engine.sock").exists()
    with redis.Redis.from_url(locate(folder, idle=30)) as client:
        assert client.xlen("s") == 2


def test_a_busy_engine_keeps_its_place(folder: Path) -> None:
    """One that does not answer for a while is not replaced: its file is its own."""
    url = locate(folder, idle=30)
    pid = pid_of(url)
    os.kill(pid, signal.SIGSTOP)
    try:
        began = machine_seconds()
        with pytest.raises(EngineStartError, match="in use by another engine"):
            locate(folder, idle=30, busy=0.2)
        assert machine_seconds() - began < 15
    finally:
        os.kill(pid, signal.SIGCONT)
    assert pid_of(locate(folder, idle=30)) == pid


def test_fsync_is_taken_over_by_a_running_engine(folder: Path) -> None:
    """everysec unless somebody asks for more."""
    with redis.Redis.from_url(locate(folder, idle=30)) as client:
        assert client.config_get("append*") == {
            "appendfilename": "appendonly.aof", "appendfsync": "everysec", "appendonly": "yes",
        }  # fmt: skip
        locate(folder, fsync="always")
        assert client.config_get("appendfsync") == {"appendfsync": "always"}


def test_a_long_path_has_its_socket_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And every process finds it, whatever its own runtime folder is."""
    deep = folder / ("d" * 120)
    url = locate(deep, idle=30)
    assert url.startswith(f"unix://{os.environ['RSTREAM_EMBEDDED_DIR']}/")
    pid = pid_of(url)
    monkeypatch.setenv("RSTREAM_EMBEDDED_DIR", str(folder.parent / "elsewhere"))
    assert pid_of(locate(deep, idle=30)) == pid


def test_finding_one_starts_and_makes_nothing(folder: Path, tmp_path: Path) -> None:
    """Where none runs, and where one runs; also where its socket is elsewhere."""
    deep = folder / ("d" * 120)
    assert [find(), find(folder), find(deep)] == [None, None, None]
    assert list(tmp_path.iterdir()) == []
    for directory in (folder, deep):
        url = locate(directory, idle=30)
        assert find(directory) == url
        pid = pid_of(url)
        shut_down(Path(url.removeprefix("unix://")))
        until(lambda pid=pid: not alive(pid), "the engine does not shut down")  # type: ignore[misc]
        assert find(directory) is None
    assert stored_bytes(folder) == (folder / "appendonly.aof").stat().st_size
    assert stored_bytes(tmp_path / "nowhere") == 0


def test_an_engine_that_is_busy_is_found(folder: Path) -> None:
    url = locate(folder, idle=30)
    pid = pid_of(url)
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(1.5, os.kill, (pid, signal.SIGCONT)).start()
    assert find(folder) == url


def test_unusable_directories_are_refused(tmp_path: Path) -> None:
    """No place, or a place where others could put another socket."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineStartError, match="cannot use"):
        locate(tmp_path / "file")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(EngineStartError, match="other users can write to it"):
        locate(tmp_path / "open")


# The engine refuses a file of another user. Only root can make one, for the test.
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("name", ["", "engine.log", "engine.lock", "appendonly.aof"])
def test_what_another_user_owns_is_refused(folder: Path, name: str) -> None:
    """The directory, or a file in it: the owner could read it, or change it."""
    folder.mkdir(mode=0o700)
    if name:
        (folder / name).write_text("")
    os.chown(folder / name, 12345, -1)
    for look in (locate, find):
        with pytest.raises(EngineStartError, match=f"{folder / name} belongs to another user"):
            look(folder)


@pytest.mark.parametrize("name", ["engine.log", "engine.lock", "engine.address", "appendonly.aof"])
def test_a_link_is_not_followed(folder: Path, tmp_path: Path, name: str) -> None:
    """What it points to is as it was."""
    folder.mkdir(mode=0o700)
    target = tmp_path / "mine"
    target.write_text("mine")
    (folder / name).symlink_to(target)
    with pytest.raises(EngineStartError, match=f"{name} is a symbolic link"):
        locate(folder)
    assert target.read_text() == "mine"


# The same for a link.
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a link to another user")
def test_the_link_of_another_user_is_no_directory(folder: Path, tmp_path: Path) -> None:
    """It may point elsewhere tomorrow; the user's own link is followed."""
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    folder.symlink_to(real)
    assert locate(folder, idle=30) == f"unix://{real}/engine.sock"
    os.chown(folder, 12345, -1, follow_symlinks=False)
    with pytest.raises(EngineStartError, match=f"cannot use {folder}: it is a symbolic link of another user"):
        locate(folder)


def test_the_log_of_the_shared_engine_is_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a directory of one's own."""
    meet = tmp_path / "meet"
    monkeypatch.setenv("RSTREAM_EMBEDDED_DIR", str(meet))
    meet.mkdir(mode=0o700)
    (meet / "engine.log").symlink_to(tmp_path / "mine")
    with pytest.raises(EngineStartError, match="engine.log is a symbolic link"):
        locate()
    assert not (tmp_path / "mine").exists()
