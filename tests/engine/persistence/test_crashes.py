"""What a crash leaves behind: torn and damaged files, killed engines, full disks."""

from __future__ import annotations

import errno
import logging
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_streams.engine import EngineStartError, LocalEngine
from spark_streams.engine.persistence.aof_loader import CorruptFileError, UnknownCommandError
from spark_streams.engine.persistence.aof_writer import PersistenceError
from tests.engine.state import Inside, state
from tests.engine.test_against_redis import EXAMPLES
from tests.engine.wire import Wire, wire
from tools.machine_time import machine_seconds
from tools.servers.server import Server
from tools.waiting import until

FILE = "appendonly.aof"
BEFORE = Path(__file__).parents[2] / "data" / "unreleased"


def sample(directory: Path) -> tuple[bytes, list[int]]:
    """A small file with a bit of everything, and where it may end."""
    inside = Inside(directory, clock=lambda: 1_700_000_000_000)
    ends = [0]
    programs: list[list[tuple[Any, ...]]] = [
        [("XADD", "s", "*", "field", "value\r\n*1\r\n$4\r\nPING\r\n")],
        [("XADD", "s", "*", "a", "1", "b", "")],
        [("XGROUP", "CREATE", "s", "g", "0")],
        [("XGROUP", "CREATECONSUMER", "s", "g", "ann")],
        [("XREADGROUP", "GROUP", "g", "ann", "COUNT", "1", "STREAMS", "s", ">")],
        [("MULTI",), ("SET", "k", "v"), ("XACK", "s", "g", "1700000000000-0"), ("HSET", "h", "f", "1"), ("EXEC",)],
        [("SELECT", "3"), ("LPUSH", "l", "x", "y")],
        [("EXPIRE", "l", "1000")],
    ]
    for program in programs:
        for words in program:
            inside.call(*words)
        ends.append(inside.engine.persistence.size)
    inside.stop()
    return (directory / FILE).read_bytes(), ends


@pytest.mark.in_turn
def test_a_file_cut_off_at_any_byte_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is whole is kept, what is not is cut off with a line that says where; also within a transaction."""
    data, ends = sample(tmp_path)
    caplog.set_level(logging.WARNING, logger="rstream.engine")
    logging.getLogger("rstream.engine").propagate = True
    # SELECT 3 stands on its own before what follows it.
    ends.append(data.index(b"*4\r\n$5\r\nLPUSH"))
    ends.append(data.index(b"*5\r\n$4\r\nXADD"))
    for length in range(len(data) + 1):
        (tmp_path / FILE).write_bytes(data[:length])
        caplog.clear()
        inside = Inside(tmp_path)
        whole = max(end for end in ends if end <= length)
        assert inside.engine.persistence.size == whole
        inside.stop()
        if whole < length:
            assert f"cut off at offset {whole}, {length - whole} bytes dropped" in caplog.text
        else:
            assert not caplog.text


def test_zeros_at_the_end_are_cut_off(tmp_path: Path) -> None:
    """As a file system leaves them that had grown the file before the power failed."""
    data, _ = sample(tmp_path)
    (tmp_path / FILE).write_bytes(data + bytes(5000))
    inside = Inside(tmp_path)
    assert inside.engine.persistence.size == len(data)
    inside.stop()


def test_a_torn_file_can_be_refused(tmp_path: Path) -> None:
    """aof-load-truncated no."""
    data, ends = sample(tmp_path)
    (tmp_path / FILE).write_bytes(data[:-1])
    with pytest.raises(CorruptFileError, match=f"damaged at offset {ends[-2]}: the file ends within"):
        Inside(tmp_path, aof_load_truncated="no")
    assert (tmp_path / FILE).read_bytes() == data[:-1]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ((b"XGROUP\r\n$6\r\nCREATE", b"XGRUPP\r\n$6\r\nCREATE"), "unknown command 'XGRUPP'"),
        ((b"*7\r\n$4\r\nXADD", b"*8\r\n$4\r\nXADD"), "expected|Protocol|not a command|no length"),
        ((b"$5\r\nfield", b"$9\r\nfield"), "Protocol|no length|does not end"),
        ((b"$3\r\nann", b"$3999\r\nann"), "runs over the command at offset"),
        ((b"EXEC", b"EXEX"), "unknown command 'EXEX'"),
        ((b"1700000000000-1\r\n$1\r\na", b"0700000000000-1\r\n$1\r\na"), "smaller than the target stream top item"),
        ((b"$4\r\nHSET", b"$4\r\nPING"), "is not a command that changes data"),
        ((b"*2\r\n$6\r\nSELECT", b"REDIS0010"), "RDB"),
    ],
)
def test_damage_is_refused_with_its_offset(tmp_path: Path, damage: tuple[bytes, bytes], reason: str) -> None:
    """Nothing is loaded or cut off, and the engine ends with what to know and a code that is not zero."""
    data, ends = sample(tmp_path)
    at = data.index(damage[0])
    broken = data.replace(*damage, 1)
    assert broken != data
    (tmp_path / FILE).write_bytes(broken)
    with pytest.raises(CorruptFileError, match=reason) as found:
        Inside(tmp_path)
    assert max(end for end in [0, 23, *ends] if end <= at) <= found.value.offset <= at + len(damage[1])
    assert (tmp_path / FILE).read_bytes() == broken


@pytest.mark.parametrize("name", ["RPUSH", "RPOP"])
def test_a_file_of_an_unreleased_version_with_a_removed_command_is_refused_by_its_name(
    tmp_path: Path, name: str
) -> None:
    """Also within a transaction. The file stays as it was, and the error says how it becomes loadable."""
    data = (BEFORE / "lists.aof").read_bytes()
    for other in {b"RPUSH": b"LPUSH", b"RPOP": b"LPOP"}.items():
        if other[0] != name.encode():
            data = data.replace(b"$%d\r\n%b" % (len(other[0]), other[0]), b"$%d\r\n%b" % (len(other[1]), other[1]))
    (tmp_path / FILE).write_bytes(data)
    at = data.index(b"*", data.index(name.encode()) - 8)
    with pytest.raises(
        UnknownCommandError, match=f"contains {name} at offset {at}, .* BGREWRITEAOF .*redis-cli --pipe"
    ):
        Inside(tmp_path)
    assert (tmp_path / FILE).read_bytes() == data


def test_a_key_that_an_unreleased_version_has_moved_is_in_its_other_database(tmp_path: Path) -> None:
    data = (BEFORE / "lists.aof").read_bytes()
    (tmp_path / FILE).write_bytes(data.replace(b"$5\r\nRPUSH", b"$5\r\nLPUSH").replace(b"$4\r\nRPOP", b"$4\r\nLPOP"))
    inside = Inside(tmp_path)
    assert [inside.call(*words) for words in (("EXISTS", "k"), ("SELECT", 1), ("GET", "k"))] == [0, b"OK", b"v"]
    inside.stop()


def test_a_removed_command_behind_a_damaged_length_is_not_cut_off(tmp_path: Path) -> None:
    data = (BEFORE / "lists.aof").read_bytes()
    at = data.index(b"*4\r\n$5\r\nRPUSH")
    broken = data[:at].replace(b"$1\r\na\r\n", b"$9000\r\na\r\n") + data[at : data.index(b"*2\r\n$4\r\nLPOP")]
    (tmp_path / FILE).write_bytes(broken)
    with pytest.raises(CorruptFileError, match="runs over the command at offset"):
        Inside(tmp_path)
    assert (tmp_path / FILE).read_bytes() == broken


def test_a_file_that_an_unreleased_version_has_rewritten_is_loaded(tmp_path: Path) -> None:
    """With its list, and the key that was moved to another database."""
    (tmp_path / FILE).write_bytes((BEFORE / "lists_rewritten.aof").read_bytes())
    inside = Inside(tmp_path)
    assert inside.call("XPENDING", "s", "g")[:1] == [1]
    assert inside.call("XLEN", "s") == 2
    assert inside.call("LRANGE", "l", 0, -1) == [b"b", b"c"]
    assert [inside.call(*words) for words in (("SELECT", 1), ("GET", "k"))] == [b"OK", b"v"]
    inside.stop()


def test_an_engine_process_says_why_it_cannot_start(tmp_path: Path) -> None:
    """One line, with the offset and what to do."""
    data, _ = sample(tmp_path)
    (tmp_path / FILE).write_bytes(data.replace(b"XGROUP", b"XGRUPP", 1))
    with pytest.raises(EngineStartError, match="ended with code 1: .*damaged at offset .*truncate -s"):
        LocalEngine(directory=tmp_path).__enter__()


@pytest.mark.in_turn
@settings(max_examples=EXAMPLES * 5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=2))
def test_no_damage_hangs_or_crashes(tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]) -> None:
    """Load what can be read, cut off no more than the last command or transaction, or refuse."""
    directory = tmp_path_factory.mktemp("flip")
    data, ends = sample(directory)
    broken = bytearray(data)
    for at, byte in flips:
        broken[at % len(data)] = byte
    (directory / FILE).write_bytes(broken)
    refused: CorruptFileError | None = None
    try:
        inside = Inside(directory)
    except CorruptFileError as problem:
        refused = problem
    if refused is not None:
        assert 0 <= refused.offset <= len(data)
        assert (directory / FILE).read_bytes() == broken
    else:
        assert inside.engine.persistence.size in (len(data), ends[-2])
        state(inside.call, (0, 3))
        inside.stop()
    shutil.rmtree(directory)


class Load:
    """Clients that write, read and acknowledge until the engine is gone, and what they were told."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.added: list[bytes] = []
        self.delivered: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.asked: set[bytes] = set()
        self._threads = [threading.Thread(target=self._until_gone, args=(work,)) for work in (self._add, self._read)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for thread in self._threads:
            thread.join()

    def _until_gone(self, work: Any) -> None:
        try:
            with wire(self.server) as client:
                while True:
                    work(client)
        except (ConnectionError, BrokenPipeError):
            pass

    def _add(self, client: Wire) -> None:
        for _ in range(20):
            client.send("XADD", "s", "*", "n", len(self.added), "text", "x" * 50)
        for _ in range(20):
            self.added.append(client.reply())

    def _read(self, client: Wire) -> None:
        reply = client.call("XREADGROUP", "GROUP", "g", "ann", "COUNT", 30, "BLOCK", 50, "STREAMS", "s", ">")
        ids = [one[0] for one in reply[0][1]] if reply else []
        self.delivered.update(ids)
        if ids[::2]:
            self.asked.update(ids[::2])
            client.call("XACK", "s", "g", *ids[::2])
            self.acked.update(ids[::2])

    def check(self, client: redis.Redis) -> None:
        """Nothing that was answered is forgotten."""
        present = {one for one, _ in client.xrange("s")}
        assert not set(self.added) - present
        pending = {one["message_id"] for one in client.xpending_range("s", "g", "-", "+", 1_000_000)}
        assert not self.delivered - self.asked - pending
        assert not self.acked & pending
        group = client.xinfo_groups("s")[0]
        last = group["last-delivered-id"]
        position = tuple(map(int, last.split(b"-")))
        assert all(tuple(map(int, one.split(b"-"))) <= position for one in self.delivered)
        assert group["entries-read"] + group["lag"] == len(present)


@pytest.mark.parametrize(("fsync", "ending"), [("always", "kill"), ("everysec", "stop"), ("no", "stop")])
def test_what_was_answered_survives(tmp_path: Path, fsync: str, ending: str) -> None:
    """Entries, deliveries and acknowledgements, twice in a row, the second time with a rewrite under way.

    Killed, only `always` keeps all of it: otherwise what is answered may wait in memory for a busy disk, as in Redis.
    """
    with LocalEngine(directory=tmp_path, fsync=fsync) as engine, redis.Redis.from_url(engine.url) as client:
        client.xgroup_create("s", "g", "0", mkstream=True)
    for turn in range(2):
        with LocalEngine(directory=tmp_path, fsync=fsync) as engine, Load(Server("engine", engine.url)) as load:
            until(lambda: len(load.added) > 100 and load.acked, "the clients got nothing done")
            if turn:
                with redis.Redis.from_url(engine.url) as client:
                    client.bgrewriteaof()
                    time.sleep(0.05)
            if ending == "kill":
                engine.kill()
            else:
                engine.stop()
        with LocalEngine(directory=tmp_path, fsync=fsync) as engine, redis.Redis.from_url(engine.url) as client:
            load.check(client)
            client.delete("s")
            client.xgroup_create("s", "g", "0", mkstream=True)


def test_rewriting_under_load_loses_nothing(tmp_path: Path) -> None:
    """What comes while the child writes is in the new file; the old one is gone, and so is every temporary one."""
    with LocalEngine(directory=tmp_path, fsync="always") as engine, redis.Redis.from_url(engine.url) as client:
        client.xgroup_create("s", "g", "0", mkstream=True)
        with Load(Server("engine", engine.url)) as load:
            for _ in range(3):
                time.sleep(0.1)
                client.bgrewriteaof()
                while client.info("persistence")["aof_rewrite_in_progress"]:
                    time.sleep(0.01)
                assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"
            engine.kill()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".{FILE}.lock", FILE]
    with LocalEngine(directory=tmp_path) as engine, redis.Redis.from_url(engine.url) as client:
        load.check(client)


def test_the_file_is_rewritten_when_it_has_grown(tmp_path: Path) -> None:
    """By itself, and to what the key space needs."""
    with LocalEngine(directory=tmp_path) as engine, redis.Redis.from_url(engine.url) as client:
        client.config_set("auto-aof-rewrite-min-size", "20kb")
        for number in range(1000):
            client.set("k", number)
        until(lambda: (tmp_path / FILE).stat().st_size <= 1000, "the file is not rewritten")
        assert client.get("k") == b"999"


def test_a_full_disk_refuses_writes_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading goes on, and what was done before the disk was full is written when it can be."""
    inside = Inside(tmp_path)

    def fail(data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(inside.engine.persistence.writer.file, "append", fail)
        assert inside.call("SET", "a", 1) == b"OK"
        refused = inside.call("SET", "b", 1)
        assert refused == "MISCONF Errors writing to the AOF file: No space left on device"
        assert inside.call("GET", "a") == b"1"
        inside.engine.persistence.cron()
    inside.engine.persistence.cron()
    assert inside.call("SET", "b", 2) == b"OK"
    inside.stop()
    again = Inside(tmp_path)
    assert again.call("MGET", "a", "b") == [b"1", b"2"]
    again.call("CONFIG", "SET", "appendfsync", "always")
    monkeypatch.setattr(again.engine.persistence.writer.file, "append", fail)
    with pytest.raises(PersistenceError, match="cannot write"):
        again.call("SET", "c", 1)


def test_redis_cli_pipes_the_file_into_a_real_redis(tmp_path: Path, redis_server: Server) -> None:
    """As the manual says."""
    sample(tmp_path)
    port = redis_server.url.rpartition(":")[2].partition("/")[0]
    with wire(redis_server) as client, (tmp_path / FILE).open("rb") as file:
        client.call("FLUSHALL")
        command = ["redis-cli", "-p", port, "--pipe"]
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=True, timeout=30)
        assert "errors: 0," in done.stdout
        inside = Inside(tmp_path)
        assert state(client.call, (0, 3)) == state(inside.call, (0, 3))
        inside.stop()


def test_appendonly_can_be_switched_on_and_off(tmp_path: Path) -> None:
    """On: everything there is goes to the file at once. Off: nothing more."""
    inside = Inside()
    inside.engine.config.fill("dir", str(tmp_path))
    assert "keeps everything in memory" in inside.call("SAVE")
    inside.call("XADD", "s", "1-1", "a", 1)
    assert inside.call("CONFIG", "SET", "appendonly", "yes") == b"OK"
    inside.call("XADD", "s", "2-1", "a", 1)
    assert inside.call("SAVE") == b"OK"
    assert inside.call("LASTSAVE") > 0
    inside.call("XADD", "t", "1-1", "a", 1)
    assert inside.call("BGSAVE") == b"Background saving started"
    deadline = machine_seconds() + 10
    while inside.engine.persistence.busy:
        assert machine_seconds() < deadline
        inside.engine.persistence.cron()
    assert "rdb_changes_since_last_save:0" in inside.call("INFO", "persistence").decode()
    assert inside.call("CONFIG", "SET", "appendonly", "no") == b"OK"
    inside.call("XADD", "s", "3-1", "a", 1)
    again = Inside(tmp_path)
    assert again.call("XLEN", "s") == 2
    assert "in use by another engine" in inside.call("CONFIG", "SET", "appendonly", "yes")
    assert inside.call("CONFIG", "GET", "appendonly") == [b"appendonly", b"no"]
    again.stop()
