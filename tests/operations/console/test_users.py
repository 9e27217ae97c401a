"""Users of the console: the file with their hashes, wrong passwords, and the audit log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.errors import ConfigError
from spark_streams.operations.console.access import LOCAL, Signer
from spark_streams.operations.console.login.attempts import PER_ADDRESS, PER_NAME, WINDOW, LoginAttempts, network_of
from spark_streams.operations.console.login.users import PasswordHash, Users, add_user
from tests.operations.console.browser import Browser, form_to, wait_for_change
from tests.operations.console.process import running_console, write_users
from tools.servers.server import Server

pytestmark = pytest.mark.in_turn

ODD_NAMES = ("řehoř", "a;b", "a|b", "a=b, c", 'quoted "x"', "%41nn", "日本")


def log_in(browser: Browser, name: str, password: str) -> int:
    return browser.post("/login", {"name": name, "password": password}).status


def test_the_file_holds_hashes_and_no_plain_passwords(tmp_path: Path) -> None:
    path = tmp_path / "users"
    add_user(path, "ann", "geheim:1")
    add_user(path, "bob", "pass word")
    add_user(path, "ann", "neu")  # takes the place of the earlier line
    text = path.read_text()
    assert "geheim" not in text
    assert text.count("\n") == 2
    assert path.stat().st_mode & 0o777 == 0o600
    users = Users.read(str(path))
    assert users.accepts("ann", "neu")
    assert users.accepts("bob", "pass word")
    for name, password in (
        ("ann", "geheim:1"),
        ("ann", "pass word"),
        ("eve", ""),
        ("ann\udc80", "neu\udc80"),
        ("", ""),
    ):
        assert not users.accepts(name, password)


@pytest.mark.parametrize(
    "line", ["ann:geheim", "ann:$scrypt$ln=15", "ann:$argon2id$v=19$m=65536,t=3,p=4$c2FsdHNhbHQ$aGFzaA"]
)
def test_a_plain_password_is_refused_with_the_command_that_replaces_it(line: str, tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(line + "\n")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=f"rstream console --users {path} --add-user ann") as error:
        Users.read(str(path))
    assert line.partition(":")[2] not in str(error.value)
    result = CliRunner().invoke(main, ["console", "--users", str(path), "--add-user", "ann"], input="geheim\n")
    assert result.exit_code == 0, result.output
    assert Users.read(str(path)).accepts("ann", "geheim")


def test_malformed_files_are_named(tmp_path: Path) -> None:
    hashed = str(PasswordHash.make("x"))
    weak = hashed.replace("ln=15", "ln=10")
    huge = hashed.replace("ln=15", "ln=20").replace("r=8", "r=99")
    for lines in (
        ["ann"], [f":{hashed}"], ["ann:"], [f"a\x1b:{hashed}"], ["# no user"], [], [f"{'n' * 101}:{hashed}"],
        [f"ann:{weak}"], [f"ann:{huge}"], [f"ann:{hashed}", f"ann:{hashed}"], [f"ann:{hashed}x"],
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="users"):
            Users.parse(lines, "users")
    path = tmp_path / "bytes"
    path.write_bytes(b"\xff:x\n")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="users cannot be read"):
        Users.read(str(path))


def test_other_users_of_the_machine_must_not_read_or_change_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_users(tmp_path / "users", ann="x")
    for mode in (0o644, 0o640, 0o620, 0o602, 0o601):
        path.chmod(mode)
        with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
            Users.read(str(path))
    path.chmod(0o400)
    assert Users.read(str(path))
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1 or 1)
    if path.stat().st_uid == 0:  # root's files are as good as one's own
        assert Users.read(str(path))
        os.chown(path, 4_321, 0)
        monkeypatch.setattr(os, "geteuid", lambda: 1_234)
    with pytest.raises(ConfigError, match="belongs to another user"):
        Users.read(str(path))


def test_add_user_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "users"
    for name in ("ann", *ODD_NAMES):
        result = CliRunner().invoke(
            main, ["console", "--users", str(path), "--add-user", name], input=f"pw of {name}\n"
        )
        assert result.exit_code == 0, result.output
        assert "pw of" not in result.output
    users = Users.read(str(path))
    assert all(users.accepts(name, f"pw of {name}") for name in ("ann", *ODD_NAMES))
    printed = CliRunner().invoke(main, ["console", "--add-user", "eve"], input="geheim\n")
    assert Users.parse(printed.output.splitlines(), "output").accepts("eve", "geheim")
    for name, password in (("a:b", "x\n"), ("", "x\n"), ("#a", "x\n"), ("a\n", "x\n"), ("ann", "\n"), ("ann", "")):
        result = CliRunner().invoke(main, ["console", "--users", str(path), "--add-user", name], input=password)
        assert result.exit_code in (1, 2), (name, result.output)
    assert users.accepts("ann", "pw of ann")


def test_users_with_any_name_log_in(server: Server, tmp_path: Path) -> None:
    users = write_users(tmp_path / "users", **{name: f"pw of {name}" for name in ODD_NAMES})
    with running_console(server.url, "--users", str(users)) as console:
        for name in ODD_NAMES:
            browser = Browser(console.url)
            assert log_in(browser, name, f"pw of {name}") == 303
            assert browser.get("/").status == 200
            assert browser.post("/logout", {}).status == 303


def test_a_cookie_is_ascii_for_any_name() -> None:
    signer = Signer()
    for name in (*ODD_NAMES, LOCAL):
        cookie = signer.new_cookie(name)
        assert cookie.isascii()
        assert not set(cookie) & set('"; ,\\')
        session = signer.session(cookie)
        assert session is not None
        assert session.user == name


def test_two_consoles_on_one_host_have_two_cookies(server: Server, tmp_path: Path) -> None:
    users = write_users(tmp_path / "users", ann="x")
    with (
        running_console(server.url, "--users", str(users)) as first,
        running_console(server.url, "--users", str(users)) as second,
    ):
        browser = Browser(first.url)
        assert log_in(browser, "ann", "x") == 303
        other = Browser(second.url, browser.cookies)  # a browser sends both all cookies of the host
        assert other.get("/").status == 303
        assert log_in(other, "ann", "x") == 303
        assert browser.get("/").status == other.get("/").status == 200
        assert len(browser.cookies) == 2


def test_attempts_are_counted_per_name_and_address() -> None:
    now = 0.0
    attempts = LoginAttempts(lambda: now)

    def wrong(name: str, address: str) -> bool:
        is_let_in = attempts.begin(name, address) is None
        if is_let_in:
            attempts.end(name, address, is_right=False)
        return is_let_in

    assert [wrong("ann", "1.1.1.1") for _ in range(PER_NAME + 2)] == [True] * PER_NAME + [False] * 2
    assert wrong("bob", "1.1.1.1")
    assert wrong("ann", "2.2.2.2")
    assert sum(wrong(f"n{number}", "1.1.1.1") for number in range(100)) == PER_ADDRESS - PER_NAME - 1
    assert not wrong("new", "::ffff:1.1.1.1")
    now += WINDOW + 1
    assert wrong("ann", "1.1.1.1")
    for _ in range(100):  # the right password is never too often
        assert attempts.begin("bob", "3.3.3.3") is None
        attempts.end("bob", "3.3.3.3", is_right=True)
    assert attempts.begin("bob", "3.3.3.3") is None
    assert attempts.begin("bob", "3.3.3.3") is not None  # one at a time
    for number in range(30_000):
        wrong("x" * 1_000, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(attempts._times) <= 10_000


def test_one_machine_has_one_network() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1")
    assert network_of("unix") == "unix"


def test_wrong_passwords_are_refused_at_once_and_hold_up_nobody(server: Server, tmp_path: Path) -> None:
    users = write_users(tmp_path / "users", ann="geheim", bob="pass word")
    with running_console(server.url, "--users", str(users)) as console:
        statuses: Counter[int] = Counter()

        def attempt() -> None:
            statuses[log_in(Browser(console.url), "ann", "wrong")] += 1

        threads = [threading.Thread(target=attempt) for _ in range(30)]
        for thread in threads:
            thread.start()
        assert log_in(Browser(console.url), "bob", "pass word") == 303
        for thread in threads:
            thread.join()
        assert statuses[429] >= 30 - PER_NAME
        assert statuses.keys() <= {403, 429}
        while (refused := Browser(console.url).post("/login", {"name": "ann", "password": "wrong"})).status == 403:
            pass
        assert 0 < int(refused.headers["retry-after"]) <= WINDOW
        began = time.monotonic()
        assert log_in(Browser(console.url), "ann", "geheim") == 429  # or the attempts would not be bounded
        assert log_in(Browser(console.url), "bob", "pass word") == 303
        assert time.monotonic() - began < 5
        assert console.peak() < 300


def audit_lines(path: Path) -> list[Mapping[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_audit_log_has_logins_and_both_ends_of_changes(server: Server, tmp_path: Path) -> None:
    with server.client() as client:
        client.xadd("s", {"n": 1}, id="1-0")
        client.xgroup_create("s", "g", id="$")
    audit = tmp_path / "audit.jsonl"
    audit.touch(0o644)
    users = write_users(tmp_path / "users", bob="pass word")
    with running_console(server.url, "--write", "--users", str(users), "--audit", str(audit)) as console:
        assert audit.stat().st_mode & 0o777 == 0o600
        browser = Browser(console.url)
        log_in(browser, "bob", "wrong")
        log_in(browser, "bob", "pass word")
        assert [line["event"] for line in audit_lines(audit)] == ["login failed", "login"]  # a dry run is no change
        for number in (1, 2):
            planned = browser.post("/plan", {"action": "seek", "names": "s", "group": "g", "to": "earliest"})
            if number == 2:
                with server.client() as client:
                    client.xgroup_destroy("s", "g")
            browser.post("/changes", form_to(planned.text, "/changes"))
            wait_for_change(browser, number)
        browser.post("/logout", {})
    lines = audit_lines(audit)[2:]
    assert [line["event"] for line in lines] == [*["change begins", "change ends"] * 2, "logout"]
    assert {line["user"] for line in lines} == {"bob"}
    begun, done, _, failed, _ = lines
    command = ["rstream", "groups", "seek", "s", "--group", "g", "--yes", "--to", "0-0"]  # (bounds of the dry run)
    assert begun["command"] == done["command"] == command
    assert "exit_code" not in begun
    assert (done["exit_code"], done["read_again"]) == (0, 1)
    assert failed["exit_code"] == 1
    assert "no group" in str(failed["error"])


def test_a_change_without_its_audit_line_is_not_made(server: Server) -> None:
    """(A full disk: /dev/full.)"""
    with server.client() as client:
        client.xadd("s", {"n": 1}, id="1-0")
        client.xgroup_create("s", "g", id="$")
    with running_console(server.url, "--write", "--audit", "/dev/full") as console:
        browser = Browser(console.url)
        planned = browser.post("/plan", {"action": "seek", "names": "s", "group": "g", "to": "earliest"})
        made = browser.post("/changes", form_to(planned.text, "/changes"))
        assert "the audit log cannot be written: No space left on device" in made.text
    with server.client() as client:
        assert client.xinfo_groups("s")[0]["last-delivered-id"] == b"1-0"


def test_a_killed_console_leaves_the_begin_of_its_change(engine_server: Server, tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    code = (
        "import os, sys\nfrom datetime import UTC, datetime\nfrom pathlib import Path\n"
        "from spark_streams.operations.console.audit import Audit, open_audit\n"
        "from spark_streams.operations.console.change import Change\n"
        "from spark_streams.operations.console.mask import Mask\n"
        "Audit(open_audit(Path(sys.argv[1])), Mask()).begin(Change(1, 'ann', ['dead', 'purge'], datetime.now(UTC)))\n"
        "os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(audit)], check=False).returncode == 9
    [line] = audit_lines(audit)
    assert (line["user"], line["command"]) == ("ann", ["rstream", "dead", "purge"])
