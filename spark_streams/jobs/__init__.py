"""The jobs: their programs, and the parts of which these are composed.

programs/ is the folder jobs/ of the repository: a program for each job, which `rstream run` and spark-submit run. They
import the names below. If this Python lacks pyspark or another package that jobs need, the first of these names ends
the process with one line. templates/ has a configuration of each job, conf/ the default settings of Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_streams.jobs.command import Program
    from spark_streams.jobs.job import Job
    from spark_streams.jobs.parts.archive import Archive
    from spark_streams.jobs.parts.archived_group import ArchivedGroup
    from spark_streams.jobs.parts.dead_letters import DeadLetters
    from spark_streams.jobs.parts.files import Files
    from spark_streams.jobs.parts.groups import Groups
    from spark_streams.jobs.parts.letters import Letters
    from spark_streams.jobs.parts.load import Load
    from spark_streams.jobs.parts.outputs import Outputs
    from spark_streams.jobs.parts.query import Query
    from spark_streams.jobs.parts.redrive import Redrive
    from spark_streams.jobs.parts.rules import Judged, Rules
    from spark_streams.jobs.parts.sink import Sink
    from spark_streams.jobs.parts.source import Source
    from spark_streams.jobs.parts.trim import Trim

_MODULES = {
    "Archive": "parts.archive",
    "ArchivedGroup": "parts.archived_group",
    "DeadLetters": "parts.dead_letters",
    "Files": "parts.files",
    "Groups": "parts.groups",
    "Job": "job",
    "Judged": "parts.rules",
    "Letters": "parts.letters",
    "Load": "parts.load",
    "Outputs": "parts.outputs",
    "Program": "command",
    "Query": "parts.query",
    "Redrive": "parts.redrive",
    "Rules": "parts.rules",
    "Sink": "parts.sink",
    "Source": "parts.source",
    "Trim": "parts.trim",
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
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spark_streams.jobs.start import find_packages

    find_packages()
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
