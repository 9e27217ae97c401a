"""Check options before Spark asks for a reader or a writer.

Spark creates a data source from the options alone. It does so at `load()` for a DataFrame without a declared schema,
else when the query starts (docs/internals/facts.md, S31). A table of Spark's catalog is recognized by options (S32).
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_streams.connector.errors import InvalidOptionError, UnknownOptionError, UnsupportedError
from spark_streams.connector.options.access_options import is_sparks_own
from spark_streams.connector.options.migration import hint_of_other_connector
from spark_streams.connector.options.names import linked, named, near
from spark_streams.connector.options.option import Option, documented
from spark_streams.connector.options.table import BATCH_SOURCE, SINK, SOURCE

_SIDES: tuple[tuple[str, tuple[Option, ...]], ...] = (("source", (*SOURCE, *BATCH_SOURCE)), ("sink", SINK))
_TABLES = (
    "Spark keeps the OPTIONS of a table in its catalog from a Python source: CREATE TEMPORARY VIEW v USING rstream "
    "OPTIONS (…) instead, or SELECT … FROM t WITH (url '…', streams '…') and INSERT INTO t WITH (…)"
)


def check_before_use(options: Mapping[str, str]) -> None:
    """Check names and values of options for any reader or writer.

    Raises UnknownOptionError for a name that no reader or writer has, InvalidOptionError for a value that none accepts,
    and UnsupportedError for a catalog table that is being created.
    """
    with linked(option for _, table in _SIDES for option in table):
        _check_each(options)


def _check_each(options: Mapping[str, str]) -> None:
    for name, text in options.items():
        if is_sparks_own(name):
            continue
        if name == "provider" or name.startswith("option."):
            raise UnsupportedError(f"CREATE TABLE … USING rstream loses its options: {_TABLES}")
        uses = [(option, side) for side, table in _SIDES for option in named(name, table)]
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


def require_options(options: Mapping[str, str], required: str) -> None:
    """Raise InvalidOptionError if no option is set, as for a table of Spark's catalog.

    required: the instruction of the message, which names the options to set.
    """
    if not any(not is_sparks_own(name) for name in options):
        raise InvalidOptionError(f"no option is set: {required}. For a table of Spark's catalog: {_TABLES}")


def _no_such_option(name: str) -> UnknownOptionError:
    if name.lower() in ("path", "paths"):
        return UnknownOptionError(
            "load(…), save(…) and start(…) take no path with format('rstream'): set option streams to read, or "
            "option stream to write"
        )
    if hint := hint_of_other_connector(name):
        return UnknownOptionError(f"format rstream has no option {name!r}; {hint}")
    options = [option for _, table in _SIDES for option in table]
    other_name = near(name, options)
    names = ", ".join(dict.fromkeys(option.name for option in documented(options)))
    hint = f"did you mean {other_name!r}?" if other_name else f"valid options: {names}"
    return UnknownOptionError(f"format rstream has no option {name!r}; {hint}")
