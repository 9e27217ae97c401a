"""Housekeeping of a table between batches: its rows are written, so none of its errors may end the job."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from spark_streams.connector.running.error_summary import one_line

_log = logging.getLogger("spark_streams.jobs")


@contextlib.contextmanager
def no_error_ends_the_job(what: str, consequence: str) -> Iterator[None]:
    """Log an error of the block as a warning. what: the housekeeping; consequence: what the error leaves undone."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - each store has errors of its own
        _log.warning("%s failed; no row is lost, and %s: %s", what, consequence, one_line(error))
    except BaseException as error:
        # A panic of a library in Rust is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        _log.warning("%s failed; no row is lost, and %s: %s", what, consequence, one_line(error))
