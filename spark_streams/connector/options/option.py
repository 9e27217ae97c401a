"""One option: name, default, parser and documentation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

REQUIRED = object()


@dataclass(frozen=True)
class Option:
    """An option.

    parse: converts a text to a value, raises ValueError; default: a value, REQUIRED, or a callable; shown: the default
    in docs/reference/options.md; doc: its documentation there, empty: only our own code sets it; only: `stream` or
    `batch`, if one of the two readers has it; deprecated: names that it had before, which still work and log a warning
    (options.names).
    """

    name: str
    parse: Callable[[str], object]
    default: object
    shown: str
    doc: str
    only: str = ""
    deprecated: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a user may write."""
        return self.name, *self.deprecated

    @property
    def field(self) -> str:
        """Name of its field in SourceOptions, BatchSourceOptions and SinkOptions, in snake case."""
        return re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", self.name)


def documented(options: Iterable[Option]) -> list[Option]:
    """Return the options that users set."""
    return [option for option in options if option.doc]
