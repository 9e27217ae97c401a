"""Values that end the process that decodes them do not end the one that shows them, and the process ends with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from decimal import Decimal
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner, Result

from spark_streams.base.extras import python_command
from spark_streams.cli import main
from spark_streams.connector.deadletter.envelope import dead_letter_fields
from spark_streams.connector.schemas.decode_process import DecodeProcess, FieldDecoders
from spark_streams.connector.schemas.payload_format import NO_LOGIN, form_of
from tests.connector.schemas.avro_values import FIRST, encoded, form, record
from tests.connector.schemas.registry_server import RegistryServer
from tests.connector.schemas.test_avro import DECIMAL, MOMENT, of_type
from tools.servers.server import Server

ROOT = Path(__file__).parents[3]
_PROGRAM = (
    f"import sys, runpy; sys.path.insert(0, {str(ROOT)!r}); "
    "runpy.run_module('tests.connector.schemas.hostile_server', run_name='__main__')"
)
HOSTILE = tuple(python_command("-c", _PROGRAM))
LATE = "not decoded: it took too long"


def decoders(seconds: float = 10.0) -> tuple[FieldDecoders, DecodeProcess]:
    process = DecodeProcess({b"p": form(FIRST)}, HOSTILE, seconds)
    return FieldDecoders({b"p": form(FIRST)}, process=process), process


def shown(fields: FieldDecoders, *values: bytes) -> list[str]:
    found = fields.page([(b"p", value) for value in values])
    return [one.reason or one.text.decode() for one in found if one is not None]


def pid_of(process: DecodeProcess) -> int | None:
    """ID of the process that was started last, None if there is none."""
    return None if process._running is None else process._running.process.pid


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_it_has_ended(pid: int) -> None:
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.05)


def test_no_process_runs_before_the_first_value_that_is_decoded() -> None:
    fields, process = decoders()
    assert fields.page([(b"q", b"x")]) == [None]
    assert pid_of(process) is None
    assert shown(fields, b"a", b"b") == ['"a"', '"b"']
    pid = pid_of(process)
    assert shown(fields, b"c") == ['"c"']
    assert pid_of(process) == pid


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"segv", "not decoded: the process that decodes it ended with SIGSEGV"),
        (b"exit", "not decoded: the process that decodes it ended with exit code 3"),
        (b"memory", "not decoded: it needs too much memory"),
        (b"hang", LATE),
        (b"print", '"print"'),
    ],
)
def test_one_value_has_a_reason_and_those_beside_it_are_decoded(value: bytes, reason: str) -> None:
    fields, _ = decoders(30.0)
    assert shown(fields, b"a", value, b"b", value) == ['"a"', reason, '"b"', reason]


def test_a_page_takes_no_longer_than_its_time() -> None:
    fields, _ = decoders(1.5)
    begun = time.monotonic()
    assert shown(fields, b"sleep", b"sleep", b"x" * (1 << 20)) == [LATE] * 3
    assert time.monotonic() - begun < 6
    assert shown(fields, b"a")[0] in ('"a"', LATE)


def test_a_page_waits_for_another_one_as_long_as_its_time() -> None:
    fields, _ = decoders(2.0)
    other = threading.Thread(target=shown, args=(fields, b"sleep"))
    other.start()
    begun = time.monotonic()
    assert shown(fields, b"a")[0] in ('"a"', LATE)
    assert time.monotonic() - begun < 6
    other.join()


def test_a_process_that_was_killed_between_two_pages_is_started_again() -> None:
    fields, process = decoders()
    shown(fields, b"a")
    pid = pid_of(process)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until_it_has_ended(pid)
    assert shown(fields, b"b") == ['"b"']


def test_a_process_that_cannot_be_started_is_a_reason() -> None:
    process = DecodeProcess({b"p": form(FIRST)}, ("/nonexistent/python",))
    found = shown(FieldDecoders({b"p": form(FIRST)}, process=process), b"a")
    assert found == ["not decoded: no process can be started (No such file or directory)"]
    ends = DecodeProcess({b"p": form(FIRST)}, tuple(python_command("-c", "pass")))
    found = shown(FieldDecoders({b"p": form(FIRST)}, process=ends), b"a")
    assert found == ["not decoded: the process that decodes it ended with exit code 0"]


@pytest.mark.parametrize("last", ["a", "hang"])
def test_the_process_ends_with_its_parent_also_if_that_is_killed(last: str) -> None:
    """Also while it hangs, when it does not see that its input has ended."""
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.connector.schemas.test_decode_process import decoders, pid_of, shown\n"
        "fields, process = decoders()\n"
        "shown(fields, b'a'); print(pid_of(process), flush=True)\n"
        f"shown(fields, {last.encode()!r}); import time; time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.5)
        assert is_running(pid)
        parent.kill()
    until_it_has_ended(pid)


def test_the_process_ends_with_its_owner() -> None:
    fields, process = decoders()
    shown(fields, b"a")
    pid = pid_of(process)
    assert pid is not None
    del fields, process
    until_it_has_ended(pid)


def test_the_real_process_limits_its_memory_and_leaves_no_core() -> None:
    fields = FieldDecoders({b"p": form(FIRST)})
    seen = fields.page([(b"p", b"\x06ann\x0e"), (b"p", b"\xff")])
    assert [None if one is None else (one.text, one.reason) for one in seen] == [
        (b'{"customer":"ann","amount":7}', ""),
        (b"", "bad-value"),
    ]
    pid = pid_of(fields._process)
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    by_name = {line[:26].strip(): line[26:].split()[0] for line in limits}
    assert int(by_name["Max address space"]) < 4 << 30
    assert by_name["Max core file size"] == "0"


def test_a_value_that_contains_itself_very_deeply_ends_nothing() -> None:
    node = record({"name": "next", "type": ["null", "Node"]}, name="Node")
    fields = FieldDecoders({b"p": form(json.loads(json.dumps(node)))})
    for size in (1_000, 20_000, 200_000):
        seen = fields.page([(b"p", b"\x02" * size + b"\x00")])[0]
        assert seen is not None
        assert seen.reason == "bad-value" or seen.reason.startswith("not decoded: ")


# -- rstream show and dead show decode fields: as JSON, or as they are with the reason, and never raw to a terminal ----


WIDE = record(
    {"name": "d", "type": DECIMAL}, {"name": "t", "type": of_type("long", "timestamp-micros")},
    {"name": "f", "type": "double"}, {"name": "b", "type": "bytes"}, {"name": "s", "type": "string"},
)  # fmt: skip


def run(server: Server, *words: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(main, [*words, "--url", server.url])


def add_dead_letter(client: redis.Redis, payload: bytes) -> str:
    envelope = {"stream": "s", "id": "1-0", "stage": "read", "reason": "odd"}
    return client.execute_command("XADD", "dead", "*", *dead_letter_fields([b"payload", payload], envelope)).decode()


@pytest.mark.in_turn
def test_a_value_is_shown_as_json_and_one_that_cannot_be_decoded_as_it_is(
    server: Server, registry: RegistryServer, tmp_path: Path
) -> None:
    registry.add(1, FIRST)
    registry.login = "reader:s3cret"
    (tmp_path / "password").write_text("s3cret\n")
    good, hostile = ({"customer": name, "amount": 7} for name in ("ann", "\x1b[2J\u202e"))
    with server.client() as client:
        for payload in (encoded(FIRST, good, 1), encoded(FIRST, hostile, 1), encoded(FIRST, good, 9), b"\x1b]0;x\x07"):
            client.xadd("s", {"payload": payload, "n": "1"})
    words = ("--decode", "payload", "--registry-username", "reader", "--registry-password-file", f"{tmp_path}/password")
    ran = run(server, "show", "s", *words, RSTREAM_REGISTRY=registry.url)
    assert ran.exit_code == 0
    assert "\x1b[2J" not in ran.output
    assert "\x1b]0" not in ran.output
    assert "\u202e" not in ran.output
    lines = [line.split("  ")[1:] for line in ran.output.splitlines() if line.startswith("  payload")]
    assert [[part.strip() for part in line if part] for line in lines] == [
        ["payload (decoded)", '{"customer":"ann","amount":7}'],
        ["payload (decoded)", r'{"customer":"\u001b[2J\u202e","amount":7}'],
        ["payload (unknown-schema)", r"\x00\x00\x00\x00\t\x06ann\x0e"],
        ["payload (bad-framing)", r"\x1b]0;x\x07"],
    ]
    found = json.loads(run(server, "show", "s", *words, "--json", RSTREAM_REGISTRY=registry.url).output)
    assert [one["decoded"] for one in found][::2] == [
        [{"field": "payload", "json": '{"customer":"ann","amount":7}'}],
        [{"field": "payload", "reason": "unknown-schema"}],
    ]
    refused = run(server, "show", "s", "--decode", "payload", "--registry", registry.url)
    assert refused.exit_code == 1
    assert "RSTREAM_REGISTRY] " in refused.output
    assert "refuses the login" in refused.output


@pytest.mark.in_turn
def test_a_dead_letter_is_decoded_by_the_schema_of_a_file(server: Server, tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(FIRST))
    with server.client() as client:
        add_dead_letter(client, encoded(FIRST, {"customer": "ann", "amount": 7}))
    ran = run(server, "dead", "show", "dead", "--schema", f"payload={tmp_path}/order.avsc")
    assert '{"customer":"ann","amount":7}' in ran.output
    assert "dl.reason" in ran.output
    as_json = run(server, "dead", "show", "dead", "--schema", f"payload={tmp_path}/order.avsc", "--json").output
    found = json.loads(as_json)
    assert found[0]["decoded"] == [{"field": "payload", "json": '{"customer":"ann","amount":7}'}]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--decode", "p"], "--decode needs --registry URL; without a registry, use --schema"),
        (["--schema", "order.avsc"], "is not FIELD=FILE"),
        (["--schema", "p=none.avsc"], "schema 'none.avsc' cannot be read"),
        (["--registry", "http://h"], "--registry does nothing without --decode FIELD"),
        (["--framed"], "--framed does nothing without --schema"),
        (["--decode", "p", "--registry", "http://u:s3cret@h"], "registry must be http"),
        (["--decode", "p", "--registry", "http://h", "--registry-username", "u"], "belong together; set both"),
        (["--schema", "p=/dev/null", "--message", "x"], "message names the Protobuf message"),
    ],
)
def test_wrong_options_are_named(server: Server, words: list[str], text: str) -> None:
    ran = run(server, "show", "s", *words)
    assert ran.exit_code != 0
    assert text in ran.output
    assert "s3cret" not in ran.output


def test_all_digits_and_what_json_lacks_are_texts() -> None:
    decoders = FieldDecoders({b"p": form_of("avro", "", json.dumps(WIDE), "", NO_LOGIN, None)})
    value = {"d": Decimal("1.20"), "t": MOMENT, "f": float("nan"), "b": b"\xff", "s": "x"}
    seen = decoders.page([(b"p", encoded(WIDE, value))])[0]
    assert seen is not None
    assert seen.text == (b'{"d":1.20,"t":"2026-01-31T23:59:59.123456+00:00","f":"nan","b":{"base64":"/w=="},"s":"x"}')
    large = decoders.page([(b"p", bytes(2 << 20))])[0]
    assert large is not None
    assert large.reason == "larger than 1 MB"
    assert decoders.page([(b"q", b"")]) == [None]


def test_deep_json_is_a_reason() -> None:
    decoders = FieldDecoders({b"p": form_of("json", "", "{}", "", NO_LOGIN, None)})
    for depth in (400, 900, 5_000, 100_000):
        seen = decoders.page([(b"p", b"[" * depth + b"]" * depth)])[0]
        assert seen is not None
        assert seen.reason in ("", "bad-value")


def test_a_console_goes_on_if_the_registry_is_away(registry: RegistryServer) -> None:
    registry.faults = [401]
    decoders = FieldDecoders({b"p": form_of("avro", registry.url, "", "", NO_LOGIN, None)}, keeps_going=True)
    seen = decoders.page([(b"p", encoded(FIRST, {"customer": "ann", "amount": 7}, 1))])[0]
    assert seen is not None
    assert "refuses the login" in seen.reason


@pytest.mark.in_turn
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_field_that_no_entry_has_is_named(server: Server, tmp_path: Path, form: tuple[str, ...]) -> None:
    """The name is misspelt. An escape sequence in it does not reach the terminal."""
    (tmp_path / "order.avsc").write_text(json.dumps(FIRST))
    with server.client() as client:
        client.xadd("s", {"payload": encoded(FIRST, {"customer": "ann", "amount": 7}), "n": "1"})
        client.xadd("s", {"n": "1"})
        add_dead_letter(client, encoded(FIRST, {"customer": "ann", "amount": 7}))
        client.xgroup_create("empty", "g", mkstream=True)
    for words in (("show", "s"), ("dead", "show", "dead")):
        for field, is_noted in (("payload", False), ("payloud", True), ("\x1b[2J", True)):
            ran = run(server, *words, "--schema", f"{field}={tmp_path}/order.avsc", *form)
            assert (ran.exit_code, "so it is not decoded. Check its name" in ran.stderr) == (0, is_noted)
            assert "\x1b" not in ran.output
    assert "not decoded" not in run(server, "show", "empty", "--schema", f"p={tmp_path}/order.avsc").stderr


@pytest.mark.in_turn
def test_a_value_that_ends_a_process_is_a_line(server: Server, tmp_path: Path) -> None:
    """fastavro calls itself as deep as the first value says."""
    node = record({"name": "next", "type": ["null", "Node"]}, name="Node")
    (tmp_path / "node.avsc").write_text(json.dumps(node))
    with server.client() as client:
        for depth in (20_000, 1):
            client.xadd("s", {"payload": b"\x02" * depth + b"\0"})
    for words in ((), ("--json",)):
        ran = run(server, "show", "s", "--schema", f"payload={tmp_path}/node.avsc", *words)
        assert ran.exit_code == 0
        assert ran.output.replace("\\", "").count('{"next":{"next":null}}') == 1
        assert ("bad-value" in ran.output) is not ("not decoded: " in ran.output)
