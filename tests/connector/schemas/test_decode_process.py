"""Values that end the process that decodes them do not end the one that shows them, and the process ends with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from spark_streams.base.extras import python_command
from spark_streams.connector.schemas.decode_process import DecodeProcess, FieldDecoders
from tests.connector.schemas.avro_values import FIRST, form, record

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
    assert process.pid is None
    assert shown(fields, b"a", b"b") == ['"a"', '"b"']
    pid = process.pid
    assert shown(fields, b"c") == ['"c"']
    assert process.pid == pid


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
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    until_it_has_ended(process.pid)
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
        "from tests.connector.schemas.test_decode_process import decoders, shown\n"
        "fields, process = decoders()\n"
        "shown(fields, b'a'); print(process.pid, flush=True)\n"
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
    pid = process.pid
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
    pid = fields._process.pid
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
