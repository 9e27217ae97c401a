"""Work for the server beside the tasks of a batch: time that the driver would otherwise stand still in."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from spark_streams.wire.address.address import Address
from spark_streams.wire.connect import connect
from spark_streams.wire.connection.server import Server

Job = Callable[[Server], object]


class BackgroundWorker:
    """Runs what it is given, one after the other, in a thread and over a connection of its own, both made when first
    needed.

    A job may be cut off at any point, by SIGKILL too. For use by one thread. A copy for another process (pickle) starts
    anew.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._jobs: queue.SimpleQueue[tuple[Job, Future[object]] | None] = queue.SimpleQueue()
        self._submitted: list[Future[object]] = []
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> tuple[type[BackgroundWorker], tuple[Address]]:
        return BackgroundWorker, (self._address,)

    def submit(self, job: Job) -> Future[object]:
        """Run this after what was submitted before, also where that has failed. Return what becomes of it."""
        if self._thread is None:
            # A daemon: a process that ends does not wait for it.
            self._thread = threading.Thread(target=self._work, name="rstream-beside", daemon=True)
            self._thread.start()
        result = Future[object]()
        self._jobs.put((job, result))
        self._submitted.append(result)
        return result

    def wait(self) -> None:
        """Until all that was submitted since the last call has run.

        Raises what went wrong in the thread, the first error where there are several: StreamStateError, ServerError.
        """
        submitted, self._submitted = self._submitted, []
        errors = [error for error in [result.exception() for result in submitted] if error is not None]
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Finish what was submitted, and end the thread; calling it twice is harmless."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        server: Server | None = None
        while (given := self._jobs.get()) is not None:
            job, result = given
            try:
                if server is None:
                    server = connect(self._address)
                server.renew_login()
                result.set_result(job(server))
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                if server is not None:
                    server.close()  # in the middle of a reply, perhaps
                    server = None
                result.set_exception(error)
        if server is not None:
            server.close()
