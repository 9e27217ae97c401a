"""What travels to executors as a pickle says which version has made it, before anything else of it is read.

A pickle names modules, classes and fields, and those of another version are others: an executor whose spark-streams is
not the driver's would fail with an AttributeError somewhere, or not fail. Only the reader and the writer of a query
carry it, and all else that a task gets comes behind these.
"""

from __future__ import annotations

import pickle
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark import cloudpickle

from spark_streams._version import __version__
from spark_streams.errors import VersionError


class SameVersion:
    """A class whose pickles are read by the version that has made them, and by no other."""

    def __reduce__(self) -> tuple[Callable[[str, bytes], object], tuple[str, bytes]]:
        made = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]  # pyspark has no types there
        return read, (__version__, made)


def read(version: str, pickled: bytes) -> object:
    """The object. Raises VersionError."""
    if version != __version__:
        raise VersionError(
            f"the driver has spark-streams {version}, and {sys.executable} on {socket.gethostname()}, which is to run "
            f"its task, has {__version__} at {Path(__file__).parents[1]}: install the driver's version there, or send "
            "it along with --py-files"
        )
    kind, state = pickle.loads(pickled)
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made
