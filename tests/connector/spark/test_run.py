"""spark_streams.run: what a program that runs a query says when something is wrong, and how it stops."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_streams
from spark_streams.connector.errors import (
    DecodeError,
    InvalidOptionError,
    QueryError,
    UnknownOptionError,
    UnsupportedError,
)
from spark_streams.connector.running import error_output as spark_log_filter
from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from tests.conftest import by_turns, turn_of
from tests.connector.spark.streams import read_stream
from tools.machine_time import wait_for_end
from tools.servers.server import KINDS, Server, kind_of_turn
from tools.waiting import until

pytestmark = pytest.mark.spark

HERE = Path(__file__).resolve().parent
PATIENCE = 240.0  # seconds
# What Spark says of every query that is started.
OF_ALL = "WARN ResolveWriteToStream"
GROUP_EXISTS = "already exists on stream"  # each query of the program after the first has a new checkpoint
# What Spark prints of a task that is stopped before its first word, and of a query that is cut (facts.md).
CUT_AT_ONCE = re.compile(
    r'^Traceback .*\n  File ".*pyspark/daemon\.py", line \d+, in manager\n(?: .*\n)*EOFError\n'
    r'|^Exception in thread "stream execution thread .*StackOverflowError\n(?:\tat .*\n)*',
    re.MULTILINE,
)


class Program:
    """own_program.py as a process of its own, with Spark's own logging."""

    def __init__(self, what: str, folder: Path, servers: list[Server]) -> None:
        self.folder = folder
        words = [sys.executable, str(HERE / "own_program.py"), what, str(folder), *[server.url for server in servers]]
        path = os.pathsep.join([str(HERE.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        ours = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path}
        environment = {name: value for name, value in {**os.environ, **ours}.items() if name != "SPARK_CONF_DIR"}
        with (folder / "said").open("wb") as said:
            self.process = subprocess.Popen(words, stdout=said, stderr=said, env=environment, start_new_session=True)

    @property
    def output(self) -> str:
        return (self.folder / "said").read_text()

    @property
    def sections(self) -> list[tuple[str, list[str]]]:
        """What it was doing, and the lines on its standard error meanwhile, but for what Spark says of every query."""
        _, *parts = CUT_AT_ONCE.sub("", self.output).split("# begins: ")
        told = [part.splitlines() for part in parts]
        skipped = (OF_ALL, GROUP_EXISTS)
        return [(lines[0], [line for line in lines[1:] if not any(one in line for one in skipped)]) for lines in told]

    def wait_for(self, condition: Callable[[], bool], message: str) -> None:
        until(condition, message, PATIENCE, alive=lambda: self.process.poll() is None, log=lambda: self.output)

    def wait_for_file(self, name: str) -> None:
        self.wait_for((self.folder / name).exists, f"the program has not written file {name}")

    def says(self, line: str) -> Callable[[], bool]:
        """Whether it has said this in what it is doing now."""
        return lambda: any(line in one for one in self.sections[-1][1])

    def interrupt(self) -> None:
        """As a terminal does it: the process and all that it has started."""
        os.killpg(self.process.pid, signal.SIGINT)

    def interrupt_as_timeout_does(self) -> None:
        """`timeout -s INT`: the process, and its group, to which it belongs."""
        self.process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        self.interrupt()


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> list[Server]:
    """Empty servers, which one program takes one after the other: both, or one by turns."""
    kinds = [kind_of_turn(request.node.nodeid, turn_of(request.config))] if by_turns(request.node) else KINDS
    servers: list[Server] = [request.getfixturevalue(f"{kind}_server") for kind in kinds]
    for server in servers:
        with server.client() as client:
            client.flushall()
    return servers


def started(what: str, folder: Path, servers: list[Server], request: pytest.FixtureRequest) -> Program:
    program = Program(what, folder, servers)

    def end() -> None:
        if program.process.poll() is None:
            os.killpg(program.process.pid, signal.SIGKILL)
            program.process.wait()

    request.addfinalizer(end)
    return program


def test_an_error_is_one_line(servers: list[Server], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """An option, a server that does not answer, a value of an entry (of a query that was started before), a function of
    foreachBatch; and in the end an error that the program does not catch."""
    program = started("errors", tmp_path, servers, request)
    assert wait_for_end(program.process, PATIENCE) == 1, program.output[-3000:]
    *caught, (last, lines) = program.sections
    expected = {
        "option": "# UnknownOptionError [RSTREAM_UNKNOWN_OPTION] format rstream has no option 'grup'; did you mean",
        "server": "# ServerUnreachableError [RSTREAM_SERVER_UNREACHABLE] no stream server answers at redis://127.0.0.1:1",
        "value": "# DecodeError [RSTREAM_DECODE] entry ",
        "function": "# QueryError [RSTREAM_QUERY] ValueError: not today 4 "
        "(tests/connector/spark/own_program.py:74 in failing); run(…, traceback=True) shows the traceback",
    }
    assert [name for name, _ in caught] == [*expected] * len(servers)
    for name, told in caught:
        # That a server is waited for is said, too.
        assert len(told) == 1 + (name == "server"), told
        assert told[-1].startswith(expected[name])
    assert (last, len(lines)) == ("in the end", 1), lines
    assert lines[0].startswith("own_program.py: [RSTREAM_DECODE] entry ")


def test_a_query_that_is_asked_to_stop_finishes_its_batch(
    servers: list[Server], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Ctrl-C (that comes twice at once, too), SIGTERM; a batch that takes too long is cut; a second Ctrl-C, a second
    later, ends the program at once. Each time a query
    has a batch in a function of foreachBatch, and nothing is said but lines of ours."""
    program = started("signals", tmp_path, servers, request)
    stopping = "own_program.py: stopping after the batch in flight (at most {}); press Ctrl-C again to stop at once"
    for at in range(len(servers)):
        for name, ask in (("INT", program.interrupt_as_timeout_does), ("TERM", program.process.terminate)):
            program.wait_for_file(f"{name}{at}.begun")
            ask()
            program.wait_for(program.says("stopping"), "the program does not report that it stops")
            (tmp_path / f"{name}{at}.go").touch()
        program.wait_for_file(f"cut{at}.begun")
        program.interrupt()
    program.wait_for_file("twice.begun")
    program.interrupt()
    program.wait_for(program.says("stopping"), "the program does not report that it stops")
    time.sleep(1.2)  # two within a second are one request
    program.interrupt()
    assert wait_for_end(program.process, PATIENCE) == -signal.SIGINT, program.output[-3000:]
    finished = [stopping.format("10m"), "# batch of 1 finished", "# pending 0"]
    was_cut = "own_program.py: the batch in flight took longer than 500ms: it is cut, and the next run repeats it"
    cut = [stopping.format("500ms"), was_cut, "# pending 1"]
    at_once = "own_program.py: stopped at once; the next run reads entries again that were not acknowledged"
    assert program.sections == [
        *[("INT", finished), ("TERM", finished), ("cut", cut)] * len(servers),
        ("twice", [stopping.format("10m"), at_once]),
    ]


# -- in a session that goes on -------------------------------------------------------------------------------------


@pytest.fixture
def writer(spark: SparkSession, server: Server, tmp_path: Path) -> Callable[..., DataStreamWriter]:
    """Three entries, one of which has no number, to the end of what is there."""
    with server.client() as client:
        for value in ("1", "2", "three"):
            client.xadd("s", {"a": value})

    def writer_of(**options: str) -> DataStreamWriter:
        rows = read_stream(spark, server, "a INT", streams="s", **options)
        return rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)

    return writer_of


def levels(spark: SparkSession) -> dict[str, Any]:
    """Of the loggers that are turned off meanwhile: null where they have none of their own."""
    loggers = spark._jvm.org.apache.logging.log4j.LogManager.getContext(False).getConfiguration().getLoggers()
    of_java = {
        name: loggers.get(name) for name in spark_log_filter.REPEATING
    }  # asked once each: they may be given back meanwhile
    of_java = {name: one and one.getLevel().toString() for name, one in of_java.items()}
    return {**of_java, "py4j": logging.getLogger("py4j.clientserver").disabled, "root": logging.getLogger().filters}


def test_a_query_that_ends_is_returned_and_nothing_has_changed(
    spark: SparkSession, server: Server, writer: Callable[..., DataStreamWriter]
) -> None:
    before = levels(spark), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), sys.excepthook
    query = spark_streams.run(writer())
    # Before Spark 4.2 the run that finds nothing left is the last one.
    rows = 3 if HAS_READ_LIMITS else 0
    assert (query.isActive, query.exception(), query.lastProgress.numInputRows) == (False, None, rows)
    assert spark_streams.run(query) is query  # which has ended
    assert spark_streams.run(lambda: query) is query
    assert (levels(spark), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), sys.excepthook) == before


def test_an_error_has_its_class_and_spark_s_words_only_on_request(
    spark: SparkSession, writer: Callable[..., DataStreamWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_log_filter, "_LATE_LOGS", 0.0)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    before = levels(spark)
    with pytest.raises(DecodeError) as caught:
        spark_streams.run(writer(mode="FAILFAST"))
    assert (caught.value.__suppress_context__, caught.value.__cause__) == (True, None)
    until(lambda: levels(spark) == before, "the log levels are not restored", PATIENCE)
    with pytest.raises(DecodeError) as caught:
        spark_streams.run(writer(mode="FAILFAST"), traceback=True)
    assert "Traceback" in str(caught.value.__cause__)
    monkeypatch.setenv("RSTREAM_TRACEBACK", "1")
    with pytest.raises(DecodeError) as caught:
        spark_streams.run(writer(mode="FAILFAST"))
    assert caught.value.__cause__ is not None


def test_the_error_is_noted_for_the_dead_letter_of_its_entry(
    server: Server, writer: Callable[..., DataStreamWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else watches the query. Without maxDeliveries no entry is given up, and nothing is noted."""
    monkeypatch.setattr(spark_log_filter, "_LATE_LOGS", 0.0)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with server.client(decode_responses=True) as client:
        for more in ({}, {"maxDeliveries": "3", "deadLetterStream": "letters"}):
            with pytest.raises(DecodeError):
                spark_streams.run(writer(mode="FAILFAST", **more))
            notes = [json.loads(client.get(key) or "") for key in client.keys("rstream:failure:*")]
            assert len(notes) == bool(more)
        assert "DecodeError" in notes[0]["error"]
        assert "RSTREAM_DECODE" in notes[0]["message"]


def test_what_spark_logs_late_of_a_stop_is_not_shown(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scheduler is told asynchronously that no task of the query is to go on, and may warn that there is none."""
    monkeypatch.setattr(spark_log_filter, "_LATE_LOGS", 1.0)
    before = levels(spark)
    with server.client() as client:
        client.xadd("s", {"a": "1"})
    rows = read_stream(spark, server, "a INT", streams="s")
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))

    def started_and_stopped() -> StreamingQuery:
        query = writer.start()
        os.kill(os.getpid(), signal.SIGTERM)
        return query

    query = spark_streams.run(started_and_stopped)
    assert not query.isActive
    assert {levels(spark)[name] for name in spark_log_filter.REPEATING} == {"OFF"}
    until(lambda: levels(spark) == before, "the log levels are not restored", PATIENCE)


def test_what_spark_refuses_is_one_line(
    writer: Callable[..., DataStreamWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(QueryError, match=r"^\[RSTREAM_QUERY\] .*DATA_SOURCE_NOT_FOUND.*traceback=True"):
        spark_streams.run(writer().format("nothing"))


def test_an_error_of_the_function_that_creates_the_query_is_reported_the_same(
    spark: SparkSession, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """load() looks at options where no schema is declared."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(UnknownOptionError, match="did you mean 'group'"):
        spark_streams.run(lambda: read_stream(spark, server, None, streams="s", grup="g").writeStream)


def test_run_is_called_rightly(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    rows = spark.readStream.format("rate").load()
    with pytest.raises(TypeError, match="takes df.writeStream"):
        spark_streams.run(rows)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="stop_within='soon' must be a duration"):
        spark_streams.run(rows.writeStream, stop_within="soon")
    found: list[BaseException] = []

    def elsewhere() -> None:
        try:
            spark_streams.run(rows.writeStream)
        except UnsupportedError as error:
            found.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(found)
