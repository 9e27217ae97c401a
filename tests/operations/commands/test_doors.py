"""What commands open, and what they refuse to: folders, files and names that others have chosen."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner, Result

from spark_streams.cli import main
from spark_streams.engine.launch.embedded import locate
from spark_streams.operations.transfer import entry_files
from tools.servers.server import Server


def rstream(*words: str) -> Result:
    ran = CliRunner().invoke(main, words, env={"COLUMNS": "300"})
    assert isinstance(ran.exception, SystemExit | None), ran.exception
    return ran


def test_a_folder_that_the_engine_refuses_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    ran = rstream("add", "s", "a=1", "--url", f"embedded://{tmp_path}")
    assert (ran.exit_code, ran.output.count("\n")) == (1, 1)
    assert "other users can write to it" in ran.output


@pytest.mark.parametrize("host", ["a" * 70, "..a", "é.."])
def test_a_host_that_is_no_name_is_one_line(host: str, engine_server: Server) -> None:
    ran = rstream("exporter", "--host", host, "--port", "0", "--url", engine_server.url)
    assert (ran.exit_code, ran.output.count("\n")) == (2, 1)
    assert "metrics cannot be served at" in ran.output


def test_folders_above_that_of_an_engine_are_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        url = locate(tmp_path / "a" / "b", idle=1)
    finally:
        os.umask(before)
    with redis.Redis.from_url(url) as client:
        client.shutdown(nosave=True)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b")] == [0o700, 0o700]


def test_an_export_does_not_follow_a_link_under_its_temporary_name(
    server: Server, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.xadd("s", {"n": 1})
    precious = tmp_path / "precious"
    precious.write_text("mine")
    monkeypatch.setattr(entry_files.secrets, "token_hex", lambda count: "known")
    (tmp_path / ".out.jsonl.known.partial").symlink_to(precious)
    ran = rstream("export", "s", str(tmp_path / "out.jsonl"), "--url", server.url)
    assert (ran.exit_code, precious.read_text()) == (1, "mine")
    assert "cannot be written" in ran.output


@pytest.mark.parametrize("kind", ["fifo", "device", "large"])
def test_a_checkpoint_is_read_from_files_that_end(
    kind: str, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    client.xadd("s", {"n": 1}, id="5-1")
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    if kind == "fifo":
        os.mkfifo(offsets / "0")
    elif kind == "device":
        (offsets / "0").symlink_to("/dev/zero")
    else:
        with (offsets / "0").open("wb") as file:
            file.truncate((64 << 20) + 1)
    ran = rstream("where", "s", "5-1", "--checkpoint", str(tmp_path), "--url", server.url)
    assert ran.exit_code == 2
    assert ("more than 64 MiB" if kind == "large" else "0 is not a regular file") in ran.output
