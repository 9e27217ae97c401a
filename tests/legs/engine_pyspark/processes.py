"""Starts the processes of the engine as forks of this one, which has imported PySpark: a start takes milliseconds.

A request is a line of JSON on stdin: `{"module": name, "environment": …}` starts a module as a program, and the answer
is its process ID; `{"task": arguments, "log": file}` runs a task (task.py), and the answer is its exit code.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import _engine_pyspark.sql.streaming.python_streaming_source_runner
import _engine_pyspark.sql.worker.create_data_source
import _engine_pyspark.sql.worker.plan_data_source_read
import _engine_pyspark.sql.worker.python_streaming_sink_runner
import _engine_pyspark.sql.worker.write_into_data_source
import _engine_pyspark.taskcontext  # noqa: F401

# After the engine, as in its own processes: they take its classes.
import spark_streams.connector.datasource
import spark_streams.connector.sink.writers
import spark_streams.connector.source.batch_reader
import spark_streams.connector.source.history_reader
import spark_streams.connector.spark.data_source  # noqa: F401
from tests.legs.engine_pyspark.task import main as run_task

OK, FAILED = 0, 1


def child(request: dict[str, Any]) -> int:
    """What a process does. Return its exit code."""
    if "task" in request:
        try:
            run_task(*request["task"])
        except Exception:  # noqa: BLE001 # the test raises it
            Path(request["log"]).write_text(traceback.format_exc())
            return FAILED
        return OK
    os.environ.update(request["environment"])
    sys.modules.pop(request["module"])
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    return OK


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        process = os.fork()
        if not process:
            code = FAILED
            try:
                code = child(request)
            finally:
                os._exit(code)
        answer = process
        if "task" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        print(answer, flush=True)
        while True:  # processes that have ended
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break


if __name__ == "__main__":
    main()
