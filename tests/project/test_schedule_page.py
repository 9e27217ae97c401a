"""The crontab lines of docs/guide/on-a-schedule.md, run as printed, with nothing but cron's PATH."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from spark_streams.operations.commands.jobs import init
from tests.runner import separate_runner
from tools.servers.server import Server

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "on-a-schedule.md"
FOLDER, URL = "/opt/etl", "redis://redis.internal:6379/0"  # on the page


def crontab_lines() -> list[str]:
    """The commands, without the five fields of the time."""
    [block] = re.findall(r"^## cron\n.*?^```text\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return [line.split(maxsplit=5)[5] for line in block.splitlines()]


def run_as_cron(line: str, server: Server, folder: Path) -> int:
    assert FOLDER in line
    command = line.replace(FOLDER, str(folder)).replace(URL, server.url)
    ran = subprocess.run(
        ["env", "-i", "PATH=/usr/bin:/bin", "/bin/sh", "-c", command],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (ran.stdout, ran.stderr) == ("", ""), "cron would send it as a mail"
    return ran.returncode


@pytest.mark.in_turn
def test_the_crontab_lines_run_as_printed(redis_server: Server, tmp_path: Path) -> None:
    """Without work the first line ends with code 3 of rstream wait; with work it runs the job. The daily line runs
    the same command. The log is in the folder, wherever cron starts the line."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    config = tmp_path / "etl.toml"
    client: redis.Redis
    with redis_server.client() as client:
        client.flushall()
        client.xadd("orders", {"customer": "eve", "amount": "1.5"})
        words = ["etl", "--stream", "orders", "--url", redis_server.url, "-o", str(config)]
        made = separate_runner().invoke(init, words)
        assert made.exit_code == 0, made.output
        client.xgroup_create("orders", "etl", "$")
        if_work, daily = crontab_lines()
        assert run_as_cron(if_work, redis_server, tmp_path) == 3
        client.xadd("orders", {"customer": "ann", "amount": "12.5"})
        assert run_as_cron(if_work, redis_server, tmp_path) == 0
        assert client.xinfo_groups("orders")[0]["lag"] == 0
    assert "etl entries 1 " in (tmp_path / "etl.log").read_text()
    assert daily == "cd /opt/etl && flock lock " + if_work.partition(" && ")[2].partition("&& ")[2].replace("'", "")
