"""Why a query died: the error's class and message, out of the long text that Spark gives. Pure."""

from __future__ import annotations

import re

from spark_streams.source.recovery.poison_record import Failure

_TRACEBACK = "Traceback (most recent call last):"
# What stands behind a message: Java's stack, Spark's own closing lines.
_STACK = re.compile(r"\n\s*at [\w.$/<>]+\(|\n\s*\.\.\. \d+ more|\n ?SQLSTATE: |\n=== Streaming Query ===")
_ERROR = re.compile(r"^([A-Za-z_][\w.$]*)(?:: ?(.*))?$", re.DOTALL)
_CONDITION = re.compile(r"\[(RSTREAM_[A-Z_]+)\]")
# Errors of ours that an entry can be the reason of; the others are the server's, the options', the checkpoint's.
_ENTRYS = frozenset({"RSTREAM_SCHEMA", "RSTREAM_DECODE", "RSTREAM_ENTRY_ID"})


def failure_of(text: str) -> Failure:
    """The last line of the Python traceback, where there is one; else the first Java exception that is no wrapper."""
    return _python(text) or _java(text)


def is_an_entrys(text: str) -> bool:
    """Whether an entry can have been the reason."""
    found = _CONDITION.search(text)
    return found is None or found[1] in _ENTRYS


def _python(text: str) -> Failure | None:
    first = text.find(_TRACEBACK)
    if first < 0:
        return None
    section = _before_stack(text[first:])
    # The last traceback is the error that came out: those before it are what it was raised from.
    lines = section[section.rfind(_TRACEBACK) :].split("\n")[1:]
    at = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), None)
    found = None if at is None else _ERROR.match("\n".join(lines[at:]).strip())
    return None if found is None else Failure(found[1], (found[2] or "").strip())


def _java(text: str) -> Failure:
    parts = re.split(r"(?:^|\n)\s*Caused by: ", text)
    found = [_ERROR.match(_before_stack(part).strip()) for part in parts]
    errors = [Failure(one[1], (one[2] or "").strip()) for one in found if one is not None]
    plain = [one for one in errors if one.message and not one.message.startswith("Job aborted")]
    if plain or errors:
        return (plain or errors)[0]
    return Failure("", _before_stack(text).strip())


def _before_stack(text: str) -> str:
    found = _STACK.search(text)
    return text[: found.start()] if found else text
