"""TIME ROLE WAIT SHUTDOWN, BGREWRITEAOF SAVE BGSAVE LASTSAVE.

The append-only file is the only file. SAVE flushes it to disk. Without the file, SAVE and BGSAVE fail, because nothing
would be saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.command_arguments import integer_of, syntax_error
from spark_streams.engine.core import Engine
from spark_streams.engine.persistence.aof_writer import PersistenceError
from spark_streams.engine.resp import wire_replies as replies


@command("time", 1, "fast loading")
def time(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """TIME: seconds and microseconds; the clock is read in milliseconds."""
    return replies.Array(replies.bulks([b"%d" % (engine.now // 1000), b"%d" % (engine.now % 1000 * 1000)]))


@command("role", 1, "fast loading stale")
def role(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """ROLE: a master without replicas, so nothing was written for any."""
    return replies.Array([replies.bulk(b"master"), replies.integer(0), replies.EMPTY_ARRAY])


@command("wait", 3)
def wait(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """WAIT replicas timeout: there are no replicas, so none has acknowledged, and waiting would not change that."""
    integer_of(args[1])
    if integer_of(args[2], "ERR timeout is not an integer or out of range") < 0:
        raise replies.CommandError("ERR timeout is negative")
    return replies.integer(0)


@command("shutdown", -1, "loading")
def shutdown(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """SHUTDOWN [SAVE|NOSAVE] [NOW] [FORCE]: an append-only file is complete on disk either way."""
    options = {arg.lower() for arg in args[1:]}
    if b"save" in options and not engine.persistence.enabled:
        raise replies.CommandError("ERR Errors trying to SHUTDOWN. Check logs.")
    if options - {b"save", b"nosave", b"now", b"force"}:
        raise syntax_error()
    engine.stopping = True
    client.closing = True
    return b""


_NO_FILE = "ERR this engine keeps everything in memory: start it with --appendonly yes, or CONFIG SET appendonly yes"


@contextmanager
def _with_file(engine: Engine) -> Iterator[None]:
    """Answer with an error if the engine has no file, or it cannot be written."""
    if not engine.persistence.enabled:
        raise replies.CommandError(_NO_FILE)
    try:
        yield
    except PersistenceError as problem:
        raise replies.CommandError(f"ERR {problem}") from None


@command("bgrewriteaof", 1)
def bgrewriteaof(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """BGREWRITEAOF"""
    with _with_file(engine):
        if engine.persistence.rewriter.busy:
            raise replies.CommandError("ERR Background append only file rewriting already in progress")
        engine.persistence.rewriter.begin()
    return replies.simple("Background append only file rewriting started")


def write_all(engine: Engine) -> None:
    """Write all changes to the disk. Raises CommandError."""
    with _with_file(engine):
        engine.persistence.sync()


@command("save", 1)
def save(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """SAVE: all that has changed is on the disk when this is answered."""
    write_all(engine)
    return replies.OK


@command("bgsave", -1)
def bgsave(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """BGSAVE [SCHEDULE]: as SAVE, in the background; INFO and LASTSAVE tell when it is done."""
    if len(args) > 2 or (len(args) == 2 and args[1].lower() != b"schedule"):
        raise syntax_error()
    with _with_file(engine):
        engine.persistence.sync_soon()
    return replies.simple("Background saving started")


@command("lastsave", 1, "loading stale fast")
def lastsave(engine: Engine, client: Client, args: list[bytes]) -> replies.Reply:
    """LASTSAVE: Unix seconds of the last SAVE or rewrite; 0 when there was none."""
    return replies.integer(engine.persistence.saved_at)
