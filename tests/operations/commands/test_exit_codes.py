"""The exit code of a command is that of its table, and of what it found, also if nobody reads its output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.operations.commands.exit_codes import CODES
from tools.servers.server import Server

RSTREAM = (sys.executable, "-P", "-m", "spark_streams.cli")
FOUND_LATE = ("lag", "s", "--group", "g", "--max", "1")  # exit code 3
PRINTING = [
    ("streams",), ("show", "s"), ("tail", "s"), ("groups", "s"), FOUND_LATE, ("doctor",), ("export", "s", "-"),
    ("where", "s", "5-1"), ("dead", "list"), ("add", "s", "a=1"), ("exporter", "--once"), ("--help",), ("help",),
]  # fmt: skip


@pytest.fixture
def environment(engine_server: Server) -> dict[str, str]:
    with engine_server.client() as client:
        client.flushall()
        for n in range(5):
            client.xadd("s", {"n": n}, id=f"5-{n + 1}")
        client.xgroup_create("s", "g", "0")
    return {**os.environ, "RSTREAM_URL": engine_server.url}


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_no_width_of_a_terminal_breaks_an_id(environment: dict[str, str], columns: int) -> None:
    url, width = environment["RSTREAM_URL"], {"COLUMNS": str(columns)}
    with redis.Redis.from_url(url) as client:
        client.xadd("of a long name", {"a": 1}, id="1796014207843-0")
        client.xgroup_create("of a long name", "of the night", "$")
    # `where` prints the ID in its first line, and where the group stands.
    for words, times in ((["lag"], 1), (["where", "of a long name", "1796014207843-0"], 2), (["streams"], 1)):
        shown = CliRunner().invoke(main, [*words, "--url", url], env=width)
        assert (shown.exit_code, shown.output.count("1796014207843-0")) == (0, times), shown.output


@pytest.mark.parametrize("columns", [60, 79, 119])
def test_a_journey_on_a_narrow_terminal_is_a_block_for_each_event(environment: dict[str, str], columns: int) -> None:
    words = ["where", "s", "5-3", "--url", environment["RSTREAM_URL"]]
    shown = CliRunner().invoke(main, words, env={"COLUMNS": str(columns)}).output
    assert [line.split(None, 1)[1].strip() for line in shown.splitlines() if line.startswith("event")] == [
        "added",
        "not delivered",
    ]
    assert max(map(len, shown.splitlines())) <= columns


def test_a_check_of_a_stream_that_is_missing_names_the_nearest(environment: dict[str, str]) -> None:
    with redis.Redis.from_url(environment["RSTREAM_URL"]) as client:
        client.xadd("orders", {"a": 1})
    shown = CliRunner().invoke(main, ["lag", "ordres", "--max", "1", "--url", environment["RSTREAM_URL"]])
    assert (shown.exit_code, shown.output.rpartition("; ")[2]) == (3, "did you mean 'orders'?\n")


def test_an_option_before_its_command_is_named_with_it() -> None:
    refused = CliRunner().invoke(main, ["--url", "redis://x", "lag"])
    assert (refused.exit_code, "behind the command: main lag --url" in refused.output) == (2, True)
    assert "behind" not in CliRunner().invoke(main, ["--such"]).output


def ended(words: tuple[str, ...], environment: dict[str, str], redirected: str) -> tuple[int, str]:
    """Exit code and standard error."""
    command = ["sh", "-c", f'"$@" {redirected}', "sh", *RSTREAM, *words]
    ran = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=60)
    return ran.returncode, ran.stderr


@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
def test_output_without_a_reader_ends_a_command_silently_with_what_it_found(
    words: tuple[str, ...], environment: dict[str, str]
) -> None:
    """`| true` has ended before the command prints; `>&-` closes the output."""
    code = {FOUND_LATE: 3}.get(words, 0)
    end, begin = os.pipe()
    os.close(end)
    with subprocess.Popen([*RSTREAM, *words], env=environment, stdout=begin, stderr=subprocess.PIPE, text=True) as ran:
        os.close(begin)
        said = ran.communicate(timeout=60)[1]
    if words == ("doctor",):
        code = ran.returncode  # by the server's settings
        assert code in (0, 3)
    assert (ran.returncode, said) == (code, "")
    closed = ended(words, environment, ">&-")
    assert closed[0] == code
    assert "Traceback" not in closed[1]
    assert "Exception" not in closed[1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
def test_a_full_disk_is_one_line(words: tuple[str, ...], environment: dict[str, str]) -> None:
    line = "Error: standard output cannot be written: No space left on device. A change that was made stays\n"
    assert ended(words, environment, ">/dev/full") == (1, line)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_an_error_that_cannot_be_printed_keeps_its_code(environment: dict[str, str]) -> None:
    assert ended(("lag", "nothing", "--group", "g", "--max", "1"), environment, ">/dev/full 2>&1")[0] == 1
    assert ended(FOUND_LATE, environment, "2>/dev/full")[0] == 3


@pytest.mark.parametrize("words", [("add", "s", "-"), ("import", "-", "t")], ids=" ".join)
def test_a_closed_input_is_one_line(words: tuple[str, ...], environment: dict[str, str]) -> None:
    code, said = ended(words, environment, "<&-")
    assert (code, said.count("\n")) == (1, 1)
    assert "standard input cannot be read" in said


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("streams --url foo://x", 2),  # an option
        ("streams --reply-timeout 5", 2),
        ("streams --password-file /nonexistent/x", 1),
        ("groups seek s --group g --to 9-9", 3),  # the stream does not allow it
        ("groups seek s --group g --to 9-9 --yes", 1),
        ("groups seek s --group none --to earliest", 3),
        ("replay s --group g --from earliest", 3),
        ("replay s --group g --from earliest --yes", 1),
        ("show nothing", 1),
        ("streams --url redis://127.0.0.1:1 --reply-timeout 1s", 1),
        ("verify --engine --spark-submit /nonexistent/spark-submit", 2),
        ("verify --engine --spark-submit 'x", 2),
    ],
)
def test_the_class_of_an_error_decides_the_code(line: str, code: int, environment: dict[str, str]) -> None:
    words = [word.strip("'") if word != "'x" else word for word in line.split()]
    ran = CliRunner().invoke(main, words, env=environment)
    assert (ran.exit_code, "Traceback" in ran.output) == (code, False), ran.output


def test_a_release_that_the_server_does_not_know_would_be_refused(server: Server, client: redis.Redis) -> None:
    entry = client.xadd("s", {"n": 1})
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "c", {"s": ">"})
    words = ["groups", "release", "s", "--group", "g", "--consumer", "c", "--even-active", "--url", server.url]
    knows = "no XNACK" not in CliRunner().invoke(main, words).output
    codes = [CliRunner().invoke(main, [*words, *more]).exit_code for more in ((), ("--yes",))]
    assert codes == ([0, 0] if knows else [3, 1]), entry


def test_the_page_has_the_table() -> None:
    """docs/reference/commands.md names each class with its codes."""
    page = Path("docs/reference/commands.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d) \| (\d) \|$", page, re.MULTILINE)
    assert rows == [(kind.__name__, str(dry), str(code)) for kind, (dry, code) in CODES.items()]
