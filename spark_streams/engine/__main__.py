"""`python -m spark_streams.engine`, `rstream serve`: the stream engine as a process."""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # modules leave no garbage, and collections take a tenth of the start: collect_new_objects()

import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

from spark_streams.engine.commands import new_engine
from spark_streams.engine.core import Engine
from spark_streams.engine.launch.commandline import configure
from spark_streams.engine.persistence.aof_loader import CorruptFileError, LoadingStoppedError
from spark_streams.engine.persistence.aof_writer import PersistenceError
from spark_streams.engine.server.event_loop import EngineServer, collect_new_objects
from spark_streams.engine.settings import Config, SettingError

_LEVELS = {"debug": 10, "verbose": 10, "notice": 20, "warning": 30, "nothing": 100}


def main(arguments: list[str] | None = None, prog: str = "python -m spark_streams.engine") -> int:
    """Serve until stopped. Return exit code 2 for wrong options, 1 and a line on stderr if it cannot listen."""
    # Other threads prepare batches and write files. A short interval keeps the serving thread from waiting for them.
    sys.setswitchinterval(0.0005)
    engine = new_engine()
    config = engine.config
    process_options = configure(config, prog, arguments)
    try:
        directory = config.text("dir")
        config.fill("dir", str(Path(directory).resolve(strict=True)) if directory else os.getcwd())
        log = _log_to(config)
    except OSError as problem:
        print(f"spark_streams.engine: {problem.filename}: {problem.strerror or problem}", file=sys.stderr)
        return 1
    try:
        engine.persistence.lock_file()
    except PersistenceError as problem:
        print(f"spark_streams.engine: {problem}", file=sys.stderr)
        return 1
    parent = process_options.parent
    is_orphan = (lambda: os.getppid() != parent) if parent else (lambda: False)
    server = EngineServer(engine, process_options.idle, is_orphan, process_options.socket_check)
    try:
        addresses = server.listen()
    except OSError as problem:
        print(f"spark_streams.engine: cannot listen on {problem.filename}: {problem.strerror}", file=sys.stderr)
        return 1
    except SettingError as problem:
        print(f"spark_streams.engine: {problem}", file=sys.stderr)
        return 1
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: server.stop_soon())
    return _serve(engine, server, " and ".join(addresses), log)


def _serve(engine: Engine, server: EngineServer, addresses: str, log: logging.Logger) -> int:
    """Load the append-only file, serve until stopped, and return the exit code."""

    def get_ready() -> None:
        engine.persistence.start()
        collect_new_objects()
        log.info("ready on %s", addresses)

    try:
        with contextlib.suppress(KeyboardInterrupt, LoadingStoppedError):
            server.serve(get_ready)
        engine.persistence.stop()
    except (PersistenceError, CorruptFileError) as problem:
        if engine.persistence.enabled:
            log.error("stopping: %s", problem)
        else:
            print(f"spark_streams.engine: {problem}", file=sys.stderr)
        return 1
    log.info("stopped")
    return 0


def _log_to(config: Config) -> logging.Logger:
    log = logging.getLogger("rstream.engine")
    path = config.text("logfile")
    handler = logging.FileHandler(Path(config.text("dir"), path)) if path else logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(message)s"))
    log.addHandler(handler)
    log.propagate = False
    config.on_change("loglevel", lambda: log.setLevel(_LEVELS[config.text("loglevel")]))
    return log


if __name__ == "__main__":
    sys.exit(main())
