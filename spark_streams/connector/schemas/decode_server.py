"""The program of the process that decodes values: `decode_process.py` starts it, and has the protocol.

It limits itself, so that its limits hold also if its parent is gone: memory, and the time of a value, after which the
kernel ends it. It ends if its input ends.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from spark_streams.connector.errors import RegistryError
from spark_streams.connector.schemas.decode_process import (
    LONGEST,
    MEMORY,
    REASON,
    REGISTRY,
    SECONDS,
    TEXT,
    TOO_LARGE,
    Frame,
)
from spark_streams.connector.schemas.decoder import Decoder
from spark_streams.connector.schemas.json_schema import text_of
from spark_streams.connector.schemas.payload_format import PROTOBUF, PayloadFormat
from spark_streams.connector.schemas.reasons import BAD_VALUE, UnreadableError
from spark_streams.connector.schemas.schema_registry import Registry
from spark_streams.connector.wire.address import DEFAULT_PATIENCE

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
