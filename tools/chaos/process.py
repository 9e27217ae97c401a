"""A Spark job as a process that can be killed: the Python driver, its JVM and all processes below them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyspark

from spark_streams.operations.verify.running_query import PATIENCE, Driver
from tools.chaos.query import Query

ROOT = Path(__file__).resolve().parents[2]


class Job(Driver):
    """Queries in a separate Spark. As a context manager it leaves no process behind."""

    def __init__(
        self,
        folder: Path,
        queries: Sequence[Query],
        master: str = "local[4]",
        conf: dict[str, str] | None = None,
        in_turn: bool = False,
        second_host: str | None = None,
        program: str = "tools.chaos.job",
        more: Mapping[str, object] | None = None,
    ) -> None:
        """Start the job. program: module to run; more: additional fields of its plan."""
        self.queries = list(queries)
        folder.mkdir(parents=True, exist_ok=True)
        plan: dict[str, object] = {"master": master, "conf": conf or {}, "in_turn": in_turn, "second_host": second_host}
        plan |= more or {}
        number = len(list(folder.glob("plan-*.json")))
        (folder / f"plan-{number}.json").write_text(
            json.dumps({**plan, "queries": [query.to_json() for query in queries]})
        )
        for query in queries:
            for sign in ("up", "held", "ended", "stop", "go"):
                query.sign(sign).unlink(missing_ok=True)
        environment = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "SPARK_CONF_DIR")}
        environment |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        if master.startswith("local-cluster"):
            environment["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
        command = [sys.executable, "-m", program, str(folder / f"plan-{number}.json")]
        super().__init__(command, folder, environment, folder / f"log-{number}.txt")

    def wait_for(self, condition: Callable[[], bool], awaited: str, may_fail: Sequence[Query] = ()) -> None:
        """Wait until the condition is true. Raises JobFailed if the job or one of its queries ends before."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            for query in self.queries:
                if query.ended() and query not in may_fail:
                    raise JobFailed(f"query {query.name} ended before {awaited}: {query.ended()}")
            if self.process.poll() is not None and not condition():
                raise JobFailed(f"the job ended with {self.process.returncode} before {awaited}:\n{self.log()}")
            if time.monotonic() > deadline:
                states = {q.name: (q.logged(), q.committed(), q.held(), q.ended()) for q in self.queries}
                raise JobFailed(
                    f"waited {PATIENCE:g} s for: {awaited}; (logged, committed, held, ended): {states}\n{self.log()}"
                )
            time.sleep(0.02)

    def finish(self, may_fail: Sequence[Query] = ()) -> None:
        """Wait for all queries to end. Raises JobFailed if a query ends with an unexpected error."""
        self.wait_for(lambda: all(q.ended() is not None for q in self.queries), "the end", may_fail)
        for query in self.queries:
            if query.ended() and query not in may_fail:
                raise JobFailed(f"query {query.name}: {query.ended()}")


class JobFailed(Exception):  # noqa: N818 - shorter in a report
    """The job or one of its queries failed, or took too long."""
