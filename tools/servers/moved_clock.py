"""Servers whose clock a test moves, back or ahead, while they run: the bundled engine, and a redis-server."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.servers.server import Server, running_engine, running_redis

# Put before libc in a redis-server. It moves the clock of the day: delivery times, IDs, TIME and expiry follow. The
# monotonic clock, by which the server waits for events, stays.
_LIBRARY = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;  /* nanoseconds, in a file that the test writes */

__attribute__((constructor)) static void open_offset(void) {
    int file = open(getenv("MOVED_CLOCK"), O_RDONLY);
    if (file < 0) abort();
    void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) abort();
    offset = page;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (failed || offset == NULL || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
    int64_t moved = (int64_t)at->tv_sec * 1000000000 + at->tv_nsec + *offset;
    at->tv_sec = moved / 1000000000;
    at->tv_nsec = moved % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (at != NULL) *at = now.tv_sec;
    return now.tv_sec;
}
"""


@dataclass(frozen=True)
class Moved:
    """A server of a kind, and what moves its clock."""

    server: Server
    _offset: mmap.mmap | None = None

    def move(self, milliseconds: int) -> None:
        """Set the server's clock ahead, or back (negative)."""
        with self.server.client() as client:
            if self._offset is None:
                client.execute_command("DEBUG", "CLOCK", "FREEZE", _milliseconds(client.time()) + milliseconds)
                client.execute_command("DEBUG", "CLOCK", "RUN")
                return
            before = _milliseconds(client.time())
            [offset] = struct.unpack_from("q", self._offset)
            struct.pack_into("q", self._offset, 0, offset + milliseconds * 1_000_000)
            moved = _milliseconds(client.time()) - before
        assert abs(moved - milliseconds) < 1_000, f"the clock of redis-server moved by {moved} ms"


@contextlib.contextmanager
def running(kind: str, directory: Path) -> Iterator[Moved]:
    """Start a server of this kind. directory: for a library that is compiled. A test is skipped if it cannot be."""
    if kind == "engine":
        with running_engine() as server:
            yield Moved(server)
        return
    library, file = _compiled(directory), directory / "offset"
    file.write_bytes(bytes(8))
    variables = {"LD_PRELOAD": str(library), "MOVED_CLOCK": str(file)}
    with (
        file.open("r+b") as opened,
        mmap.mmap(opened.fileno(), 8) as offset,
        running_redis(variables=variables) as server,
    ):
        yield Moved(server, offset)


def _compiled(directory: Path) -> Path:
    """Return the library's file."""
    if not sys.platform.startswith("linux"):
        pytest.skip("no LD_PRELOAD on this system: the clock of a redis-server was not moved")
    if not (compiler := shutil.which("cc") or ""):
        pytest.skip("no C compiler (cc) on this machine: the clock of a redis-server was not moved")
    source, library = directory / "moved_clock.c", directory / "moved_clock.so"
    source.write_text(_LIBRARY)
    subprocess.run(
        [compiler, "-O1", "-Wall", "-shared", "-fPIC", "-o", library, source], check=True, env={**os.environ}
    )
    return library


def _milliseconds(time: tuple[int, int]) -> int:
    return time[0] * 1000 + time[1] // 1000
