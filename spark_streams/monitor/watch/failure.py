"""The class and message of a query's error, parsed from Spark's long text. Pure."""

from __future__ import annotations

import re

from spark_streams.source.recovery.poison_record import Failure

_TRACEBACK = "Traceback (most recent call last):"
# Text after a message: Java's stack, Spark's closing lines.
_STACK = re.compile(r"\n\s*at [\w.$/<>]+\(|\n\s*\.\.\. \d+ more|\n ?SQLSTATE: |\n=== Streaming Query ===")
_ERROR = re.compile(r"^([A-Za-z_][\w.$]*)(?:: ?(.*))?$", re.DOTALL)
_CONDITION = re.compile(r"\[(RSTREAM_[A-Z_]+)\]")
# Our errors that an entry can cause; the others are caused by the server, an option or the checkpoint.
_ENTRYS = frozenset({"RSTREAM_SCHEMA", "RSTREAM_DECODE", "RSTREAM_ENTRY_ID"})


def failure_of(text: str) -> Failure:
    """Return the last line of the Python traceback, or else the first Java exception that is not a wrapper."""
    return _python(text) or _java(text)


def may_be_caused_by_entry(text: str) -> bool:
    """Whether an entry can be the cause of the error."""
    condition = _CONDITION.search(text)
    return condition is None or condition[1] in _ENTRYS


def _python(text: str) -> Failure | None:
    first = text.find(_TRACEBACK)
    if first < 0:
        return None
    section = _before_stack(text[first:])
    # The last traceback is the final error. Those before it are its causes.
    lines = section[section.rfind(_TRACEBACK) :].split("\n")[1:]
    index = next((index for index, line in enumerate(lines) if line and not line[0].isspace()), None)
    error = None if index is None else _ERROR.match("\n".join(lines[index:]).strip())
    return None if error is None else Failure(error[1], (error[2] or "").strip())


def _java(text: str) -> Failure:
    parts = re.split(r"(?:^|\n)\s*Caused by: ", text)
    matches = [_ERROR.match(_before_stack(part).strip()) for part in parts]
    errors = [Failure(match[1], (match[2] or "").strip()) for match in matches if match is not None]
    root_errors = [error for error in errors if error.message and not error.message.startswith("Job aborted")]
    if root_errors or errors:
        return (root_errors or errors)[0]
    return Failure("", _before_stack(text).strip())


def _before_stack(text: str) -> str:
    stack = _STACK.search(text)
    return text[: stack.start()] if stack else text
