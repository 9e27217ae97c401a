"""`python -m spark_streams.engine`: the stream engine as a process. Option names are those of redis.conf."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import signal
import sys
from pathlib import Path

from spark_streams.engine.core import Engine
from spark_streams.engine.server import Server


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m spark_streams.engine", description="A stream engine that speaks the Redis protocol, in memory."
    )
    parser.add_argument("--port", type=int, help="TCP port; 0 for none (default 6379, or none with --unixsocket)")
    parser.add_argument("--bind", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--unixsocket", type=Path, metavar="PATH", help="listen on this Unix socket, too")
    parser.add_argument("--idle", type=float, metavar="SECONDS", help="stop after so long without a client")
    parser.add_argument("--parent", type=int, metavar="PID", help="stop when this process, our parent, is gone")
    chosen = parser.parse_args(arguments)
    if chosen.port is None:
        chosen.port = 6379 if chosen.unixsocket is None else 0
    if not 0 <= chosen.port <= 65535:
        parser.error("--port takes 0 … 65535")
    if not chosen.port and chosen.unixsocket is None:
        parser.error("--port 0 needs a --unixsocket: there would be nothing to listen on")
    return chosen


def main(arguments: list[str] | None = None) -> int:
    """Serve until stopped. Exit code 1 and one line on stderr if the address cannot be had."""
    chosen = _parse(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(process)d %(message)s")
    log = logging.getLogger("rstream.engine")
    engine = Engine()
    parent = chosen.parent
    server = Server(engine, chosen.idle, (lambda: os.getppid() != parent) if parent else (lambda: False))
    address = ""
    try:
        if chosen.unixsocket is not None:
            address = str(chosen.unixsocket)
            server.listen_unix(chosen.unixsocket)
            engine.config.fixed["unixsocket"] = address
        if chosen.port:
            address = f"{chosen.bind}:{chosen.port}"
            server.listen_tcp(chosen.bind, chosen.port)
            engine.config.fixed.update(port=str(chosen.port), bind=chosen.bind)
    except OSError as problem:
        print(f"spark_streams.engine: cannot listen on {address}: {problem.strerror or problem}", file=sys.stderr)
        return 1
    engine.config.fixed["dir"] = os.getcwd()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: server.stop_soon())
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    log.info("ready on %s", address)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
