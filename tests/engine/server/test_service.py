# ruff: noqa: E501 - a reply is shown on one line, as it comes
"""The engine as a service: options and configuration files, passwords, limits on clients and memory, stopping."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.engine.wire import Failed, Wire, command, wire
from tools.servers.server import Server, free_port, running_engine, running_redis, serving, skip_without_redis
from tools.waiting import until

NOAUTH = b"-NOAUTH Authentication required.\r\n"
WRONGPASS = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
OOM = "OOM command not allowed when used memory > 'maxmemory'."

# From a fresh connection to a server with a password.
AUTH_ROWS: list[tuple[str, bytes]] = [
    ("PING", NOAUTH),
    ("XADD s * a 1", NOAUTH),
    ("NOSUCH", b"-ERR unknown command 'NOSUCH', with args beginning with: \r\n"),
    ("GET", b"-ERR wrong number of arguments for 'get' command\r\n"),
    ("MULTI", NOAUTH),
    ("HELLO", b"-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time\r\n"),
    ("HELLO 3 AUTH default wrong", WRONGPASS),
    ("HELLO 5 AUTH default secret", b"-NOPROTO unsupported protocol version\r\n"),
    ("AUTH", b"-ERR wrong number of arguments for 'auth' command\r\n"),
    ("AUTH a b c", b"-ERR syntax error\r\n"),
    ("AUTH wrong", WRONGPASS),
    ("AUTH nobody secret", WRONGPASS),
    ("AUTH default wrong", WRONGPASS),
    ("RESET", b"+RESET\r\n"),
    ("AUTH secret", b"+OK\r\n"),
    ("PING", b"+PONG\r\n"),
    ("AUTH wrong", WRONGPASS),
    ("PING", b"+PONG\r\n"),
    ("RESET", b"+RESET\r\n"),
    ("PING", NOAUTH),
    ("AUTH default secret", b"+OK\r\n"),
    ("MULTI", b"+OK\r\n"),
    ("AUTH wrong", b"+QUEUED\r\n"),
    ("EXEC", b"*1\r\n" + WRONGPASS),
    ("CONFIG GET requirepass", b"*2\r\n$11\r\nrequirepass\r\n$6\r\nsecret\r\n"),
    ("RESET", b"+RESET\r\n"),
    ("QUIT", b"+OK\r\n"),
]  # fmt: skip


@pytest.fixture(scope="module", params=["engine", "redis"])
def locked(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with a password."""
    if request.param == "engine":
        with serving("--requirepass", "secret") as server:
            yield server
    else:
        skip_without_redis()
        with running_redis("--requirepass", "secret") as server:
            yield server


def test_a_password_is_asked_for_in_the_words_of_redis(locked: Server) -> None:
    """Only AUTH, HELLO, RESET and QUIT do anything before it is given."""
    with wire(locked) as client:
        for text, expected in AUTH_ROWS:
            assert client.raw(*text.split()) == expected, text


def test_hello_with_auth(locked: Server) -> None:
    """One command authenticates and changes the protocol."""
    with wire(locked) as client:
        assert client.raw("HELLO", "3", "AUTH", "default", "secret").startswith(b"%7\r\n")
        assert client.call("PING") == b"PONG"


def test_little_is_read_before_the_password(locked: Server) -> None:
    """Eleven arguments or 16 KB of one are too much, in Redis' words; right behind AUTH they are not."""
    for request, problem in (
        (b"*11\r\n", "unauthenticated multibulk length"),
        (b"*2\r\n$4\r\nPING\r\n$16385\r\n", "unauthenticated bulk length"),
    ):
        with wire(locked) as client:
            client.socket.sendall(request)
            assert client.rest() == b"-ERR Protocol error: " + problem.encode() + b"\r\n"
    with wire(locked) as client:
        long = "x" * 100_000
        client.socket.sendall(command("AUTH", "secret") + command("ECHO", long) + command("DEL", *"abcdefghijklm"))
        assert [client.reply() for _ in range(3)] == [b"OK", long.encode(), 0]


def test_the_password_can_be_changed(locked: Server) -> None:
    """Who is in stays in; who comes needs the new one."""
    with wire(locked) as client:
        client.call("AUTH", "secret")
        assert client.call("CONFIG", "SET", "requirepass", "") == b"OK"
        with wire(locked) as other:
            assert other.call("PING") == b"PONG"
            assert isinstance(other.call("AUTH", "secret"), Failed)
            assert client.call("CONFIG", "SET", "requirepass", "secret") == b"OK"
            assert other.call("PING") == b"PONG"
        with wire(locked) as other:
            assert isinstance(other.call("PING"), Failed)


CONFIG_ROWS = [
    ("maxmemory abc", "argument must be a memory value"),
    ("maxmemory -1", "argument must be a memory value"),
    ("maxmemory 1.5mb", "argument must be a memory value"),
    ("timeout x", "argument couldn't be parsed into an integer"),
    ("timeout -1", "argument must be between 0 and 2147483647 inclusive"),
    ("maxclients 0", "argument must be between 1 and 4294967295 inclusive"),
    ("proto-max-bulk-len 5", "argument must be between 1048576 and 9223372036854775807 inclusive"),
    ("databases 3", "can't set immutable config"),
    ("unixsocket x", "can't set immutable config"),
    ("timeout 5 timeout 6", "duplicate parameter"),
    ("stream-node-max-bytes x", "argument must be a memory value"),
]


def test_config_set_refuses_in_the_words_of_redis(server: Server) -> None:
    """And changes nothing when one of several is wrong."""
    with wire(server) as client:
        for text, problem in CONFIG_ROWS:
            name = text.split(maxsplit=1)[0]
            failed = f"ERR CONFIG SET failed (possibly related to argument '{name}') - {problem}"
            assert client.call("CONFIG", "SET", *text.split()) == failed
        client.call("CONFIG", "SET", "timeout", "7", "maxmemory", "x")
        assert client.call("CONFIG", "GET", "timeout") == [b"timeout", b"0"]
        limit = "client-output-buffer-limit"
        for value in ("normal 1 2", "foo 1 2 3", "normal x 2 3"):
            assert isinstance(client.call("CONFIG", "SET", limit, value), Failed)
        assert client.call("CONFIG", "SET", limit, "normal 10mb 5mb 3") == b"OK"
        shown = b"normal 10485760 5242880 3 slave 268435456 67108864 60 pubsub 33554432 8388608 60"
        assert client.call("CONFIG", "GET", limit) == [limit.encode(), shown]
        assert client.call("CONFIG", "SET", limit, "normal 0 0 0") == b"OK"
        assert client.call("CONFIG", "SET", "proto-max-bulk-len", "1mb", "timeout", "0") == b"OK"
        try:
            with wire(server) as other:
                other.socket.sendall(b"*2\r\n$4\r\nECHO\r\n$1048577\r\n")
                assert other.rest() == b"-ERR Protocol error: invalid bulk length\r\n"
        finally:
            client.call("CONFIG", "SET", "proto-max-bulk-len", "512mb")


# What the kernel refuses on a usual Linux, or what can be changed only at a restart.
KERNEL_ROWS = [
    "tcp-keepalive 40000", "tcp-keepalive 2147483647", "maxclients 4294967295", "maxclients 2000000000",
    "tcp-backlog 2147483647", "unixsocketperm 7777", "port 70000", "port 1", "bind nowhere.invalid", "tls-port 1",
    "dir /nowhere", "logfile /nowhere/x",
]  # fmt: skip


@pytest.mark.parametrize("row", KERNEL_ROWS)
def test_a_setting_that_the_kernel_refuses_is_an_error_of_config_set(row: str) -> None:
    """It changes nothing, and the next client comes in."""
    name = row.split(maxsplit=1)[0]
    with serving() as served, wire(served) as client:
        before = client.call("CONFIG", "GET", name)
        assert isinstance(client.call("CONFIG", "SET", *row.split()), Failed)
        assert client.call("CONFIG", "GET", name) == before
        with wire(served) as other:
            assert other.call("PING") == b"PONG"
        assert client.call("CONFIG", "SET", "timeout", "2147483647", "tcp-keepalive", "60") == b"OK"
        with wire(served) as other:
            assert other.call("PING") == b"PONG"
    assert served.process.returncode == 0


def test_settings_that_were_changed_before_one_was_refused_are_as_they_were() -> None:
    """All or none: also what a setting has already set in motion."""
    with serving("--requirepass", "secret") as served, wire(served) as client:
        client.call("AUTH", "secret")
        assert isinstance(client.call("CONFIG", "SET", "requirepass", "", "tcp-keepalive", "40000"), Failed)
        with wire(served) as other:
            assert other.raw("PING") == NOAUTH


@pytest.mark.parametrize(
    "arguments",
    [("--tcp-keepalive", "40000"), ("--unixsocket", "x" * 200), ("--bind", "a\\x00b"), ("--bind", "x" * 300)],
)
def test_a_setting_that_the_kernel_refuses_at_the_start_is_one_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """From a file, because a command line has no zero bytes; no traceback."""
    (tmp_path / "engine.conf").write_text(f'port {free_port()}\n{arguments[0][2:]} "{arguments[1]}"\n')
    ended = subprocess.run(
        [sys.executable, "-m", "spark_streams.engine", str(tmp_path / "engine.conf")],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert ended.returncode in (1, 2)
    assert "Traceback" not in ended.stderr
    assert arguments[0][2:] in ended.stderr or "listen on" in ended.stderr


def refused(*arguments: str, file: str | None = None, folder: Path | None = None) -> str:
    """What is said about options that are wrong."""
    words = [*arguments]
    if file is not None and folder is not None:
        (folder / "engine.conf").write_text(file)
        words.insert(0, str(folder / "engine.conf"))
    ended = subprocess.run(
        [sys.executable, "-m", "spark_streams.engine", *words], capture_output=True, text=True, check=False, timeout=30
    )
    assert ended.returncode == 2, ended
    return ended.stderr


@pytest.mark.in_turn
def test_wrong_options_are_errors_with_a_remedy(tmp_path: Path) -> None:
    """On the command line and in a file, with the line; nothing is ignored."""
    assert "did you mean --maxmemory?" in refused("--maxmemry", "5mb")
    assert "--maxmemory 5xb: argument must be a memory value" in refused("--maxmemory", "5xb")
    assert "--tls-port needs --tls-cert-file and --tls-key-file and --tls-ca-cert-file" in refused("--tls-port", "1")
    assert "the engine listens on no address" in refused("--port", "0")
    wrong = "# mine\n\nport 6400\nmaxmemori 5mb\n"
    assert "engine.conf, line 4: maxmemori 5mb: no such option (did you mean maxmemory?)" in refused(
        file=wrong, folder=tmp_path
    )
    assert "line 1: timeout x: argument couldn't be parsed" in refused(file="timeout x\n", folder=tmp_path)
    assert "cannot read" in refused(str(tmp_path / "none.conf"))


def test_a_password_that_no_process_list_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file, or from the environment if no option and no file says one."""
    secret = tmp_path / "secret"
    secret.write_text("from a file\n")
    monkeypatch.setenv("RSTREAM_ENGINE_PASSWORD", "from the environment")
    for arguments, password in (
        (("--requirepass-file", str(secret)), "from a file"),
        (("--requirepass", "from an option"), "from an option"),
        ((), "from the environment"),
    ):
        with serving(*arguments) as served, wire(served) as client:
            assert client.raw("PING") == NOAUTH
            assert client.call("AUTH", password) == b"OK"
            shown = Path(f"/proc/{served.process.pid}/cmdline").read_bytes().decode()
            assert ("from" in shown) == (password == "from an option")
    (tmp_path / "engine.conf").write_text('requirepass "from the configuration"\n')
    with serving(str(tmp_path / "engine.conf")) as served, wire(served) as client:
        assert client.call("AUTH", "from the configuration") == b"OK"


def test_a_password_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """An engine without a password would be open."""
    assert "cannot read" in refused("--requirepass-file", str(tmp_path / "none"))
    (tmp_path / "empty").write_text("\n")
    assert "is empty" in refused("--requirepass-file", str(tmp_path / "empty"))
    assert "more than 16,384 bytes" in refused("--requirepass-file", "/dev/zero")
    assert "not both" in refused("--requirepass-file", str(tmp_path / "empty"), "--requirepass", "x")


def test_the_password_for_serve_is_not_for_engines_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sockets are for their user only, and nobody would know that one is needed."""
    monkeypatch.setenv("RSTREAM_ENGINE_PASSWORD", "secret")
    with running_engine() as server, wire(server) as client:
        assert client.call("PING") == b"PONG"


def test_a_configuration_file(tmp_path: Path) -> None:
    """As redis.conf: comments, quotes, include; the command line overrides the file."""
    port = free_port()
    (tmp_path / "more.conf").write_text("maxclients 50\n")
    (tmp_path / "engine.conf").write_text(
        f'# the engine\nport {port}\n  requirepass "a b"\ninclude more.conf\nmaxmemory 1gb\ntimeout 5\n'
        "client-output-buffer-limit normal 1mb 0 0\n"
    )
    with (
        serving(str(tmp_path / "engine.conf"), "--timeout", "9", "--port", str(port)) as served,
        redis.Redis(port=port, password="a b") as client,
    ):
        found = client.config_get("*")
        assert (found["maxclients"], found["maxmemory"], found["timeout"]) == ("50", str(1 << 30), "9")
        assert found["client-output-buffer-limit"].startswith("normal 1048576 0 0 ")
        assert "ready on 127.0.0.1:" in served.log()


def fill(client: Wire, key: str, size: int) -> tuple[int, object]:
    """Entries of a kilobyte until one is refused, or `size` bytes are in; how many came in, and the last reply."""
    added = 0
    reply: object = None
    while added * 1000 < size:
        for _ in range(100):
            client.send("XADD", key, "*", "f", "x" * 1000)
        for _ in range(100):
            reply = client.reply()
            added += not isinstance(reply, Failed)
        if isinstance(reply, Failed):
            break
    return added, reply


def test_maxmemory_refuses_writes_and_loses_nothing() -> None:
    """Writes get OOM, reads and deletes go on, and after a delete there is room again; what came in is there."""
    with serving() as served, wire(served) as client:
        used = int(info(client, "memory")["used_memory"])
        limit = used + 30_000_000
        client.call("CONFIG", "SET", "maxmemory", limit)
        added, reply = fill(client, "s", 100_000_000)
        assert reply == OOM
        assert 20_000 < added < 30_000
        assert client.call("XLEN", "s") == added
        assert used + 25_000_000 < int(info(client, "memory")["used_memory"]) < limit + 1_000_000
        assert served.resident() < limit * 1.3 + 25_000_000, "the interpreter is not in it"
        client.call("CONFIG", "SET", "maxmemory", limit // 2)
        for refused in ("SET k v", "LPUSH l a", "SADD t a", "HSET h a 1", "INCR n", "XGROUP CREATE s g 0 MKSTREAM"):
            assert client.call(*refused.split()) == OOM, refused
        client.call("MULTI")
        assert client.call("SET", "k", "v") == OOM
        assert client.call("EXEC") == "EXECABORT Transaction discarded because of previous errors."
        assert len(client.call("XRANGE", "s", "-", "+", "COUNT", "10")) == 10
        client.call("CONFIG", "SET", "maxmemory", limit)
        assert client.call("XTRIM", "s", "MAXLEN", "1000") == added - 1000
        time.sleep(0.1)
        assert fill(client, "s", 1_000_000)[0] == 1000
        client.call("DEL", "s")
        time.sleep(0.1)
        assert fill(client, "s", 10_000_000)[0] == 10_000


def test_maxmemory_is_of_data() -> None:
    """A process of Python takes more than this before it holds anything."""
    with serving("--maxmemory", "2mb") as served, wire(served) as client:
        assert served.resident() > 4_000_000
        added, reply = fill(client, "s", 10_000_000)
        assert reply == OOM
        assert 1_000 < added < 2_100
        assert int(info(client, "memory")["used_memory"]) < 2_300_000


def test_exec_is_refused_when_memory_ran_out_after_queueing() -> None:
    """All of it, none of it: EXECABORT says why."""
    with serving() as served, wire(served) as client, wire(served) as other:
        client.call("SET", "there", "before")
        client.call("MULTI")
        client.call("SET", "k", "v")
        other.call("CONFIG", "SET", "maxmemory", "1")
        assert client.call("EXEC") == f"EXECABORT Transaction discarded because of: {OOM}"
        assert client.call("GET", "k") is None


def info(client: Wire, section: str) -> dict[str, str]:
    """A section of INFO."""
    lines = client.call("INFO", section).decode().split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


def test_maxclients() -> None:
    """One too many is told so and hung up on; when one leaves there is room again."""
    with serving("--maxclients", "3") as served:
        clients = [Wire(served) for _ in range(3)]
        assert [client.call("PING") for client in clients] == [b"PONG"] * 3
        assert Wire(served).rest() == b"-ERR max number of clients reached\r\n"
        clients[0].close()
        time.sleep(0.05)
        with wire(served) as client:
            assert client.call("PING") == b"PONG"
            assert info(client, "stats")["rejected_connections"] == "1"
        for client in clients:
            client.close()


def test_strangers_leave_room_for_who_has_the_password() -> None:
    """Clients that never log in do not fill maxclients: the oldest of them is closed. Those that have stay."""
    with serving("--maxclients", "4", "--requirepass", "secret") as served:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(wire(served))
            assert first.call("AUTH", "secret") == b"OK"
            for _ in range(10):
                stack.enter_context(wire(served)).send("PING")
            others = [stack.enter_context(wire(served)) for _ in range(3)]
            assert [other.call("AUTH", "secret") for other in others] == [b"OK"] * 3
            assert Wire(served).rest() == b"-ERR max number of clients reached\r\n"
            assert [client.call("PING") for client in (first, *others)] == [b"PONG"] * 4
        assert served.log().count("it had not logged in, and maxclients is reached") == 1


def test_no_more_open_files(tmp_path: Path) -> None:
    """The engine lowers maxclients to what the system allows, and says so."""
    with serving("--maxclients", "1000000000") as served, wire(served) as client:
        allowed = int(client.call("CONFIG", "GET", "maxclients")[1])
        assert allowed < 1_000_000_000
        assert f"maxclients is reduced to {allowed}: the system allows no more open files" in served.log()


def test_timeout_closes_idle_clients_only() -> None:
    """Not those that wait for a stream."""
    with serving("--timeout", "1") as served, wire(served) as idle, wire(served) as busy, wire(served) as blocked:
        assert idle.call("PING") == b"PONG"
        blocked.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        end = time.monotonic() + 3.2
        while time.monotonic() < end:
            assert busy.call("PING") == b"PONG"
            time.sleep(0.1)
        assert idle.rest() == b""
        busy.call("XADD", "s", "1-1", "a", "1")
        assert blocked.reply()[0][0] == b"s"


@pytest.mark.parametrize("limit", ["normal 3mb 0 0", "normal 0 3mb 1"])
def test_a_reader_that_does_not_read_is_closed(limit: str) -> None:
    """Above the hard limit at once, above the soft one after its seconds; others are not."""
    with (
        serving("--client-output-buffer-limit", *limit.split()) as served,
        wire(served) as client,
        wire(served) as slow,
    ):
        client.call("XADD", "s", "*", "f", b"x" * 2_000_000)
        for _ in range(20):
            slow.send("XRANGE", "s", "-", "+")

        def slow_is_closed() -> bool:
            assert client.call("PING") == b"PONG"
            return "bytes unread (client-output-buffer-limit)" in served.log()

        until(slow_is_closed, "the engine does not close the connection of the slow client")
        assert len(slow.rest()) < 40_000_000
        assert info(client, "clients")["connected_clients"] == "1"


def test_a_soft_limit_forgives_who_reads_in_time() -> None:
    """Slow, and all of it."""
    with serving("--client-output-buffer-limit", "normal", "0", "1mb", "3") as served, wire(served) as client:
        client.call("XADD", "s", "*", "f", b"x" * 2_000_000)
        for _ in range(10):
            client.send("XRANGE", "s", "-", "+")
        time.sleep(1.5)
        for _ in range(10):
            assert len(client.reply()) == 1


def test_a_request_without_an_end_is_closed_without_a_word() -> None:
    """client-query-buffer-limit."""
    with serving("--client-query-buffer-limit", "1mb") as served, wire(served) as client:
        client.socket.sendall(b"*2\r\n$4\r\nECHO\r\n$100000000\r\n")
        with pytest.raises(ConnectionError):  # noqa: PT012
            while True:
                client.socket.sendall(b"x" * 100_000)
        assert client.rest() == b""
        assert "client-query-buffer-limit" in served.log()


def test_what_piles_up_behind_a_blocked_command_is_bounded() -> None:
    """A blocked client's commands wait, but not without limit."""
    with serving("--client-query-buffer-limit", "1mb") as served, wire(served) as client:
        client.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        with pytest.raises(ConnectionError):  # noqa: PT012
            while True:
                client.socket.sendall(command("PING") * 1000)
        assert "too much behind a command that waits" in served.log()


def test_what_piles_up_behind_replies_that_nobody_reads_is_bounded() -> None:
    """By what a client may have sent that is not run, as in Redis."""
    with serving("--client-query-buffer-limit", "1mb") as served, wire(served) as client:
        with pytest.raises(ConnectionError):  # noqa: PT012
            while True:
                client.socket.sendall(command("ECHO", b"x" * 10_000))
        assert "too much behind replies that are not read (client-query-buffer-limit)" in served.log()


def test_replies_are_sent_before_the_end() -> None:
    """What a client asked for before SHUTDOWN it still gets."""
    with serving() as served, wire(served) as client, wire(served) as other:
        client.call("XADD", "s", "*", "f", b"x" * 5_000_000)
        client.send("XRANGE", "s", "-", "+")
        time.sleep(0.2)
        other.send("SHUTDOWN", "NOSAVE")
        time.sleep(0.2)
        assert len(client.reply()[0][1][1]) == 5_000_000
        assert client.rest() == b""
        assert served.process.wait(5) == 0
        assert served.log().endswith("stopped\n")


def test_protected_mode() -> None:
    """Without a password, clients that do not come from this machine are sent away."""
    outside = own_address()
    if outside is None:
        # Protected mode is about clients from elsewhere: without another address there is nobody to send away.
        pytest.skip("this machine has no address but the loopback one")
    port = free_port()
    with serving("--bind", "127.0.0.1", outside, "--port", str(port)) as served:
        with socket.create_connection((outside, port)) as client:
            assert client.recv(1000).startswith(b"-DENIED ")
        with wire(Server("engine", f"redis://127.0.0.1:{port}")) as inside:
            inside.call("CONFIG", "SET", "protected-mode", "no")
        with socket.create_connection((outside, port)) as client:
            client.sendall(b"PING\r\n")
            assert client.recv(1000) == b"+PONG\r\n"
        assert f"ready on 127.0.0.1:{port} and {outside}:{port}" in served.log()


def own_address() -> str | None:
    """An address of this machine that is not the loopback one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        found = str(probe.getsockname()[0])
    return None if found.startswith("127.") else found


def test_help_teaches() -> None:
    """Every option, in groups, with its default; examples; and at the end the way out to a real Redis."""
    ended = subprocess.run(
        [sys.executable, "-m", "spark_streams.cli", "serve", "--help"],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    for words in ("addresses:", "--requirepass PASSWORD", "(default 127.0.0.1)", "  rstream serve --port 6400"):
        assert words in ended.stdout
    assert ended.stdout.rstrip().endswith("redis-cli -p 6379 --pipe < /var/lib/streams/appendonly.aof")
