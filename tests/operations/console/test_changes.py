"""The audit log: who has made which change, and how it ended."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.operations.console.browser import form_to, wait_for_change
from tests.operations.console.process import running_console
from tools.servers.server import Server

pytestmark = pytest.mark.in_turn


def audit_lines(path: Path) -> list[Mapping[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_audit_log_has_both_ends_of_changes(server: Server, tmp_path: Path) -> None:
    with server.client() as client:
        client.xadd("s", {"n": 1}, id="1-0")
        client.xgroup_create("s", "g", id="$")
    audit = tmp_path / "audit.jsonl"
    audit.touch(0o644)
    with running_console(server.url, "--write", "--audit", str(audit)) as console:
        assert audit.stat().st_mode & 0o777 == 0o600
        browser = console.browser()
        for number in (1, 2):
            planned = browser.post("/plan", {"action": "seek", "names": "s", "group": "g", "to": "earliest"})
            if number == 2:
                with server.client() as client:
                    client.xgroup_destroy("s", "g")
            browser.post("/changes", form_to(planned.text, "/changes"))
            wait_for_change(browser, number)
    lines = audit_lines(audit)
    assert [line["event"] for line in lines] == ["change begins", "change ends"] * 2  # a dry run is no change
    assert {line["user"] for line in lines} == {"local"}
    begun, done, _, failed = lines
    bounds = ["--only", "s", "g", "0-0"]  # of the dry run
    command = ["rstream", "groups", "seek", "s", "--group", "g", "--to", "earliest", "--yes", *bounds]
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
        browser = console.browser()
        planned = browser.post("/plan", {"action": "seek", "names": "s", "group": "g", "to": "earliest"})
        made = browser.post("/changes", form_to(planned.text, "/changes"))
        assert "the audit log cannot be written: No space left on device" in made.text
    with server.client() as client:
        assert client.xinfo_groups("s")[0]["last-delivered-id"] == b"1-0"


def test_a_killed_console_leaves_the_begin_of_its_change(engine_server: Server, tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    code = (
        "import os, sys\nfrom datetime import UTC, datetime\nfrom pathlib import Path\n"
        "from spark_streams.operations.console.changes import Audit, open_audit\n"
        "from spark_streams.operations.console.changes import Change\n"
        "from spark_streams.operations.console.allow_list import AllowList\n"
        "change = Change(1, 'ann', ['dead', 'purge'], datetime.now(UTC))\n"
        "Audit(open_audit(Path(sys.argv[1])), AllowList()).begin(change)\n"
        "os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(audit)], check=False).returncode == 9
    [line] = audit_lines(audit)
    assert (line["user"], line["command"]) == ("ann", ["rstream", "dead", "purge"])
