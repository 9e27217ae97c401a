"""A process that decodes, as spark_streams.connector.schemas.decode_process, and that values of these tests end."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping

from spark_streams.connector.schemas.decode_process import REASON, TEXT, TOO_LARGE, Decode, Frame, serve
from spark_streams.connector.schemas.payload_format import PayloadFormat


def _decode(_name: bytes, value: bytes) -> Frame:
    if value == b"segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if value == b"exit":
        os._exit(3)
    if value == b"hang":  # in C: no signal is seen by Python
        re.match("(a+)+$", "a" * 60 + "b")
    if value == b"sleep":
        time.sleep(60)
    if value == b"memory":
        try:
            bytearray(4 << 30)
        except MemoryError:
            return Frame(REASON, TOO_LARGE.encode())
    if value == b"print":
        print("no answer", flush=True)
    return Frame(TEXT, b'"%b"' % value)


def _decode_by(_forms: Mapping[bytes, PayloadFormat]) -> Decode:
    return _decode


if __name__ == "__main__":
    serve(_decode_by, 3.0)
