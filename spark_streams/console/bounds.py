"""Bounds of everything that a request may ask for. Pure.

A parameter without a line in PARAMETERS does not reach a page: `parameters.py` leaves it out.
"""

from __future__ import annotations

from typing import NamedTuple

# A connection.
CONNECTIONS = 200  # at once
REQUEST_SECONDS = 20.0  # for the TLS handshake, and for a whole request from its first byte to its last
RESPONSE_SECONDS = 60.0  # for which a browser may leave a page unread
HEAD_BYTES = 32 << 10  # of a request's first line and headers

# A form.
FORM_BYTES = 2 << 20
LOGIN_BYTES = 16 << 10
FIELDS = 2_000  # of a form or an address, with those that are within a field

# Work.
DRY_RUNS = 2  # at once; the page Doctor is one
CHANGES = 4  # at once
WORD_BYTES = 96 << 10  # of a word of a command
COMMAND_BYTES = 512 << 10  # of all words: systems differ, Linux takes 2 MB with the environment

NAME_BYTES = 1_024  # of the name of a stream, a group or a consumer
USER_CHARACTERS = 100
EDITABLE = 20_000  # characters of a value that a form can change
EDITABLE_FIELDS = 500  # of a dead letter
EDITABLE_BYTES = 512 << 10  # of all values that one form can change; encoded they are at most three times as long
_SHORT, _TEXT = 64, 2_048
_VALUE = 4 * EDITABLE  # UTF-8


class Bound(NamedTuple):
    """size: bytes of a value; times: how often the parameter may occur."""

    size: int
    times: int = 1


_NAME = Bound(NAME_BYTES)
_PATTERNS = Bound(_TEXT, 20)
# The parameters of all pages and forms. A name that ends with a dot is followed by a number.
PARAMETERS = {
    # What a page shows.
    "name": _NAME,
    "stream": _PATTERNS,  # of a group, or a filter of dead letters
    "group": _NAME,
    "find": Bound(_TEXT),
    "own": Bound(_SHORT),
    "page": Bound(_SHORT),
    "at": Bound(_SHORT),
    "after": Bound(_SHORT),
    "value": Bound(_TEXT),
    # A filter of dead letters.
    "reason": _PATTERNS,
    "stage": _PATTERNS,
    "error": _PATTERNS,
    "field": _PATTERNS,
    "older": Bound(_SHORT),
    "newer": Bound(_SHORT),
    "first-id": Bound(_SHORT),
    "last-id": Bound(_SHORT),
    "id": Bound(_SHORT, 100),
    # A change.
    "action": Bound(_SHORT),
    "names": Bound(NAME_BYTES, 20),
    "back": Bound(8 << 10),
    "letter": Bound(_SHORT),
    "from": _NAME,
    "to": _NAME,
    "consumer": _NAME,
    "idle": Bound(_SHORT),
    "limit": Bound(_SHORT),
    "rate": Bound(_SHORT),
    "max-redrives": Bound(_SHORT),
    "allow": Bound(NAME_BYTES, 20),
    "parking": _NAME,
    "set": Bound(WORD_BYTES, EDITABLE_FIELDS),
    "unset": Bound(WORD_BYTES, EDITABLE_FIELDS),
    "all": Bound(_SHORT),
    "even-active": Bound(_SHORT),
    "released": Bound(_SHORT),
    # Fields of a dead letter.
    "new.name": Bound(_TEXT),
    "new.value": Bound(_VALUE),
    "value.": Bound(_VALUE),
    "remove.": Bound(_SHORT),
    # The change that a dry run has shown.
    "arguments": Bound(2 * COMMAND_BYTES),
    "token": Bound(_TEXT),
    # Log in.
    "user": Bound(4 * USER_CHARACTERS),
    "password": Bound(_TEXT),
}


def bound_of(parameter: str) -> Bound | None:
    """Return the bound of a parameter; None if no page has it."""
    return PARAMETERS.get(parameter) or PARAMETERS.get(parameter.rstrip("0123456789"))
