"""Runs jobs, one for each line of its input: `[job, configuration]` as JSON.

It answers each with a line: the error that ended the job, or "" if none did.
"""

from __future__ import annotations

import json
import sys
import tomllib

from rich.console import Console

from spark_streams.connector.watch.failure import one_line
from spark_streams.jobs.command import program
from spark_streams.jobs.job import Job

for line in sys.stdin:
    name, text = json.loads(line)
    try:
        program(name).body(Job(name, tomllib.loads(text), Console(quiet=True)))
        error = ""
    except Exception as raised:  # noqa: BLE001 - each of them is the answer
        error = one_line(raised) or type(raised).__name__
    print(f"answer {json.dumps(error)}", flush=True)
