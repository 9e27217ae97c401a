"""Options whose server is waited for no longer than a test or a story takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from spark_streams.connector.options.access_options import AccessOptions
from spark_streams.connector.wire.address import Patience

_Options = TypeVar("_Options", bound=AccessOptions)


def with_patience(options: _Options, patience: Patience) -> _Options:
    """Return these options with other time limits for the server."""
    return replace(options, url=replace(options.url, patience=patience))
