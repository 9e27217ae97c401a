"""While an engine reads its file back, who asks is told LOADING in Redis' words: nobody is refused or left hanging."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from spark_streams.engine import LocalEngine
from spark_streams.engine.command_table import every_command
from spark_streams.engine.commands import new_engine
from spark_streams.engine.launch.embedded import locate
from spark_streams.engine.persistence.aof_loader import LoadingStoppedError
from tests.engine.judge import Judge
from tests.engine.server.test_processes import ENVIRONMENT
from tests.engine.wire import Failed, command, wire
from tools.servers.server import Server, free_port
from tools.waiting import until

pytestmark = pytest.mark.in_turn

LOADING = "LOADING Redis is loading the dataset in memory"


def write(directory: Path, megabytes: int) -> int:
    """A file of so many megabytes in this directory; how many entries of stream `s` it holds."""
    count = megabytes * 9000
    entries = [command("XADD", "s", f"{number}-1", "field", "v" * 50) for number in range(1, count + 1)]
    directory.mkdir(exist_ok=True)
    (directory / "appendonly.aof").write_bytes(b"".join(entries))
    return count


class Loaded:
    """An engine without sockets that has read a file back; a client asked this at every breath."""

    def __init__(self, directory: Path, *asked: str, **settings: str) -> None:
        self.engine = new_engine()
        for name, value in {"dir": str(directory), "appendonly": "yes", **settings}.items():
            self.engine.config.start_with(name, value)
        self.client = self.engine.connect("test:0", "test:0")
        self.replies: list[list[Any]] = []
        self.asked = asked
        self.engine.serve_meanwhile = lambda: self.replies.append([self.ask(*text.split()) for text in asked])

    def ask(self, *words: str) -> Any:
        self.engine.tick()
        out: list[bytes] = []
        self.engine.run(self.client, [[word.encode() for word in words]], out, 1 << 30)
        return b"".join(out)

    def start(self) -> Loaded:
        self.engine.persistence.start()
        return self

    def stop(self) -> None:
        self.engine.persistence.stop()


def test_what_needs_data_is_refused_meanwhile(tmp_path: Path) -> None:
    """At every breath, in the words of Redis; afterwards all is there."""
    count = write(tmp_path, 3)
    asked = ("PING", "XLEN s", "XADD s * a 1", "GET k", "DEBUG RELOAD", "KEYS *", "XREAD BLOCK 0 STREAMS s $")
    loaded = Loaded(tmp_path, *asked)
    loaded.ask("CONFIG", "RESETSTAT")  # the counts are the process's, which other tests share
    loaded.start()
    assert len(loaded.replies) >= 3
    assert {reply for replies in loaded.replies for reply in replies} == {b"-%b\r\n" % LOADING.encode()}
    assert loaded.ask("XLEN", "s") == b":%d\r\n" % count
    stats = loaded.ask("INFO", "commandstats").decode()
    assert (
        f"cmdstat_ping:calls=0,usec=0,usec_per_call=0.00,rejected_calls={len(loaded.replies)},failed_calls=0" in stats
    )
    assert "errorstat_LOADING:count=" in loaded.ask("INFO", "errorstats").decode()
    loaded.stop()


def test_what_redis_lets_through_is_answered(tmp_path: Path) -> None:
    """Who one is, the settings, INFO; a transaction is begun, and broken by what needs data."""
    write(tmp_path, 2)
    asked = ("ECHO x", "SELECT 0", "CLIENT GETNAME", "CONFIG GET appendonly", "MULTI", "XLEN s", "EXEC")
    loaded = Loaded(tmp_path, *asked).start()
    broken = b"-EXECABORT Transaction discarded because of previous errors.\r\n"
    expected = [
        b"$1\r\nx\r\n", b"+OK\r\n", b"$-1\r\n", b"*2\r\n$10\r\nappendonly\r\n$3\r\nyes\r\n", b"+OK\r\n",
        b"-%b\r\n" % LOADING.encode(), broken,
    ]  # fmt: skip
    assert loaded.replies[0] == expected
    loaded.stop()


def test_a_batch_of_xadds_is_refused_meanwhile(tmp_path: Path) -> None:
    """Which on other days is carried out as one."""
    write(tmp_path, 2)
    loaded = Loaded(tmp_path)
    found: list[bytes] = []

    def serve_meanwhile() -> None:
        from spark_streams.engine.resp.request_parser import RequestParser

        parser = RequestParser(loaded.engine.config.requests, loaded.engine.shapes)
        requests = parser.feed(command("XADD", "s", "*", "field", "value") * 100)
        loaded.engine.run(loaded.client, requests, found, 1 << 30)

    loaded.engine.serve_meanwhile = serve_meanwhile
    loaded.start()
    assert len(found) >= 200
    assert set(found) == {b"-%b\r\n" % LOADING.encode()}
    loaded.stop()


def test_a_password_comes_first(tmp_path: Path) -> None:
    """Who has not said it is told so, and nothing else."""
    write(tmp_path, 2)
    loaded = Loaded(tmp_path, "PING", "AUTH geheim", "PING", "RESET", requirepass="geheim").start()
    assert [reply[:8] for reply in loaded.replies[0]] == [b"-NOAUTH ", b"+OK\r\n", b"-LOADING", b"+RESET\r\n"]
    loaded.stop()


def test_info_tells_how_far_it_is(tmp_path: Path) -> None:
    """loading:1 with what is read and what there is; loading:0 and nothing of the kind afterwards."""
    write(tmp_path, 3)
    loaded = Loaded(tmp_path, "INFO persistence").start()
    told = [dict(line.split(":") for line in reply[0].decode().splitlines() if ":" in line) for reply in loaded.replies]
    size = str((tmp_path / "appendonly.aof").stat().st_size)
    assert [fields["loading"] for fields in told] == ["1"] * len(told)
    assert {fields["loading_total_bytes"] for fields in told} == {size}
    read = [int(fields["loading_loaded_bytes"]) for fields in told]
    assert read == sorted(read)
    assert read[-1] == int(size)
    assert told[-1]["loading_loaded_perc"] == "100.00"
    assert all(int(fields["loading_eta_seconds"]) >= 0 for fields in told)
    afterwards = loaded.ask("INFO", "persistence").decode()
    assert "loading:0\r\n" in afterwards
    assert "loading_" not in afterwards
    loaded.stop()


def test_a_long_transaction_is_breathed_in(tmp_path: Path) -> None:
    """Its commands run when its end is read: many at once."""
    adds = b"".join(command("XADD", "s", f"{number}-1", "a", "1") for number in range(1, 21_001))
    (tmp_path / "appendonly.aof").write_bytes(command("MULTI") + adds + command("EXEC"))
    assert len(command("MULTI") + adds) < 1 << 20
    loaded = Loaded(tmp_path, "XLEN s").start()
    assert len(loaded.replies) == 3
    loaded.stop()


def test_appendonly_no_meanwhile(tmp_path: Path) -> None:
    """What was read stays in memory, the file is let go of."""
    count = write(tmp_path, 2)
    loaded = Loaded(tmp_path, "CONFIG SET appendonly no").start()
    assert loaded.replies[0] == [b"+OK\r\n"]
    assert loaded.ask("XLEN", "s") == b":%d\r\n" % count
    assert b"aof_enabled:0" in loaded.ask("INFO", "persistence")
    again = Loaded(tmp_path).start()  # it is nobody's
    again.stop()


def test_shutdown_meanwhile(tmp_path: Path) -> None:
    """It ends at once, and the file is as it was."""
    write(tmp_path, 3)
    before = (tmp_path / "appendonly.aof").read_bytes()
    loaded = Loaded(tmp_path, "SHUTDOWN NOSAVE")
    with pytest.raises(LoadingStoppedError):
        loaded.start()
    assert len(loaded.replies) == 1
    loaded.stop()
    assert (tmp_path / "appendonly.aof").read_bytes() == before


def test_the_same_commands_as_in_redis(redis_server: Server) -> None:
    """By the flags that COMMAND tells, for every command that both have. DEBUG has none of its own in Redis."""
    new_engine()
    with wire(redis_server) as client:
        version = Judge(client).version
        theirs: dict[str, bool] = {}

        def note(specs: list[Any]) -> None:
            for spec in specs:
                theirs[spec[0].decode()] = b"loading" in spec[2]
                note(spec[9])

        note(client.call("COMMAND"))
    ours = {spec.name: "loading" in spec.flags for spec in every_command() if spec.handler is not None}
    both = ours.keys() & theirs.keys() - {"cluster"}  # a container there, whose subcommands are let through
    assert len(both) > 100
    different = {name for name in both if ours[name] != theirs[name]}
    assert different == (set() if version >= (7, 0) else different)


# In processes


@contextlib.contextmanager
def process(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """An engine that was told to start a moment ago."""
    words = ["--appendonly", "yes", "--dir", str(directory), *arguments]
    started = subprocess.Popen(
        [sys.executable, "-m", "spark_streams.engine", *words], env=ENVIRONMENT, stderr=subprocess.DEVNULL
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def test_clients_are_let_in_at_once(tmp_path: Path) -> None:
    """They see it load, with INFO and with errors that redis-py knows, and then all that there is."""
    count = write(tmp_path, 30)
    port = free_port()
    with process(tmp_path, "--port", str(port)) as started:
        client = redis.Redis(port=port, retry=None, socket_timeout=20)
        server = Server("engine", f"redis://127.0.0.1:{port}")

        def is_there() -> bool:
            assert started.poll() is None
            with contextlib.suppress(ConnectionError, OSError), wire(server):
                return True
            return False

        until(is_there, "the engine does not answer")
        with wire(server) as early, wire(server) as other:
            assert early.call("PING") == Failed(LOADING)
            assert "loading:1\r\n" in other.call("INFO", "persistence").decode()
            with pytest.raises(redis.exceptions.BusyLoadingError):
                client.xlen("s")
            until(lambda: early.call("PING") == b"PONG", "the engine does not finish loading", 60)
            assert early.call("XLEN", "s") == count
        client.close()


@pytest.mark.parametrize("ending", [signal.SIGTERM, "SHUTDOWN"])
def test_it_is_stopped_while_it_loads(tmp_path: Path, ending: signal.Signals | str) -> None:
    """At once, with exit code 0, with no socket left and the file as it was."""
    write(tmp_path, 60)
    path = tmp_path / "e.sock"
    size = (tmp_path / "appendonly.aof").stat().st_size
    with process(tmp_path, "--port", "0", "--unixsocket", str(path)) as started:
        server = Server("engine", f"unix://{path}")
        until(path.exists, "the engine has no socket")
        with wire(server) as client:
            assert client.call("PING") == Failed(LOADING)
            if isinstance(ending, str):
                client.send("SHUTDOWN")
            else:
                started.send_signal(ending)
            assert started.wait(10) == 0
    assert not path.exists()
    assert (tmp_path / "appendonly.aof").stat().st_size == size


def test_a_local_engine_is_ready_when_it_has_read_its_file(tmp_path: Path) -> None:
    """Its block begins no earlier."""
    count = write(tmp_path, 10)
    with LocalEngine(directory=tmp_path) as engine, Server("engine", engine.url).client() as client:
        assert client.xlen("s") == count


def test_who_comes_while_it_loads_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`embedded:///dir` whose engine was started by somebody who is gone: no second one is started."""
    monkeypatch.setenv("RSTREAM_EMBEDDED_DIR", str(tmp_path / "meet"))
    folder = tmp_path / "kept"
    count = write(folder, 20)
    path = folder / "engine.sock"
    folder.chmod(0o700)
    with process(folder, "--port", "0", "--unixsocket", str(path)) as started:
        until(path.exists, "the engine has no socket")
        url = locate(folder)
        with redis.Redis.from_url(url) as client:
            assert client.info("server")["process_id"] == started.pid
            assert client.xlen("s") == count
        assert not (folder / "engine.log").exists()
        os.kill(started.pid, signal.SIGTERM)
        assert started.wait(10) == 0


def test_nobody_is_served_by_debug_loadaof(tmp_path: Path) -> None:
    """It is for tests: it returns when all is read, and no client runs in between."""
    count = write(tmp_path, 2)
    loaded = Loaded(tmp_path, "PING", **{"enable-debug-command": "yes"}).start()
    breaths = len(loaded.replies)
    assert loaded.ask("DEBUG", "LOADAOF") == b"+OK\r\n"
    assert len(loaded.replies) == breaths
    assert loaded.ask("XLEN", "s") == b":%d\r\n" % count
    assert b"rdb_changes_since_last_save:0\r\n" in loaded.ask("INFO", "persistence")
    loaded.stop()
