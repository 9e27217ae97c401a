"""What docs/identity.md says that a user must be allowed is enough, for looking, for dead letters and their way back,
and behind sentinels; reading and writing with it is in tests/source/test_least_privilege.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from tests.servers import Server
from tests.source.driving import ALL, add, forget_all, reader

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS = re.findall(r"^\| ([^|]+) \| `(\+@[^`]+)` \|", (DOCS / "identity.md").read_text(), re.M)
RIGHTS = {row.split()[0].strip(","): words for row, words in ROWS}


@pytest.fixture
def letters(redis_server: Server) -> Iterator[Server]:
    """A stream, a group that has read some of it, and dead letters."""
    with redis_server.client(decode_responses=True) as admin:
        admin.flushall()
        add(admin, 20)
        for n in range(3):
            admin.xadd("s", {"n": f"bad {n}"})
        one = reader(redis_server, mode="DEADLETTER", deadLetterStream="dead")
        start = one.initialOffset()
        end = one.latestOffset(start, ALL)
        for partition in one.partitions(start, end):
            list(one.read(partition))
        one.latestOffset(end, ALL)
        forget_all()
        assert admin.xlen("dead") == 3
        add(admin, 5)
    yield redis_server
    with redis_server.client() as admin:
        admin.acl_deluser("limited")


def as_user(server: Server, rights: str, *keys: str) -> str:
    with server.client() as admin:
        admin.execute_command(
            "ACL", "SETUSER", "limited", "reset", "on", ">pw", *[f"~{key}" for key in keys], *rights.split()
        )
    return server.url.replace("://", "://limited:pw@")


def test_the_docs_name_rights_once() -> None:
    assert set(RIGHTS) == {"sources", "looking"}
    assert RIGHTS["sources"] in (DOCS / "options.md").read_text()


@pytest.mark.parametrize(
    "line",
    ["streams", "lag", "lag s --group g", "pending s", "show s", "dead list", "dead show dead", "report",
     "lag s --max 100 --max-seconds 1000", "top --help"],
)  # fmt: skip
def test_looking(letters: Server, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a report is a file
    ran = CliRunner().invoke(
        main, line.split(), env={"RSTREAM_URL": as_user(letters, RIGHTS["looking"], "s", "dead", "rstream:*")}
    )
    assert ran.exit_code == 0, ran.output
    assert "no right" not in ran.output


def test_who_may_only_look_adds_and_moves_nothing(letters: Server) -> None:
    url = as_user(letters, RIGHTS["looking"], "s", "dead", "rstream:*")
    for line in ("add s n=1", "dead redrive dead", "dead purge dead --yes"):
        ran = CliRunner().invoke(main, [*line.split(), "--url", url])
        assert ran.exit_code != 0
    with letters.client() as admin:
        assert (admin.xlen("s"), admin.xlen("dead")) == (28, 3)


def test_the_way_back(letters: Server) -> None:
    url = as_user(letters, RIGHTS["sources"], "s", "dead", "rstream:*")
    ran = CliRunner().invoke(main, ["dead", "redrive", "dead", "--url", url])
    assert ran.exit_code == 0, ran.output
    with letters.client() as admin:
        assert (admin.xlen("s"), admin.xlen("dead")) == (31, 0)
