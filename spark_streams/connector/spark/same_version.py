"""Pickles for executors that begin with the version of spark-streams, which is checked before the rest is read.

A pickle names modules, classes and fields, which differ between versions. An executor with another version would fail
with an AttributeError, or not fail at all. Only the reader and the writer of a query carry the version: a task reads
them first.
"""

from __future__ import annotations

import pickle
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark import cloudpickle

from spark_streams.base.version import __version__
from spark_streams.connector.errors import VersionError


class SameVersion:
    """Base of classes whose pickles only the same version of spark-streams can read."""

    def __reduce__(self) -> tuple[Callable[[str, bytes], object], tuple[str, bytes]]:
        pickled = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]  # pyspark has no types there
        return read, (__version__, pickled)


def read(version: str, pickled: bytes) -> object:
    """Unpickle an object. Raises VersionError if another version has pickled it."""
    if version != __version__:
        raise VersionError(
            f"a task cannot run on {socket.gethostname()}: it has spark-streams {__version__}, and the driver has "
            f"{version}. The task's version is in {Path(__file__).parents[2]}, its Python is {sys.executable}. Install "
            "the driver's version there, or pass it with --py-files (rstream help spark-clusters)"
        )
    kind, state = pickle.loads(pickled)
    instance = kind.__new__(kind)
    instance.__dict__.update(state)
    return instance
