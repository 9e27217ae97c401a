"""The process that decodes values for people who look at them: a value that ends a process does not end theirs.

    rstream show, console                          python -m spark_streams.connector.schemas.decode_process
      forms                          ---pickle-->    decoders
      (name, value)                  ---pickle-->    decode, within the limits below
      Shown                          <--frame----    kind, length, content

The process is started for the first value, and used until it dies; the next value starts another one. It ends if its
input ends, so also if its parent was killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, NamedTuple

from spark_streams.base.extras import python_command, python_environment
from spark_streams.connector.errors import RegistryError
from spark_streams.connector.schemas.decoder import Decoder, reader_of
from spark_streams.connector.schemas.json_schema import text_of
from spark_streams.connector.schemas.payload_format import PROTOBUF, PayloadFormat
from spark_streams.connector.schemas.reasons import BAD_VALUE, UnreadableError
from spark_streams.connector.schemas.schema_registry import Registry
from spark_streams.connector.wire.address import DEFAULT_PATIENCE

# -- what the process answers, and what it may take --------------------------------------------------------------------

SECONDS = 10.0  # that the values of a page may take together
MEMORY = 512 << 20  # bytes beyond what the process has when it begins
LONGEST = 16 << 20  # bytes of a value's JSON
TEXT, REASON, REGISTRY = range(3)  # kinds of a frame
TOO_LONG = "not decoded: it took too long"
TOO_LARGE = "not decoded: it needs too much memory"
_HEAD = struct.Struct(">BI")


class Shown(NamedTuple):
    text: bytes  # JSON in UTF-8
    reason: str = ""  # why there is none


class Frame(NamedTuple):
    kind: int
    content: bytes  # a value's JSON, a reason, or the message of an error of a registry

    def write(self, file: IO[bytes]) -> None:
        file.write(_HEAD.pack(self.kind, len(self.content)) + self.content)
        file.flush()


def read_frame(file: IO[bytes]) -> Frame:
    """Read a frame. Raises EOFError if there is none, or no whole one."""
    head = file.read(_HEAD.size)
    kind, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (-1, 0)
    content = file.read(min(length, LONGEST))
    if kind not in (TEXT, REASON, REGISTRY) or len(content) != length:
        raise EOFError
    return Frame(kind, content)


# -- the process -------------------------------------------------------------------------------------------------------

COMMAND = tuple(python_command("-m", "spark_streams.connector.schemas.decode_process"))
_MOMENT = 1.0  # seconds that a process has to end by itself


class _Running(NamedTuple):
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


# -- values of fields as JSON: `rstream show --decode` and the console -------------------------------------------------

_MOST_BYTES = 1 << 20  # of a value


class FieldDecoders:
    """Decoders by the name of a field, in a process of their own that may die. keeps_going: a registry that cannot be
    asked is a reason, not an error.
    """

    def __init__(
        self, forms: Mapping[bytes, PayloadFormat], keeps_going: bool = False, process: DecodeProcess | None = None
    ) -> None:
        """Raise errors of the format's package if a schema is not valid. process: by default it has these forms."""
        for form in forms.values():
            reader_of(form)
        self.fields = frozenset(forms)
        self._is_strict = not keeps_going
        self._process = process or DecodeProcess(forms)

    def page(self, pairs: Sequence[tuple[bytes, bytes]]) -> list[Shown | None]:
        """Return the decoded values of a page, None for each field that is not decoded. Raises RegistryError."""
        shown: list[Shown | None] = [
            Shown(b"", "larger than 1 MB") if name in self.fields and len(value) > _MOST_BYTES else None
            for name, value in pairs
        ]
        places = [place for place, (name, _) in enumerate(pairs) if name in self.fields and shown[place] is None]
        if places:
            found = self._process.decode([pairs[place] for place in places], self._is_strict)
            for place, one in zip(places, found, strict=True):
                shown[place] = one
        return shown

    def as_json(self, pairs: Iterable[tuple[bytes, bytes]]) -> list[dict[str, str]]:
        """Return an object for each field that is decoded: its name, and the JSON as a text or the reason."""
        own = [(name, value) for name, value in pairs if name in self.fields]
        return [
            {"field": name.decode(), **({"reason": one.reason} if one.reason else {"json": one.text.decode()})}
            for (name, _), one in zip(own, self.page(own), strict=True)
            if one is not None
        ]


# -- what the process does ---------------------------------------------------------------------------------------------

# It limits itself, so that its limits hold also if its parent is gone: memory, and the time of a value, after which the
# kernel ends it. It ends if its input ends.

Decode = Callable[[bytes, bytes], Frame]  # takes the name of a field and its value
_PATIENCE = replace(DEFAULT_PATIENCE, limit=5.0)  # a person waits


def serve(decode_by: Callable[[Mapping[bytes, PayloadFormat]], Decode], seconds: float = SECONDS) -> None:
    """Answer requests until the input ends. decode_by: makes the function that decodes by these forms;
    seconds: after which a value ends the process."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    decode = decode_by(pickle.load(requests))
    _limit_memory()
    while True:
        try:
            name, value = pickle.load(requests)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, seconds)
        decode(name, value).write(replies)
        signal.setitimer(signal.ITIMER_REAL, 0)


def decoders(forms: Mapping[bytes, PayloadFormat]) -> Decode:
    """Return the function that decodes by these forms. Raises errors of the format's package."""
    registries = {
        (form.registry, form.login): Registry(form.registry, form.login, form.format == PROTOBUF, _PATIENCE)
        for form in forms.values()
        if form.registry
    }
    by_name = {name: Decoder(form, registries.get((form.registry, form.login))) for name, form in forms.items()}

    def decode(name: bytes, value: bytes) -> Frame:
        try:
            text = text_of(by_name[name].decode(value)).encode("utf-8", "backslashreplace")
        except UnreadableError as error:
            return Frame(REASON, (TOO_LARGE if isinstance(error.__context__, MemoryError) else error.reason).encode())
        except RegistryError as error:
            return Frame(REGISTRY, error.message.encode("utf-8", "backslashreplace"))
        except RecursionError:
            return Frame(REASON, BAD_VALUE.encode())
        except MemoryError:
            return Frame(REASON, TOO_LARGE.encode())
        return Frame(TEXT, text) if len(text) <= LONGEST else Frame(REASON, TOO_LARGE.encode())

    return decode


def _limit_memory() -> None:
    """Limit the memory to what the process has and MEMORY more. A value that ends it leaves no file of its memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    statm = Path("/proc/self/statm")
    if statm.exists():  # other systems than Linux do not keep to this limit
        size = int(statm.read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


if __name__ == "__main__":
    serve(decoders)
