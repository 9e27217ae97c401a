"""DEBUG SLEEP, SET-ACTIVE-EXPIRE, RELOAD, LOADAOF; for tests CLOCK, which moves the engine's time, and FAULT.

They are refused unless the option enable-debug-command allows them. Redis has no DEBUG CLOCK and no DEBUG FAULT.
"""

from __future__ import annotations

from collections.abc import Callable
from time import sleep

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import Handler, command
from spark_streams.engine.commands.command_arguments import integer_of, syntax_error
from spark_streams.engine.commands.server.administration import write_all
from spark_streams.engine.commands.values.plain_values import seconds_of
from spark_streams.engine.core import Engine, MovedClock
from spark_streams.engine.faults import REFUSALS, Faults
from spark_streams.engine.persistence.aof_loader import CorruptFileError
from spark_streams.engine.persistence.aof_writer import PersistenceError
from spark_streams.engine.persistence.stream_payload import dump, load
from spark_streams.engine.resp.wire_replies import OK, CommandError, Reply
from spark_streams.engine.store.stream import StoredStream

_LATEST = 2**53  # milliseconds; IDs and deadlines of a later clock would not be exact in clients that use floats
_NOT_ALLOWED = (
    'ERR DEBUG command not allowed. If the enable-debug-command option is set to "local", you can run it from a local '
    "connection, otherwise you need to set this option in the configuration file, and then restart the server."
)


def debug_command(name: str, arity: int, flags: str = "") -> Callable[[Handler], Handler]:
    """Register a subcommand of DEBUG, which runs if enable-debug-command allows it to this client."""

    def register(handler: Handler) -> Handler:
        def if_allowed(engine: Engine, client: Client, args: list[bytes]) -> Reply | None:
            allowed = engine.config.text("enable-debug-command")
            if allowed == "no" or (allowed == "local" and not client.is_local):
                raise CommandError(_NOT_ALLOWED)
            return handler(engine, client, args)

        command(f"debug|{name}", arity, flags)(if_allowed)
        return handler

    return register


@debug_command("sleep", 3, "loading")
def debug_sleep(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """DEBUG SLEEP seconds: nobody is served meanwhile, which is the purpose."""
    sleep(seconds_of(args[2]) / 1000)
    return OK


@debug_command("set-active-expire", 3, "loading")
def debug_set_active_expire(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """DEBUG SET-ACTIVE-EXPIRE 0|1: whether expired keys are removed before a command accesses them."""
    engine.active_expire = integer_of(args[2]) != 0
    return OK


@debug_command("reload", -2)
def debug_reload(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """DEBUG RELOAD [NOSAVE] …: every stream is packed as DUMP packs it, and unpacked again."""
    for db in engine.databases:
        for key, value in db.values.items():
            if isinstance(value, StoredStream):
                db.values[key] = load(dump(value, engine.now, newest=True), engine.node_limits, engine.now)
    return OK


@debug_command("loadaof", 2)
def debug_loadaof(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """DEBUG LOADAOF: forget everything, and read the file back."""
    write_all(engine)
    try:
        engine.persistence.reload()
    except (PersistenceError, CorruptFileError) as problem:
        raise CommandError(f"ERR {problem}") from None
    return OK


@debug_command("clock", -3, "loading")
def debug_clock(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """DEBUG CLOCK ADVANCE milliseconds | FREEZE [milliseconds since 1970] | RUN | RESET.

    RUN lets a frozen clock go on from its time. RESET returns to the machine's clock. Waits that are over end at once,
    and keys that have expired are removed.
    """
    action, numbers = args[2].lower(), args[3:]
    clock = engine.clock if isinstance(engine.clock, MovedClock) else MovedClock(engine.clock)
    if action == b"advance" and len(numbers) == 1:
        clock.advance(_number(numbers[0], clock()))
    elif action == b"freeze" and len(numbers) <= 1:
        clock.freeze(_number(numbers[0]) if numbers else None)
    elif action == b"run" and not numbers:
        clock.go_on()
    elif action != b"reset" or numbers:
        raise syntax_error()
    engine.clock = clock.machine if action == b"reset" else clock
    engine.tick()
    for db in engine.databases:
        if db.expires and engine.active_expire:
            db.drop_expired()
    engine.serve_ready()
    return OK


@debug_command("fault", -3, "loading")
def debug_fault(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """DEBUG FAULT REFUSE OOM|LOADING|READONLY|NOREPLICAS|BUSY | CLOSE commands BEFORE|AFTER | CUT bytes | DELAY
    milliseconds | END.

    CLOSE closes the connection of the given command from now on, of any client, before or after its effect. CUT closes
    a connection after so many bytes of replies. END ends all faults.
    """
    action, words = args[2].lower(), [word.lower() for word in args[3:]]
    faults = engine.faults = engine.faults or Faults(engine)
    if action == b"refuse" and len(words) == 1 and words[0] in REFUSALS:
        faults.refusal = REFUSALS[words[0]]
    elif action == b"close" and len(words) == 2 and words[1] in (b"before", b"after"):
        faults.commands, faults.closes_before = _number(words[0]), words[1] == b"before"
    elif action == b"cut" and len(words) == 1:
        faults.bytes = _number(words[0])
    elif action == b"delay" and len(words) == 1:
        faults.delay_ms = _number(words[0])
    elif action == b"end" and not words:
        faults.end()
        return OK
    else:
        raise syntax_error()
    faults.begin()
    return OK


def _number(text: bytes, since: int = 0) -> int:
    """Return a number from 0 to _LATEST - since. Raises CommandError."""
    number = integer_of(text)
    if not 0 <= number <= _LATEST - since:
        raise CommandError("ERR value is out of range")
    return number
