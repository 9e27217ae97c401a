"""The jobs: their programs, and the parts of which these are composed.

programs/ is the folder jobs/ of the repository: a program for each job, which `rstream run` and spark-submit run. They
import the names below. If this Python lacks pyspark or another package that jobs need, the first of these names ends
the process with one line. conf/ is that of the repository: a configuration of each job, the default settings of Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_streams.jobs.command import Program
    from spark_streams.jobs.job import Job
    from spark_streams.jobs.parts.aggregation import Groups
    from spark_streams.jobs.parts.archiving import Archive, ArchivedGroup, Trim
    from spark_streams.jobs.parts.loading import Files, Load
    from spark_streams.jobs.parts.outputs import Outputs
    from spark_streams.jobs.parts.query import Query
    from spark_streams.jobs.parts.redriving import Letters, Redrive
    from spark_streams.jobs.parts.rules import DeadLetters, Judged, Rules
    from spark_streams.jobs.parts.source_and_sink import Sink, Source

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
__all__ = [
    "Archive",
    "ArchivedGroup",
    "DeadLetters",
    "Files",
    "Groups",
    "Job",
    "Judged",
    "Letters",
    "Load",
    "Outputs",
    "Program",
    "Query",
    "Redrive",
    "Rules",
    "Sink",
    "Source",
    "Trim",
]


def __getattr__(name: str) -> object:
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spark_streams.jobs.start import find_packages

    find_packages()
    return getattr(import_module(f"{__name__}.{module}"), name)
