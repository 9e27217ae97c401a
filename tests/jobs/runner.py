"""Runs jobs one after the other in one Spark: `spark-submit runner.py FILE FOLDER`.

FILE holds a JSON list of command lines, each the job's name and its arguments, or `new session`; what each ended with
goes to FOLDER/<number>.ended.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

from pyspark.sql import SparkSession

JOBS = Path(__file__).resolve().parents[2] / "jobs"
plan, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
for number, (job, *arguments) in enumerate(plan):
    code: object = 0
    sys.argv = [f"{job}.py", *arguments]
    try:
        if job == "new session":
            SparkSession.active().stop()
        else:
            runpy.run_path(str(JOBS / f"{job}.py"), run_name="__main__")
    except SystemExit as left:
        code = left.code or 0
    (folder / f"{number}.ended").write_text(str(code))
