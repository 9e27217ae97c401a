"""The jobs: their programs, and the parts of which these are composed.

programs/ is the folder jobs/ of the repository: a program for each job, which `rstream run` and spark-submit run. They
import the names below. If this Python lacks a package that jobs need, the first of these names ends the process with
one line. conf/ is that of the repository.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_streams.jobs.command import Program as Program
    from spark_streams.jobs.job import Job as Job
    from spark_streams.jobs.parts.aggregation import Groups as Groups
    from spark_streams.jobs.parts.archiving import Archive as Archive
    from spark_streams.jobs.parts.archiving import ArchivedGroup as ArchivedGroup
    from spark_streams.jobs.parts.archiving import Trim as Trim
    from spark_streams.jobs.parts.loading import Files as Files
    from spark_streams.jobs.parts.loading import Load as Load
    from spark_streams.jobs.parts.outputs import Outputs as Outputs
    from spark_streams.jobs.parts.query import Query as Query
    from spark_streams.jobs.parts.redriving import Letters as Letters
    from spark_streams.jobs.parts.redriving import Redrive as Redrive
    from spark_streams.jobs.parts.rules import DeadLetters as DeadLetters
    from spark_streams.jobs.parts.rules import Judged as Judged
    from spark_streams.jobs.parts.rules import Rules as Rules
    from spark_streams.jobs.parts.source_and_sink import Sink as Sink
    from spark_streams.jobs.parts.source_and_sink import Source as Source

_MODULES = {
    "command": ("Program",),
    "job": ("Job",),
    "parts.aggregation": ("Groups",),
    "parts.archiving": ("Archive", "ArchivedGroup", "Trim"),
    "parts.loading": ("Files", "Load"),
    "parts.outputs": ("Outputs",),
    "parts.query": ("Query",),
    "parts.redriving": ("Letters", "Redrive"),
    "parts.rules": ("DeadLetters", "Judged", "Rules"),
    "parts.source_and_sink": ("Sink", "Source"),
}
__all__ = [name for names in _MODULES.values() for name in names]


def __getattr__(name: str) -> object:
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spark_streams.jobs.start import find_packages

    find_packages()
    return getattr(import_module(f"{__name__}.{module}"), name)
