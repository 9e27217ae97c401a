"""The process that decodes values for people who look at them: a value that ends a process does not end theirs.

    rstream show, console                          python -m spark_streams.connector.schemas.apart.server
      forms                          ---pickle-->    decoders
      (name, value)                  ---pickle-->    decode, within the limits of apart/frames.py
      Shown                          <--frame----    kind, length, content

The process is started for the first value, and used until it dies; the next value starts another one. It ends if its
input ends, so also if its parent was killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import IO, NamedTuple

from spark_streams.base.extras import python_command, python_environment
from spark_streams.connector.errors import RegistryError
from spark_streams.connector.schemas.apart.frames import REASON, REGISTRY, SECONDS, TOO_LONG, Shown, read_frame
from spark_streams.connector.schemas.payload_format import PayloadFormat

COMMAND = tuple(python_command("-m", "spark_streams.connector.schemas.apart.server"))
_MOMENT = 1.0  # seconds that a process has to end by itself


class _Running(NamedTuple):
    """The process, and its pipes."""

    process: subprocess.Popen[bytes]
    requests: IO[bytes]
    replies: IO[bytes]


class DecodeProcess:
    """Decodes values in another process. Threads may share it: it decodes one page at a time."""

    def __init__(
        self, forms: Mapping[bytes, PayloadFormat], command: Sequence[str] = COMMAND, seconds: float = SECONDS
    ) -> None:
        """forms: by the name of a field; command: to start; seconds: that the values of a page may take together."""
        self._forms, self._command, self._seconds = dict(forms), command, seconds
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._ended: Callable[[], int | None] = lambda: None  # ends the process, once; at the latest with this one

    @property
    def pid(self) -> int | None:
        """ID of the process that was started last, None if there is none."""
        return None if self._running is None else self._running.process.pid

    def decode(self, pairs: Sequence[tuple[bytes, bytes]], is_strict: bool) -> list[Shown]:
        """Return what the fields of a page are, in their order. is_strict: raise RegistryError if a registry cannot be
        asked."""
        deadline = time.monotonic() + self._seconds
        found: list[Shown] = []
        if self._lock.acquire(timeout=self._seconds):
            try:
                while len(found) < len(pairs) and time.monotonic() < deadline:
                    self._add(pairs, found, deadline, is_strict)
            finally:
                self._lock.release()
        return found + [Shown(b"", TOO_LONG)] * (len(pairs) - len(found))

    def _add(self, pairs: Sequence[tuple[bytes, bytes]], found: list[Shown], deadline: float, is_strict: bool) -> None:
        """Add the decoded values, until the process dies: then the reason for the value that it died of."""
        try:
            running = self._start()
        except OSError as error:
            found.append(Shown(b"", f"not decoded: no process can be started ({error.strerror})"))
            return
        late = threading.Event()

        def end() -> None:
            late.set()
            running.process.kill()

        timer = threading.Timer(deadline - time.monotonic(), end)
        timer.daemon = True
        timer.start()
        try:
            for pair in pairs[len(found) :]:
                running.requests.write(pickle.dumps(pair))
                running.requests.flush()
                kind, content = read_frame(running.replies)
                if kind == REGISTRY and is_strict:
                    raise RegistryError(content.decode())
                found.append(Shown(content) if kind not in (REASON, REGISTRY) else Shown(b"", content.decode()))
        except (OSError, EOFError):
            code = self._ended()
            found.append(Shown(b"", TOO_LONG if late.is_set() or code == -signal.SIGALRM else _reason(code)))
        except KeyboardInterrupt:  # an answer is on its way: the next request would get it
            running.process.kill()
            raise
        finally:
            timer.cancel()

    def _start(self) -> _Running:
        """Return the process, started if it does not run. Raises OSError."""
        if self._running is not None:
            if self._running.process.poll() is None:
                return self._running
            self._ended()
        # In a session of its own: Ctrl-C is not for it. What libraries print does not reach this terminal.
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=python_environment(os.environ),
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._running = running = _Running(process, process.stdin, process.stdout)
        self._ended = weakref.finalize(self, _end, running)
        with contextlib.suppress(BrokenPipeError):  # it died: the first request finds that
            running.requests.write(pickle.dumps(self._forms))
            running.requests.flush()
        return running


def _end(running: _Running) -> int:
    """End the process, if it runs, and return its exit code."""
    with contextlib.suppress(BrokenPipeError):  # it died, and what it was to read is left
        running.requests.close()
    try:
        running.process.wait(_MOMENT)
    except subprocess.TimeoutExpired:
        running.process.kill()
    running.replies.close()
    return running.process.wait()


def _reason(code: int | None) -> str:
    how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
    return f"not decoded: the process that decodes it ended with {how}"
