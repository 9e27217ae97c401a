"""What is wrong with options whatever they are for, before Spark says whether it wants a reader or a writer.

Spark makes a data source from the options alone: of a DataFrame without a declared schema at `load()`, else when the
query begins (docs/internals/facts.md, S31). Tables of Spark's catalog are recognised by what they hand over (S32).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from spark_streams.errors import InvalidOptionError, UnknownOptionError, UnsupportedError
from spark_streams.options.access_options import SPARKS_OWN
from spark_streams.options.table import BATCH_SOURCE, SINK, SOURCE

_USES = [(option, "source") for option in (*SOURCE, *BATCH_SOURCE)] + [(option, "sink") for option in SINK]
_KNOWN = {option.name.lower(): option.name for option, _ in _USES}
_TABLES = (
    "Spark keeps the OPTIONS of a table in its catalog from a Python source: CREATE TEMPORARY VIEW v USING rstream "
    "OPTIONS (…) instead, or SELECT … FROM t WITH (url '…', streams '…') and INSERT INTO t WITH (…)"
)


def check_for_any_use(given: Mapping[str, str]) -> None:
    """Raises UnknownOptionError for a name that is no option of anything, InvalidOptionError for a value that nothing
    takes, UnsupportedError for a table of the catalog that is being made."""
    for name, text in given.items():
        if name.lower() in SPARKS_OWN:
            continue
        if name == "provider" or name.startswith("option."):
            raise UnsupportedError(f"CREATE TABLE … USING rstream loses its options: {_TABLES}")
        uses = [(option, side) for option, side in _USES if option.name.lower() == name.lower()]
        if not uses:
            raise _no_such_option(name)
        refusals = []
        for option, side in uses:
            try:
                option.parse(text)
            except ValueError as error:
                refusals.append(f"{side} option {option.name}={text[:200]!r} {error}")
        if len(refusals) == len(uses):
            raise InvalidOptionError(refusals[0])


def check_any_given(given: Mapping[str, str], least: str) -> None:
    """Raises InvalidOptionError where no option was given, as Spark does it with a table of its catalog. least: what a
    reader or a writer needs to be told."""
    if not any(name.lower() not in SPARKS_OWN for name in given):
        raise InvalidOptionError(f"no option was given: {least}. If this is a table: {_TABLES}")


def _no_such_option(name: str) -> UnknownOptionError:
    if name.lower() == "path":
        return UnknownOptionError(
            "load(…), save(…) and start(…) take no path with format('rstream'): option streams names what is read, "
            "option stream what is written"
        )
    near = difflib.get_close_matches(name.lower(), _KNOWN, n=1)
    hint = f"did you mean {_KNOWN[near[0]]!r}?" if near else f"it knows {', '.join(_KNOWN.values())}"
    return UnknownOptionError(f"format rstream has no option {name!r}; {hint}")
