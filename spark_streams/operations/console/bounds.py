"""Bounds of everything that a request may ask for. Pure.

A parameter without a line in PARAMETERS does not reach a page: `parameters.py` leaves it out.
"""

from __future__ import annotations

from typing import NamedTuple

# A connection.
CONNECTIONS = 200  # at once
REQUEST_SECONDS = 20.0  # for a whole request from its first byte to its last
RESPONSE_SECONDS = 60.0  # for which a browser may leave a page unread
HEAD_BYTES = 32 << 10  # of a request's first line and headers
EVENTS = 150  # streams of events at once: each page that is open has one, and each takes a connection

# A form.
FORM_BYTES = 1 << 20
FIELDS = 2_000  # of a form or an address, with those that are within a field

# Work.
DRY_RUNS = 2  # at once; the page Doctor is one
CHANGES = 4  # at once
COMMAND_BYTES = 96 << 10  # of all words: Linux takes 128 kB in one, and a form with the command ten times as much

NAME_BYTES = 1_024  # of the name of a stream, a group or a consumer
LONG_TEXT = 5_000  # characters of a text that a command prints
USER_CHARACTERS = 320  # of a user whom a proxy names: an e-mail address, or a subject with its issuer
EDITABLE = 20_000  # characters of a value that a form can change
EDITABLE_FIELDS = 500  # of an entry
NEW_FIELDS = 20  # of an entry, in a form
EDITABLE_BYTES = 768 << 10  # of all values that one form can change, as a browser encodes them
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
    "stream": Bound(NAME_BYTES, 20),  # of a group, or a filter of dead letters
    "group": _NAME,
    "find": Bound(_TEXT),
    "own": Bound(_SHORT),
    "page": Bound(_SHORT),
    "at": Bound(_SHORT),
    "after": Bound(_SHORT),
    "value": Bound(_TEXT),
    "where": Bound(_TEXT),
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
    "again": Bound(_SHORT),
    "from": _NAME,
    "to": _NAME,
    "consumer": _NAME,
    "idle": Bound(_SHORT),
    "limit": Bound(_SHORT),
    "rate": Bound(_SHORT),
    "max-redrives": Bound(_SHORT),
    "allow": Bound(NAME_BYTES, 20),
    "parking": _NAME,
    "set": Bound(COMMAND_BYTES, EDITABLE_FIELDS),
    "unset": Bound(COMMAND_BYTES, EDITABLE_FIELDS),
    "all": Bound(_SHORT),
    "even-active": Bound(_SHORT),
    "released": Bound(_SHORT),
    # Fields of an entry.
    "new.name": Bound(_TEXT, NEW_FIELDS),
    "new.value": Bound(_VALUE, NEW_FIELDS),
    "value.": Bound(_VALUE),
    "remove.": Bound(_SHORT),
    # The change that a dry run has shown.
    "arguments": Bound(6 * COMMAND_BYTES),
    "token": Bound(_TEXT),  # also of the link
}


def is_known(parameter: str) -> bool:
    """Whether a page has this parameter."""
    return _plain(parameter) in PARAMETERS


def bound_of(parameter: str) -> Bound:
    """Return the bound of a parameter. Raises KeyError if it has none."""
    return PARAMETERS[_plain(parameter)]


def _plain(parameter: str) -> str:
    return parameter.rstrip("0123456789") if parameter.startswith(("value.", "remove.")) else parameter
