"""The engine of a platform without its JVM: it starts the worker processes of `_engine_pyspark`, and speaks to them
over a socket as PySpark 4.2's JVM does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from spark_streams.connector.datasource import RStreamDataSource
from tests.legs.engine_pyspark.copy_of_pyspark import NAME

ROOT = Path(__file__).resolve().parents[3]
END_OF_STREAM, PYTHON_EXCEPTION = -4, -2
# Functions of the runner of streaming sources.
INITIAL_OFFSET, PARTITIONS, COMMIT, SUPPORTED, PREPARE, LATEST_OFFSET, DEFAULT_LIMIT, REPORT = (
    884, 886, 887, 888, 889, 890, 891, 892,
)  # fmt: skip
ADMISSION_CONTROL, AVAILABLE_NOW = 1, 2
_BINARY = json.dumps(
    {"type": "struct", "fields": [{"name": "part", "type": "binary", "nullable": True, "metadata": {}}]}
)


class EngineError(Exception):
    """A worker has raised an error: its traceback."""


class Worker:
    """A worker process and the socket to it."""

    def __init__(self, process: int, connection: socket.socket) -> None:
        self.process = process
        self._connection = connection
        self.stream = connection.makefile("rwb")
        self.read_int()  # its process ID

    def write_int(self, *values: int) -> None:
        for value in values:
            self.stream.write(struct.pack("!i", value))

    def write_long(self, value: int) -> None:
        self.stream.write(struct.pack("!q", value))

    def write_bool(self, *values: bool) -> None:
        for value in values:
            self.stream.write(struct.pack("!?", value))

    def write(self, *values: bytes | str) -> None:
        for value in values:
            data = value.encode() if isinstance(value, str) else value
            self.write_int(len(data))
            self.stream.write(data)

    def read_int(self) -> int:
        self.stream.flush()
        data = self.stream.read(4)
        if len(data) < 4:
            raise EngineError("the worker has ended")
        number: int = struct.unpack("!i", data)[0]
        return number

    def read(self) -> bytes:
        length = self.read_int()
        if length == PYTHON_EXCEPTION:
            raise EngineError(self.stream.read(self.read_int()).decode())
        return self.stream.read(length)

    def read_status(self) -> int:
        """Return a number that is no length; a worker that fails sends its error in its place."""
        status = self.read_int()
        if status == PYTHON_EXCEPTION:
            raise EngineError(self.stream.read(self.read_int()).decode())
        return status

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class Processes:
    """Starts worker processes (processes.py). copy: folder of the copy of PySpark."""

    def __init__(self, copy: Path) -> None:
        path = os.pathsep.join([str(copy), str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.legs.engine_pyspark.processes"],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def request(self, **fields: object) -> int:
        """Send a request and return the answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(fields).encode() + b"\n")
        stdin.flush()
        return int(stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Engine:
    """Drives a source and a sink."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes = processes
        self._folder = folder
        self.tasks = 0

    @contextlib.contextmanager
    def worker(self, module: str, has_conf: bool = True) -> Iterator[Worker]:
        """Start a worker and greet it. has_conf: it is no runner of a streaming source."""
        with tempfile.TemporaryDirectory(prefix="rstream-engine-") as folder, socket.socket(socket.AF_UNIX) as listener:
            address = f"{folder}/socket"
            listener.bind(address)
            listener.listen(1)
            environment = {"PYTHON_WORKER_FACTORY_SOCK_PATH": address}
            process = self._processes.request(module=f"{NAME}.{module}", environment=environment)
            listener.settimeout(60)
            accepted, _ = listener.accept()
            with accepted:
                worker = Worker(process, accepted)
                try:
                    worker.write(f"{sys.version_info.major}.{sys.version_info.minor}", str(self._folder))
                    worker.write_int(0)  # included files
                    if has_conf:
                        worker.write_bool(False)
                        worker.write_int(0, 0)  # broadcasts, settings
                    yield worker
                finally:
                    worker.close()

    def create(self, options: dict[str, str], schema: StructType | None = None) -> tuple[bytes, str]:
        """Return a data source, pickled, and its schema as JSON or DDL."""
        with self.worker("sql.worker.create_data_source") as worker:
            worker.write(cloudpickle.dumps(RStreamDataSource), "rstream")  # type: ignore[no-untyped-call]
            worker.write_bool(schema is not None)
            if schema is not None:
                worker.write(schema.json())
                options = {**options, "isUserSpecifiedSchema": "true"}
            worker.write_int(len(options))
            for name, value in options.items():
                worker.write(name, value)
            worker.write_int(END_OF_STREAM)
            source = worker.read()
            worker.read_status()
            columns = worker.read().decode()
            self._end(worker)
            return source, columns

    @staticmethod
    def _end(worker: Worker) -> None:
        for _accumulator in range(worker.read_status()):
            worker.read()
        assert worker.read_int() == END_OF_STREAM

    def plan(self, source: bytes, columns: str, is_streaming: bool) -> tuple[bytes, list[bytes]]:
        """Return the function of the tasks, and the partitions of a batch read."""
        with self.worker("sql.worker.plan_data_source_read") as worker:
            worker.write(source, _BINARY, columns)
            worker.write_int(10_000)  # rows of an Arrow batch
            worker.write_bool(False, is_streaming, True)  # filters are pushed, streaming, binary as bytes
            worker.write_int(END_OF_STREAM)
            function = worker.read()
            partitions = [worker.read() for _ in range(worker.read_status())]
            self._end(worker)
            return function, partitions

    def plan_write(self, options: dict[str, str], columns: str) -> bytes:
        """Return the function of the tasks that write."""
        with self.worker("sql.worker.write_into_data_source") as worker:
            worker.write(cloudpickle.dumps(RStreamDataSource), "rstream", columns, _BINARY)  # type: ignore[no-untyped-call]
            worker.write_int(len(options))
            for name, value in options.items():
                worker.write(name, value)
            worker.write_bool(False, True, True)  # overwrite, streaming, binary as bytes
            worker.write_int(END_OF_STREAM)
            function = worker.read()
            worker.read()  # the writer
            self._end(worker)
            return function

    def commit_write(self, sink: bytes, columns: str, messages: Sequence[bytes], batch: int) -> None:
        with self.worker("sql.worker.python_streaming_sink_runner") as worker:
            worker.write(sink, columns)
            worker.write_bool(False)
            worker.write_int(len(messages))
            worker.write(*messages)
            worker.write_long(batch)
            worker.write_bool(False)
            worker.write_int(END_OF_STREAM)
            assert worker.read_status() == 0
            self._end(worker)

    def run_task(self, function: bytes, rows: pa.Table, partition: int, properties: dict[str, str]) -> pa.Table | None:
        """Run one task and return what it yields."""
        self.tasks += 1
        files = [self._folder / f"{self.tasks}.{name}" for name in ("function", "input", "output")]
        files[0].write_bytes(function)
        with pa.ipc.new_stream(str(files[1]), rows.schema) as writer:
            writer.write_table(rows)
        log = self._folder / f"{self.tasks}.log"
        task = [*map(str, files), str(partition), json.dumps(properties)]
        if self._processes.request(task=task, log=str(log)):
            raise EngineError(log.read_text())
        output = files[2].read_bytes()
        return pa.ipc.open_stream(output).read_all() if output else None

    def read_partitions(
        self, function: bytes, partitions: Sequence[bytes], properties: dict[str, str]
    ) -> list[pa.Table]:
        """Return the rows of each partition."""
        found = [
            self.run_task(function, pa.table({"part": pa.array([partition], pa.binary())}), number, properties)
            for number, partition in enumerate(partitions)
        ]
        return [rows for rows in found if rows is not None]


class StreamingSource:
    """The runner of one streaming source, a process that lives as long as a run of the query."""

    def __init__(self, worker: Worker, source: bytes, columns: str) -> None:
        self._worker = worker
        worker.write(source, columns)
        worker.write_int(10_000)
        assert worker.read_status() == 0

    def kill(self) -> None:
        os.kill(self._worker.process, signal.SIGKILL)

    def _call(self, function: int, *arguments: dict[str, Any]) -> None:
        self._worker.write_int(function)
        self._worker.write(*map(json.dumps, arguments))

    def initial_offset(self) -> dict[str, Any]:
        return self._answer(INITIAL_OFFSET)

    def latest_offset(self, start: dict[str, Any], limit: dict[str, Any]) -> dict[str, Any]:
        return self._answer(LATEST_OFFSET, start, limit)

    def default_limit(self) -> dict[str, Any]:
        return self._answer(DEFAULT_LIMIT)

    def report(self) -> dict[str, Any]:
        return self._answer(REPORT)

    def _answer(self, function: int, *arguments: dict[str, Any]) -> dict[str, Any]:
        self._call(function, *arguments)
        value: dict[str, Any] = json.loads(self._worker.read())
        return value

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
        self._call(PARTITIONS, start, end)
        found = [self._worker.read() for _ in range(self._worker.read_status())]
        assert self._worker.read_status() == 0  # no records travel with them
        return found

    def status_of(self, function: int, *arguments: dict[str, Any]) -> int:
        self._call(function, *arguments)
        return self._worker.read_status()


class Query:
    """A streaming query from a source to a sink: its offset log and commit log, and one trigger, AvailableNow.

    kill_at: the number of a batch, and after which step of it the run is killed.
    """

    def __init__(self, engine: Engine, source: dict[str, str], sink: dict[str, str], schema: StructType) -> None:
        self.engine, self.source, self.sink, self.schema = engine, source, sink, schema
        self.id = str(uuid.uuid4())
        self.offsets: list[dict[str, Any]] = []
        self.committed = -1  # number of the last batch in the commit log
        self.kill_at: tuple[int, str] | None = None

    def run(self) -> None:
        """Run until the entries that are there are read. Raises EngineError if it is killed."""
        source, columns = self.engine.create(self.source, self.schema)
        sink, _ = self.engine.create(self.sink, self.schema)
        function, _ = self.engine.plan(source, columns, is_streaming=True)
        run = str(uuid.uuid4())
        with self.engine.worker("sql.streaming.python_streaming_source_runner", has_conf=False) as worker:
            stream = StreamingSource(worker, source, columns)
            assert stream.status_of(SUPPORTED) == ADMISSION_CONTROL | AVAILABLE_NOW
            assert stream.status_of(PREPARE) == 0
            limit = stream.default_limit()
            if not self.offsets:
                self.offsets.append(stream.initial_offset())  # the start, which is no batch
            while True:
                number = len(self.offsets) - 1
                if number > self.committed:
                    if number == 0:
                        self.committed = 0  # there is no batch that ends at the start
                    else:
                        self._batch(stream, sink, function, columns, number, run)
                end = stream.latest_offset(self.offsets[-1], limit)
                if end == self.offsets[-1]:
                    return
                stream.report()
                self.offsets.append(end)

    def _batch(
        self, stream: StreamingSource, sink: bytes, function: bytes, columns: str, number: int, run: str
    ) -> None:
        begin, end = self.offsets[number - 1 : number + 1]
        properties = {
            "sql.streaming.queryId": self.id,
            "streaming.sql.batchId": str(number - 1),
            "spark.jobGroup.id": run,
        }
        self._kill(stream, number, "logged")
        partitions = stream.partitions(begin, end)
        self._kill(stream, number, "planned")
        rows = self.engine.read_partitions(function, partitions, properties)
        write = self.engine.plan_write(self.sink, columns)
        told = [self.engine.run_task(write, part, place, properties) for place, part in enumerate(rows)]
        messages = [one.column(0)[0].as_py() for one in told if one is not None]
        self._kill(stream, number, "written")
        self.engine.commit_write(sink, columns, messages, number - 1)
        self._kill(stream, number, "closed")
        self.committed = number
        self._kill(stream, number, "committed")
        assert stream.status_of(COMMIT, end) == 0

    def _kill(self, stream: StreamingSource, number: int, step: str) -> None:
        if self.kill_at == (number, step):
            self.kill_at = None
            stream.kill()
            raise EngineError(f"killed: {step}")
