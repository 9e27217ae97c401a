"""Hostile arguments, input and environment for every command of `rstream`: an error is sentences, never a traceback.

RSTREAM_TIMES=20 RSTREAM_SEED=7     a longer search, or the search of a run that printed this seed
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from tests.seeds import TIMES
from tools.day_seed import first_seed
from tools.servers.server import Server

# Commands that run until they are stopped, or that start programs.
LEFT_OUT = {"serve", "console", "run"}
VALUES = [
    "", " ", "*", "[", "a[", "[z-a]", "s", "orders", "s\udcff", "\udcff", "é\u202e", "a\nb", "a=b", "=", "=x", "-",
    "--", "-1", "0", "1e9", "nan", "inf", "-inf", "9" * 30, "9" * 5_000, "5-1", "5-x", f"{2**64 - 1}-{2**64 - 1}",
    str(2**64), "0-0", "$", ">", "+", "-100", "+" + "9" * 18, "earliest", "latest", "2026-11-20T08:00",
    "0001-01-01T00:00+23:59", "9999-12-31T23:59:59-23:59", "1h", "99999999999999d", "1e3s", "٣", "²", "x" * 5_000,
    "{", "{}", "[]", "null", '{"a":1}', "[" * 3_000, '"\\ud800"', "orders:*", "{a}b", "rstream:dead", "a,b", ",",
    ":", "a:b:c", "/", "/nonexistent/x", "/tmp", "..", "name=\udcfe", "\udcfe=1", "\x1b[2J", "a\tb", "g", "c",
    "dead", "true", "1kb", "9" * 19 + "gb", "re(", "dl.reason=x", "%", "%(x)s", "{0}", "\\", "\\xff",
]  # fmt: skip
URLS = [
    "redis://", "redis://[", "redis://[::1", "redis://a:b:c", "redis://h:99999999", "redis://h:x", "redis://h:٣",
    "redis://\udcff", "unix:", "unix://", "unix:///tmp/\udcff", "embedded:///\udcff", "embedded:?idle=x",
    "embedded:?x=y&&", "http://x", "://", "redis://user:pa]ss@h", "redis+cluster://", "redis+sentinel://h",
    "redis+sentinel://h/\udcff", "rediss://h?ssl_ca_certs=\udcff", "redis://h/" + "9" * 30,
    "redis://%ff:%ff@127.0.0.1:1", "redis://127.0.0.1:1/0", "redis://\u202e:1",
]  # fmt: skip
BAD_DURATIONS = ["", "-1s", "x", "٣s", "1h\u202e", "9" * 5_000, "nan", "\udcff", "[" * 3_000]
FINE = {0, 1, 2, 3, 4}


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands with their words."""
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from leaves(below, (*path, name))
    elif path[0] not in LEFT_OUT:
        yield path, command


COMMANDS = dict(leaves(main))


def value_for(chance: random.Random, param: click.Parameter) -> str:
    """Mostly a hostile value; sometimes one that the command accepts, so that it goes on."""
    if isinstance(param.type, click.Choice) and chance.random() < 0.6:
        return str(chance.choice([*param.type.choices]))
    if isinstance(param.type, click.types.IntParamType) and chance.random() < 0.6:
        return str(chance.choice([0, 1, 2, 5, 10]))
    if param.name in ("stream", "names", "source") and chance.random() < 0.5:
        return chance.choice(["s", "orders", "dead"])
    if param.name == "group" and chance.random() < 0.5:
        return "g"
    return chance.choice(VALUES)


def words_for(chance: random.Random, path: tuple[str, ...], command: click.Command, url: str) -> list[str]:
    words, arguments = [*path], list[str]()
    for param in command.params:
        if isinstance(param, click.Argument):
            count = chance.choice([1, 1, 1, 2, 3]) if param.nargs == -1 else param.nargs
            if not param.required and chance.random() < 0.3:
                count = 0
            arguments += [value_for(chance, param) for _ in range(count)]
            continue
        name = max(param.opts, key=len)
        if name in ("--url", "--help", "--follow", "--for", "--port", "--host", "--start"):
            continue
        if param.required or chance.random() < 0.15:
            is_flag = isinstance(param, click.Option) and param.is_flag
            words += [name, *([] if is_flag else [value_for(chance, param) for _ in range(param.nargs)])]
    if path in (("top",), ("exporter",)):
        words.append("--once")
    if path == ("verify",):  # else Spark runs for minutes
        words += ["--minutes", "0.05", "--spark-submit", "false"]
    if path == ("wait",):  # without it, it may wait forever
        words += ["--for", chance.choice(["1ms", "1ms", *BAD_DURATIONS])]
    if any("--url" in param.opts for param in command.params):
        words += ["--url", chance.choice(URLS) if chance.random() < 0.08 else url]
    return [*words, *(["--"] if chance.random() < 0.3 else []), *arguments]


def run(words: list[str], given: bytes = b"{}\n") -> str:
    """The output. Fails if the command ended by an exception, or with another exit code."""
    result = CliRunner().invoke(main, words, input=given, env={"COLUMNS": "200"})
    shown = [word[:80] for word in words]
    if not isinstance(result.exception, SystemExit | None):
        lines = "".join(traceback.format_exception(result.exception))
        raise AssertionError(f"{shown} ended by\n{lines[-3_000:]}")
    assert result.exit_code in FINE, (shown, result.output[-500:])
    assert "Traceback" not in result.output, shown
    return result.output


@pytest.fixture
def filled_server(engine_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Two streams, a group with pending entries, a dead letter; files are written to a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RSTREAM_REPLY_TIMEOUT", "1s")
    with engine_server.client() as client:
        client.flushall()
        for n in range(5):
            client.xadd("s", {"n": n})
            client.xadd("orders", {"customer": "ann"})
        client.xgroup_create("s", "g", "0")
        client.xreadgroup("g", "c", {"s": ">"}, count=2)
        letter = {"dl.version": 1, "dl.stream": "s", "dl.id": "5-1", "dl.group": "g", "dl.reason": "bad", "a": "1"}
        client.xadd("dead", letter)
    return engine_server


@pytest.mark.random
@pytest.mark.parametrize("path", COMMANDS, ids="-".join)
def test_no_argument_ends_a_command_by_a_traceback(
    filled_server: Server, path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # `top --once` waits for its interval, which may be an hour here.
    sleep = time.sleep
    monkeypatch.setattr(
        "spark_streams.operations.commands.read.monitor.time.sleep", lambda seconds: sleep(min(seconds, 0.1))
    )
    seed = first_seed()
    chance = random.Random(f"{seed} {path}")
    for _ in range(15 * TIMES):
        run(words_for(chance, path, COMMANDS[path], filled_server.url))


NAMES = {"names", "stream", "group", "server_url", "parking", "url"}


VALID = {"entry": "1-1", "target": "earliest", "begin": "earliest", "idle": "5m", "name": "alerts"}


@pytest.mark.parametrize("path", COMMANDS, ids="-".join)
def test_a_name_that_is_not_utf_8_is_refused(filled_server: Server, path: tuple[str, ...]) -> None:
    """Before anything is done: each parameter that is a name."""
    command = COMMANDS[path]
    for bad in command.params:
        if bad.name not in NAMES or bad.callback is not None:
            continue
        words, arguments = [*path], list[str]()
        for param in command.params:
            given = "a\udcff" if param is bad else VALID.get(param.name or "", "s")
            if isinstance(param, click.Argument):
                arguments += [given] if param is bad or param.required or param.name == "stream" else []
            elif param is bad or param.required:
                words += [max(param.opts, key=len), given]
        if bad.name != "url" and any("--url" in param.opts for param in command.params):
            words += ["--url", filled_server.url]
        said = run([*words, *arguments])
        assert "'a\\xff' is not UTF-8" in said, (words, said)


def test_values_and_consumers_may_be_any_bytes(filled_server: Server) -> None:
    """As other clients may have written them."""
    url = ("--url", filled_server.url)
    with filled_server.client() as client:
        client.xreadgroup("g", b"c\xff", {"s": ">"}, count=1)
        run(["add", "new", "a\udcff=\udcfe", *url])
        assert client.xrange("new")[0][1] == {b"a\xff": b"\xfe"}
        assert "c\\xff" in run(["pending", "s", "--group", "g", *url])
        run(
            [
                "groups",
                "claim",
                "s",
                "--group",
                "g",
                "--from",
                "c\udcff",
                "--to",
                "d\udcfe",
                "--even-active",
                "--yes",
                *url,
            ]
        )
        assert len(client.xpending_range("s", "g", "-", "+", 9, b"d\xfe")) == 1
    run(["dead", "list", "dead", "--reason", "\udcff", *url])
    run(["dead", "redrive", "dead", "--set", "a=\udcff", *url])


LINES = {
    "half of a pair": (rb'{"a":"\ud800"}', "has half of a surrogate pair in field 'a'"),
    "the other half": (rb'{"a":"x\udfffy"}', "has half of a surrogate pair in field 'a'"),
    "half of a pair in a name": (rb'{"\udc00":1}', r"has half of a surrogate pair in field '\udc00'"),
    "half of a pair within": (rb'{"a":{"b":["\ud800"]}}', "has half of a surrogate pair in field 'a'"),
    "half of a pair in a name within": (rb'{"a":{"\ud800":1}}', "has half of a surrogate pair in field 'a'"),
    "deep": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "is nested too deeply"),
    "deep and unfinished": (b'{"a":' + b"[" * 100_000, "is nested too deeply"),
    "deep objects": (b'{"a":' * 100_000, "is nested too deeply"),
    "a little too deep": (b'{"a":' + b"[" * 900 + b"]" * 900 + b"}", "is nested too deeply"),
    "not UTF-8": (b'{"a":"\xff"}', "is not UTF-8 (byte 7)"),
    "half a character": (b'{"a":"\xe2\x82"}', "is not UTF-8 (byte 7)"),
    "an encoded surrogate": (b'{"a":"\xed\xa0\x80"}', "is not UTF-8 (byte 7)"),
    "UTF-16": ('{"a":1}'.encode("utf-16-le"), "is not JSON: "),
    "a number": (b"9" * 5_000, "is not a JSON object"),
    "a list": (b"[1]", "is not a JSON object"),
    "nothing": (b"{}", "has no field"),
    "only null": (b'{"a":null}', "has no field"),
    "no JSON": (b"{", "is not JSON: "),
}


@pytest.mark.parametrize(("line", "message"), LINES.values(), ids=LINES)
def test_a_line_that_cannot_be_added_is_named_with_what_was_added_before(
    filled_server: Server, line: bytes, message: str
) -> None:
    good = b'{"n":1}\n\n{"n":"\\ud83d\\ude00"}\n'
    said = run(["add", "new", "-", "--url", filled_server.url], good + line + b'\n{"n":3}\n')
    assert f"line 4 {message}" in said
    assert "(2 entries were added before)" in said
    with filled_server.client() as client:
        assert [fields for _, fields in client.xrange("new")] == [{b"n": b"1"}, {b"n": "😀".encode()}]


def test_a_long_number_and_a_deep_value_that_can_be_read_are_added(filled_server: Server) -> None:
    """With all digits, whatever Python's own limits are."""
    number, deep = b"9" * 5_000, b"[" * 100 + b"]" * 100
    assert run(["add", "new", "-", "--url", filled_server.url], b'{"n":%b,"d":%b}\n' % (number, deep)).startswith(
        "added 1 entry"
    )
    with filled_server.client() as client:
        assert [fields for _, fields in client.xrange("new")] == [{b"n": number, b"d": deep}]


@pytest.mark.in_turn
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_real_arguments_of_a_process(filled_server: Server, locale: str) -> None:
    """As a shell passes them: bytes."""
    environment = {**os.environ, "LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for words in (
        [b"show", b"s\xff"],
        [b"lag", b"--group", b"\xfe"],
        [b"add", b"n\xff", b"a=1"],
        [b"tail", b"\xed\xa0\x80"],
    ):
        command = [
            sys.executable.encode(),
            b"-m",
            b"spark_streams.cli",
            *words,
            b"--url",
            filled_server.url.encode(),
        ]
        ended = subprocess.run(command, capture_output=True, timeout=60, env=environment, check=False)
        assert ended.returncode == 2, words
        assert b"is not UTF-8" in ended.stderr
        assert b"Traceback" not in ended.stderr
    environment["RSTREAM_PASSWORD"] = "\udcff"
    command = [
        sys.executable.encode(),
        b"-m",
        b"spark_streams.cli",
        b"lag",
        b"--url",
        filled_server.url.encode(),
    ]
    ended = subprocess.run(command, capture_output=True, timeout=60, env=environment, check=False)
    assert ended.returncode == 2
    assert b"RSTREAM_PASSWORD is not UTF-8" in ended.stderr


def test_a_file_may_have_any_name(filled_server: Server, tmp_path: Path) -> None:
    run(["export", "s", "out\udcff.jsonl", "--url", filled_server.url])
    assert (tmp_path / "out\udcff.jsonl").read_bytes().count(b"\n") == 5
    assert "imported 5 entries" in run(["import", "out\udcff.jsonl", "copy", "--url", filled_server.url])


def test_a_stream_that_is_named_twice_is_shown_once(filled_server: Server) -> None:
    for words in (["groups", "list"], ["lag"], ["pending"]):
        once, twice = (
            run([*words, *names, "--json", "--url", filled_server.url]).count('"stream": "s"')
            for names in (["s"], ["s", "s"])
        )
        assert once == twice > 0, words


def test_one_snapshot_as_json(filled_server: Server) -> None:
    assert run(["top", "--once", "--json", "--url", filled_server.url]).count("\n") == 1
