"""The cause of a query's error, parsed from Spark's long text: one rule for `run`, `watch`, the jobs and dead letters.

The first of these that the text has:

1. A text of Spark that says too little, such as that of a Python worker that ended: see _INSUFFICIENT.
2. The last line of a Python traceback, with the last frame of the user's own files.
3. A Java exception: the first one with an error condition of Spark that is no wrapper, else the last cause.

Pure, but for the working directory, to which a file's name is relative, and for the note on the server.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping

from spark_streams.connector.errors import QueryError, RStreamError, find_in_text
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.source.pending.poison_record import QueryFailure, note_failure
from spark_streams.connector.watch.progress import offsets_in
from spark_streams.connector.wire.connect import connect

_log = logging.getLogger("spark_streams.monitor")

_TRACEBACK = "Traceback (most recent call last):"
# Text after a message: Java's stack, Spark's closing lines. Not `\s*`: an entry's value may be a million line ends.
_STACK = re.compile(
    r"\n[ \t]*at [\w.$/<>]+\(|\n[ \t]*\.\.\. \d+ more|\n ?SQLSTATE: |\nJVM stacktrace:|\n=== Streaming Query ==="
)
_ERROR = re.compile(r"^([A-Za-z_][\w.]*)(?:: ?(.*))?$", re.DOTALL)  # of Python
# Of Java: its class has a package. Over Spark Connect, the class is in parentheses.
_JAVA_ERROR = re.compile(r"^\(?((?:\w+\.)+[\w$]+)(?:(?:: ?|\) )(.*))?$", re.DOTALL)
# Text before a Java exception: of a query that ended, of py4j.
_BEFORE_ERROR = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: |^[^\n]*\n: ")
_CONNECT_DETAILS = re.compile(r'^\tdetails = "(.+)"$', re.MULTILINE)  # of a call that the server did not answer
_CONDITION_OF_SPARK = re.compile(r"\[([A-Z_.]+)\]")
_WRAPPERS = frozenset({"TASK_WRITE_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "FAILED_EXECUTE_UDF"})
_OF_JOBS = ("Job aborted", "Writing job aborted")
_FRAME = re.compile(r'^ +File "([^"]+)", line (\d+),? in (.+)$', re.MULTILINE)
_NOT_THE_USERS = re.compile(r"^<|/(pyspark|py4j|spark_streams)/|/(site|dist)-packages/|/lib/python\d")
_CONDITION = re.compile(r"\[(RSTREAM_[A-Z_]+)\]")
# Our errors that an entry can cause; the others are caused by the server, an option or the checkpoint.
_ENTRYS = frozenset({"RSTREAM_SCHEMA", "RSTREAM_DECODE", "RSTREAM_ENTRY_ID"})

# Texts of Spark that do not say what happened: a pattern, our name of the error, its message.
_INSUFFICIENT = (
    (
        re.compile(r"Python worker exited unexpectedly|terminated with exception: +SQLSTATE: |^java.io.EOFException\n"),
        "PythonWorkerEnded",
        "a Python process of Spark ended while it read or processed rows{streams}{frame}. Causes are too little "
        "memory, a crash in native code, a signal, and os._exit. If one entry does it each time, set maxDeliveries",
    ),
    (
        re.compile(r"Python worker (?:failed )?to connect back|StreamingPythonRunnerInitializationTimeoutException"),
        "PythonWorkerTooLate",
        "a Python process of Spark did not start in the time that Spark allows: the machine was too busy. No entry is "
        "lost. Start the query again: it continues where it was",
    ),
    (
        re.compile(r"rstream does not support Update mode"),
        "UnsupportedOutputMode",
        "Spark writes to format rstream in output mode append or complete, not update. To write each changed row of "
        "an aggregation, keep outputMode('update') and write in foreachBatch: rows.write.format('rstream'), with "
        "option transaction to write each row once",
    ),
)


def failure_of(text: str) -> QueryFailure:
    """Return the class and the message of the cause; the class is empty if there is none."""
    return _insufficient(text) or _python(text) or _java(text)


def may_be_caused_by_entry(text: str) -> bool:
    """Whether an entry can be the cause of the error."""
    condition = _CONDITION.search(text)
    return condition is None or condition[1] in _ENTRYS


def note_for_dead_letter(text: str, sources: Iterable[Mapping[str, str]]) -> None:
    """Note the error that ended a query, for the dead letter of the entry that caused it. sources: options of each."""
    if not may_be_caused_by_entry(text):
        return
    offsets = {(offset["group"], offset["consumer"]): offset for offset in offsets_in(text)}  # the last is the newest
    for options in sources:
        try:
            source = SourceOptions.parse(options)
            offset = offsets.get((source.group, source.consumer))
            if source.max_deliveries is not None and offset is not None:
                with connect(source.address.without_starting()) as server:
                    note_failure(server, Offset.from_json(offset), failure_of(text))
        except RStreamError as error:  # another format, or a server that is away
            _log.info("the error that ended the query is not noted for a dead letter: %s", error)


def _insufficient(text: str) -> QueryFailure | None:
    for pattern, error, message in _INSUFFICIENT:
        match = pattern.search(text)
        if match is not None:
            # With Spark's fault handler, the text has the stack of the crash, the innermost call first.
            frames = _frames(text[match.start() :]) if "Fatal Python error" in text else []
            frame = f" in {frames[0]}" if frames else ""
            return QueryFailure(error, message.format(streams=_streams_of_batch(text), frame=frame))
    return None


def _streams_of_batch(text: str) -> str:
    """Return the streams of the newest batch that the text has, such as ` of stream 'orders' and 2 more`."""
    streams = [*{**next(reversed([offset.get("batch") or {} for offset in offsets_in(text)]), {})}]
    more = f" and {len(streams) - 1:,} more" if len(streams) > 1 else ""
    return f" of stream {streams[0]!r}{more}" if streams else ""


def _python(text: str) -> QueryFailure | None:
    first = text.find(_TRACEBACK)
    if first < 0:
        return None
    section = _before_stack(text[first:])
    # The last traceback is the final error. Those before it are its causes.
    section = section[section.rfind(_TRACEBACK) :]
    lines = section.split("\n")[1:]
    index = next((index for index, line in enumerate(lines) if line and not line[0].isspace()), None)
    error = None if index is None else _ERROR.match("\n".join(lines[index:]).strip())
    if error is None:
        return None
    frames = _frames("\n".join(lines[:index]))
    return QueryFailure(error[1], f"{(error[2] or '').strip()}{f' ({frames[-1]})' if frames else ''}".strip())


def _frames(text: str) -> list[str]:
    """Return the frames of a stack that are in the user's own files, such as `jobs/pay.py:41 in price`."""
    folder = os.path.join(os.getcwd(), "")
    return [
        f"{frame[1].removeprefix(folder)}:{frame[2]} in {frame[3]}"
        for frame in _FRAME.finditer(text)
        if not _NOT_THE_USERS.search(frame[1])
    ]


def _java(text: str) -> QueryFailure:
    if details := _CONNECT_DETAILS.search(text):
        return QueryFailure("Spark Connect", details[1])
    parts = [_BEFORE_ERROR.sub("", part) for part in re.split(r"(?:^|\n)[ \t]*Caused by: ", text)]
    matches = [_JAVA_ERROR.match(_before_stack(part).strip()) for part in parts]
    errors = [QueryFailure(match[1], (match[2] or "").strip()) for match in matches if match is not None]
    of_spark = [error for error in errors if _condition(error) and _condition(error) not in _WRAPPERS]
    others = [error for error in errors if error.message and not error.message.startswith(_OF_JOBS)]
    causes = of_spark[:1] or others or errors
    return causes[-1] if causes else QueryFailure("", _before_stack(parts[0]).strip())


def _condition(error: QueryFailure) -> str | None:
    condition = _CONDITION_OF_SPARK.match(error.message)
    return None if condition is None else condition[1]


def _before_stack(text: str) -> str:
    stack = _STACK.search(text)
    return text[: stack.start()] if stack else text


# -- an error as one line, and as an RStreamError ----------------------------------------------------------------------

# A module that is missing in a Python that Spark has started.
_MISSING_MODULE = re.compile(r"^ModuleNotFoundError: No module named '(spark_streams|pyarrow|numpy|redis|hiredis)[.']")
_INSTALL_REMEDY = (
    "; the Python of Spark's workers (PYSPARK_PYTHON, on each machine) lacks it: install it there, or pass it "
    "with --archives (the package alone: --py-files)"
)
_MAX_LENGTH = 500  # characters of a text of Spark or Python


def one_line(error: BaseException) -> str:
    """Return the error as one line: the line of an RStreamError at any depth, else the cause."""
    text = str(error)
    if ours := find_in_text(text):
        return ours
    failure = failure_of(text)
    message = " ".join(failure.message.partition(";\n")[0].split())  # Spark's plan follows
    line = f"{failure.error or type(error).__name__}: {message or 'no message'}"[:_MAX_LENGTH]
    return f"{line}{_INSTALL_REMEDY if _MISSING_MODULE.search(line) else ''}"


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text."""
    return next(iter(str(error).strip().splitlines()), "no message")


def to_rstream_error(error: BaseException) -> RStreamError:
    """Return the RStreamError at any depth of this error, with its class and message, else a QueryError."""
    if isinstance(error, RStreamError):
        return error
    line = one_line(error)
    condition = re.match(r"\[(\w+)\] ", line)
    kinds = [RStreamError]
    for kind in kinds:  # it grows
        kinds += kind.__subclasses__()
        if condition and kind.condition == condition[1]:
            return kind(line[condition.end() :])
    return QueryError(line)
