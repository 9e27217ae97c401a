"""Background work for the server, while the tasks of a batch run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection.server import Server

Job = Callable[[Server], object]


class BackgroundWorker:
    """Runs jobs in order, in a thread and over a connection of its own.

    Jobs rely on what the driver has seen after the last `wait`. A server that answers over a newer connection may be in
    an older state, and its commit mark would then hide what it has forgotten. So `wait` makes the connection, before
    the driver looks. If it breaks, the jobs that were submitted before the next `wait` fail with it.

    A job may be interrupted at any point, also by SIGKILL. One thread may use the worker. A copy for another process
    (pickle) starts without jobs.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._jobs: queue.SimpleQueue[tuple[Job, Future[object]] | None] = queue.SimpleQueue()
        self._submitted: list[Future[object]] = []
        self._broken: Exception | None = None  # since the last `wait`
        self._thread: threading.Thread | None = None
        self._server: Server | None = None  # of the thread

    def __reduce__(self) -> tuple[type[BackgroundWorker], tuple[Address]]:
        return BackgroundWorker, (self._address,)

    def submit(self, job: Job) -> Future[object]:
        """Run this job after the earlier ones, also if one of them has found a missing stream or group. Return its
        future."""
        if self._thread is None:
            # A daemon: a process that ends does not wait for it.
            self._thread = threading.Thread(target=self._work, name="rstream-beside", daemon=True)
            self._thread.start()
        result = Future[object]()
        self._jobs.put((job, result))
        self._submitted.append(result)
        return result

    def wait(self) -> None:
        """Wait for all jobs that were submitted since the last call, and for a connection.

        Raises the first error of these jobs: StreamStateError, ServerError.
        """
        self._end_jobs()
        if self._server is None:
            self.submit(lambda server: None)
            self._end_jobs()

    def _end_jobs(self) -> None:
        submitted, self._submitted = self._submitted, []
        errors = [error for error in [result.exception() for result in submitted] if error is not None]
        self._broken = None  # no job is left
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Finish all jobs and end the thread. A second call does nothing."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (submitted := self._jobs.get()) is not None:
            job, result = submitted
            try:
                if self._broken is not None:
                    raise self._broken
                if self._server is None:
                    self._server = connect(self._address)
                self._server.renew_login()
                result.set_result(job(self._server))
            except Exception as error:  # noqa: BLE001 - `wait` raises it
                if not isinstance(error, StreamStateError):
                    self._broken = error
                self._disconnect()  # in the middle of a reply, perhaps
                result.set_exception(error)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
