"""EVAL EVALSHA SCRIPT for the three scripts of redis-py's Lock. Any other script is refused.

The engine has no Lua. It recognizes a script by the SHA-1 of its text, which is the same in redis-py 5.0 to 8.1, and
runs the same commands. An error of a command has Redis' words, with the script's SHA-1 and line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.command_arguments import integer_of
from spark_streams.engine.core import Engine
from spark_streams.engine.faults import REFUSALS
from spark_streams.engine.resp.wire_replies import OK, Array, CommandError, Reply, bulk, integer

_REFUSED = (
    "ERR this engine runs no scripts except those of redis-py's Lock (release, extend, reacquire). Test other scripts "
    "on Redis"
)
_NOT_LOADED = "NOSCRIPT No matching script. Please use EVAL."
_YES, _NO = integer(1), integer(0)

# Return the command that changes the key; None: there is nothing to do. Called if the first value is the lock's token.
Script: TypeAlias = Callable[[Engine, Client, bytes, list[bytes]], list[bytes] | None]


def _release(engine: Engine, client: Client, key: bytes, values: list[bytes]) -> list[bytes] | None:
    """Delete the lock. values: token."""
    return [b"DEL", key]


def _extend(engine: Engine, client: Client, key: bytes, values: list[bytes]) -> list[bytes] | None:
    """Add milliseconds to the lock's time, or replace it. values: token, milliseconds, `0` to add."""
    if key not in client.db.expires:
        return None
    if values[2] != b"0":
        return [b"PEXPIRE", key, values[1]]
    return [b"PEXPIRE", key, b"%d" % (integer_of(values[1]) + client.db.expires[key] - engine.now)]


def _reacquire(engine: Engine, client: Client, key: bytes, values: list[bytes]) -> list[bytes] | None:
    """Set the lock's time again. values: token, milliseconds."""
    return [b"PEXPIRE", key, values[1]]


# By SHA-1: the script, the number of its values, and the line of the command that changes the key.
_SCRIPTS: dict[bytes, tuple[Script, int, int]] = {
    b"c3f8721cbb97f72bc19e972846bd7aaf91901658": (_release, 1, 6),
    b"a4e8783852e6b949f9ef3a97212805108459a890": (_extend, 3, 18),
    b"1cac51482acf5858da00f6d685d68f886cd6b6b2": (_reacquire, 2, 6),
}
_LINE_OF_GET = 2


def _run(engine: Engine, client: Client, words: list[bytes]) -> None:
    """Run a command of a script. Its effect is recorded, and who watches the key notices it. Raises CommandError."""
    if engine.faults is not None:
        engine.faults.check_refusal(client, words)
    was_in_transaction, engine.in_transaction = engine.in_transaction, True  # the client's rights were checked for EVAL
    last_command = client.last_command
    try:
        reply = engine.execute(client, words)
    finally:
        engine.in_transaction, client.last_command = was_in_transaction, last_command
    if isinstance(reply, bytes) and reply.startswith(b"-"):
        raise CommandError(reply[1:-2])


def _call(engine: Engine, client: Client, sha: bytes, args: list[bytes]) -> Reply:
    """Run the script. args: those of EVAL. Raises CommandError."""
    script, value_count, line_of_change = _SCRIPTS[sha]
    key_count = integer_of(args[2])
    if key_count < 0:
        raise CommandError("ERR Number of keys can't be negative")
    if key_count > len(args) - 3:
        raise CommandError("ERR Number of keys can't be greater than number of args")
    values = args[3 + key_count :]
    if key_count != 1 or len(values) != value_count:
        raise CommandError(f"ERR this script of redis-py's Lock takes 1 key and {value_count} values")
    key, line = args[3], _LINE_OF_GET
    try:
        holds = client.db.get_as(key, bytes) == values[0]
        line = line_of_change
        words = script(engine, client, key, values) if holds else None
        if words is not None:
            _run(engine, client, words)
    except CommandError as failure:
        raise CommandError(b"%b script: %b, on @user_script:%d." % (failure.text, sha, line)) from None
    return _NO if words is None else _YES


def _sha_of(text: bytes) -> bytes:
    """Return the SHA-1 of a script that this engine has. Raises CommandError."""
    import hashlib  # it loads OpenSSL: not at every start

    sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
    if sha not in _SCRIPTS:
        raise CommandError(_REFUSED)
    return sha


@command("eval", -3)
def eval_(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """EVAL script 1 key value …"""
    sha = _sha_of(args[1])
    engine.scripts.add(sha)
    return _call(engine, client, sha, args)


@command("evalsha", -3)
def evalsha(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """EVALSHA sha1 1 key value …, after EVAL or SCRIPT LOAD"""
    sha = args[1].lower()
    if sha not in engine.scripts:
        raise CommandError(_NOT_LOADED)
    return _call(engine, client, sha, args)


@command("script|load", 3)
def script_load(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SCRIPT LOAD script"""
    sha = _sha_of(args[2])
    engine.scripts.add(sha)
    return bulk(sha)


@command("script|exists", -3)
def script_exists(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SCRIPT EXISTS sha1 …"""
    return Array([_YES if sha.lower() in engine.scripts else _NO for sha in args[2:]])


@command("script|kill", 2)
def script_kill(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SCRIPT KILL: it ends the fault BUSY, which a test has set. Scripts of Lock never run for long."""
    if engine.faults is None or engine.faults.refusal is not REFUSALS[b"busy"]:
        raise CommandError("NOTBUSY No scripts in execution right now.")
    engine.faults.refusal = None
    return OK


@command("script|flush", -2)
def script_flush(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """SCRIPT FLUSH [SYNC|ASYNC]"""
    if len(args) > 3 or (len(args) == 3 and args[2].lower() not in (b"sync", b"async")):
        raise CommandError("ERR SCRIPT FLUSH only support SYNC|ASYNC option")
    engine.scripts.clear()
    return OK
