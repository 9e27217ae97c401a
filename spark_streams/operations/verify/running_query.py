"""A driver that runs the query of a run."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from spark_streams.operations.verify.driver import Driver
from spark_streams.operations.verify.plan import Plan

_LOCAL = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_LOCAL["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # it starts often
_LAUNCHER = "import pathlib, sys, spark_streams.operations.verify.program as p; p.main(pathlib.Path(sys.argv[1]))\n"


class RunningQuery(Driver):
    """The driver. environment: by which it reaches the server; drains: it reads everything and ends."""

    def __init__(self, plan: Plan, folder: Path, environment: Mapping[str, str], drains: bool = False) -> None:
        self._folder = folder
        for name in ("up", "error"):
            (folder / name).unlink(missing_ok=True)
        source = plan.source() | ({"maxEntriesPerTrigger": "10000"} if drains else {})  # much may be left
        told = {"parent": os.getpid(), "drains": drains, "source": source, "sink": plan.sink()}
        conf = {"spark.app.name": "rstream verify", **({} if plan.spark_submit else _LOCAL)}
        (folder / "plan.json").write_text(json.dumps({**told, "conf": conf}))
        (folder / "query.py").write_text(_LAUNCHER)
        command = [*(shlex.split(plan.spark_submit) or [sys.executable]), str(folder / "query.py"), str(folder)]
        environment = {"PYSPARK_PYTHON": sys.executable, **os.environ, **environment}
        super().__init__(command, folder, environment, folder / "log.txt")

    @property
    def is_up(self) -> bool:
        """Whether the query has started."""
        return (self._folder / "up").exists()

    def end(self) -> str | None:
        """Return the error that ended the query, "" if there was none, or None while it runs."""
        if not self.process.poll():
            return None if self.process.returncode is None else ""
        error = self._folder / "error"
        return error.read_text() if error.exists() else f"no error, but this log: {' '.join(self.log().split())[-700:]}"

    def wait(self, seconds: float, condition: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the condition is true, the query has ended, or the time is over. Return the condition."""
        deadline = time.monotonic() + seconds
        while not condition() and self.end() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return condition()
