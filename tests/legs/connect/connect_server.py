"""A Spark Connect server of one's own: started on a free port, killed, started again on the same one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import pyspark

from tests.connector.spark.conftest import JAVA_OPTIONS
from tools.servers.server import free_port
from tools.waiting import until

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 120.0  # seconds


class ConnectServer:
    """`start-connect-server.sh` without the shell around it. home: a folder for its log and its tables."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"sc://127.0.0.1:{self.port}"
        self._session: SparkSession | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ConnectServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._session is not None:
            self._session.stop()
        self.kill()

    @property
    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")

    def session(self) -> SparkSession:
        """The one of this process. A server that was started again has forgotten it, and gets another one."""
        from pyspark.sql.connect.session import SparkSession

        if self._session is None:
            self._session = SparkSession.builder.remote(self.url).create()
        return self._session

    def start(self) -> None:
        settings = {
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            # An idle query asks its source every 10 ms otherwise, which others on the machine pay for.
            "spark.sql.streaming.pollingDelay": "100ms",
            "spark.sql.warehouse.dir": str(self.home / "warehouse"),
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        }
        words = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
        words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        for name, value in settings.items():
            words += ["--conf", f"{name}={value}"]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        ours = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path}
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_CONNECT_MODE_ENABLED"}
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*words, "spark-internal"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**environment, **ours}, cwd=self.home, start_new_session=True,
            )  # fmt: skip
        self._wait()

    def _wait(self) -> None:
        process = self._process
        assert process is not None

        def listens() -> bool:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return True
            return False

        until(
            listens, "the server does not listen", PATIENCE, alive=lambda: process.poll() is None, log=lambda: self.log
        )

    def kill(self) -> None:
        """The JVM and the Python processes that it has started, all at once, as when a machine goes down."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = self._session = None
