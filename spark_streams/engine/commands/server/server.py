"""TIME ROLE WAIT SHUTDOWN."""

from __future__ import annotations

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.arguments import integer_of, syntax_error
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import EMPTY_ARRAY, Array, CommandError, Reply, bulk, bulks, integer


@command("time", 1, "fast loading")
def time(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """TIME: seconds and microseconds; the clock is read in milliseconds."""
    return Array(bulks([b"%d" % (engine.now // 1000), b"%d" % (engine.now % 1000 * 1000)]))


@command("role", 1, "fast loading stale")
def role(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """ROLE: a master without replicas, so nothing was written for any."""
    return Array([bulk(b"master"), integer(0), EMPTY_ARRAY])


@command("wait", 3)
def wait(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """WAIT replicas timeout: there are no replicas, so none has acknowledged, and waiting would not change that."""
    integer_of(args[1])
    if integer_of(args[2], "ERR timeout is not an integer or out of range") < 0:
        raise CommandError("ERR timeout is negative")
    return integer(0)


@command("shutdown", -1, "loading")
def shutdown(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SHUTDOWN [SAVE|NOSAVE] [NOW] [FORCE]: an append-only file is complete on disk either way."""
    options = {arg.lower() for arg in args[1:]}
    if b"save" in options and not engine.persistence.enabled:
        raise CommandError("ERR Errors trying to SHUTDOWN. Check logs.")
    if options - {b"save", b"nosave", b"now", b"force"}:
        raise syntax_error()
    engine.stopping = True
    client.closing = True
    return b""
