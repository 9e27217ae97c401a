"""What strikes a run: its processes are killed, or the disk is full, at one of its changes of files or of its requests.

The changes of files are counted by strike.c, in every process of the run. The requests are counted by the engine, which
is a thread of this process. A run that is killed changes no file any more and gets only errors from the server. That is
what is left of a process that was killed: its workers are really killed, its driver and its JVM go on to the next life.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import redis

from spark_streams.engine.client import Client
from spark_streams.engine.commands import new_engine
from spark_streams.engine.core import MovedClock, unix_ms
from spark_streams.engine.launch.commandline import configure
from spark_streams.engine.resp.wire_replies import Reply, error
from spark_streams.engine.server.event_loop import EngineServer

_OFF, _KILL, _FULL = 0, 1, 2
_STATE = struct.Struct("iiii16s480s")  # mode, at, dead, done, what, path: strike.c has the same
SIZE = _STATE.size
KILLED = error(b"ERR this run was killed")


class Strike(NamedTuple):
    """kind: `file`, `request`, `reply` (of a request that was done), `full` (disk), `hold`, or ``; at: which one."""

    kind: str = ""
    at: int = 0


def start_again(folder: Path, words: list[str]) -> None:
    """Replace this process by one in which changes of files below the folder can fail. Return in that process."""
    if os.environ.get("OUTPUTS_DRIVER") == str(os.getpid()):
        return
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        sys.exit("tools.outputs needs Linux and a C compiler (cc)")
    source, library, state = Path(__file__).with_name("strike.c"), folder / "strike.so", folder / "state"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    state.write_bytes(bytes(SIZE))
    (folder / "lives").mkdir()
    places = {"LD_PRELOAD": library, "OUTPUTS_STATE": state, "OUTPUTS_ROOT": folder / "lives"}
    os.environ.update({name: str(path) for name, path in places.items()}, OUTPUTS_DRIVER=str(os.getpid()))
    os.execv(sys.executable, [sys.executable, *words])


class World:
    """The folder of the lives, the engine, and what strikes them."""

    def __init__(self) -> None:
        self.folder = Path(os.environ["OUTPUTS_ROOT"])
        with open(os.environ["OUTPUTS_STATE"], "r+b") as file:
            self._state = mmap.mmap(file.fileno(), SIZE)
        self._strike, self._runs, self._struck_request = Strike(), False, ""
        self.requests = 0
        self.held = threading.Event()  # the moment of a hold has come
        socket = self.folder.parent / "engine.sock"
        self.clock = MovedClock(unix_ms)
        self._engine = new_engine(self.clock)
        configure(self._engine.config, "engine", ["--port", "0", "--unixsocket", str(socket)])
        self._engine.__dict__["execute"] = self._execute
        self._engine.__dict__["_run_batch"] = lambda client, batch: None  # one by one
        server = EngineServer(self._engine)
        server.listen()
        threading.Thread(target=server.serve, daemon=True).start()
        self.url = f"unix://{socket}"
        self.client: Any = redis.Redis.from_url(self.url, decode_responses=True)

    def _execute(self, client: Client, args: list[bytes]) -> Reply | None:
        engine, strike = self._engine, self._strike
        if not self._runs or engine.in_transaction:
            return engine.execute_plain(client, args)
        if self.is_dead():
            return KILLED
        self.requests += 1
        kind = strike.kind if self.requests == strike.at else ""
        if kind == "hold":
            self.held.set()
        reply = None if kind == "request" else engine.execute_plain(client, args)
        if kind in ("request", "reply"):
            self._struck_request = b" ".join(args[:2]).decode(errors="replace")
            self._set(_KILL, -1, 1, self.changes)
            return KILLED
        return reply

    def _set(self, mode: int, at: int = -1, dead: int = 0, done: int = 0) -> None:
        self._state[:] = _STATE.pack(mode, at, dead, done, b"", b"")

    def is_dead(self) -> bool:
        """Whether the processes of this run were killed."""
        mode, _, dead, *_ = _STATE.unpack(self._state)
        return bool(dead) and mode == _KILL

    @property
    def struck(self) -> str:
        """What was struck, empty if nothing was yet."""
        _, _, dead, _, what, path = _STATE.unpack(self._state)
        place = path.rstrip(b"\0").decode().removeprefix(str(self.folder))
        return self._struck_request or (f"{what.rstrip(bytes(1)).decode()} {place}" if dead else "")

    @property
    def changes(self) -> int:
        """Changes of files by this run."""
        return int(_STATE.unpack(self._state)[3])

    def arm(self, strike: Strike) -> None:
        """Begin to count the changes and the requests of a run."""
        self._strike, self.requests, self._struck_request = strike, 0, ""
        self.held.clear()
        self._set(_FULL if strike.kind == "full" else _KILL, strike.at if strike.kind in ("file", "full") else -1)
        self._runs = True

    def disarm(self) -> None:
        """End the run: nothing of it is left."""
        self._runs = False
        self._set(_OFF)
