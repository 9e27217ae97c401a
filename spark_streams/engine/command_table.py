"""The command table: name, arity, flags, keys, handler. Container commands hold their subcommands.

Arity counts the command's name; a negative arity means "at least". Source: Redis' `COMMAND INFO`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from spark_streams.engine.resp.wire_replies import CommandError, Reply

# Called with the engine, the client and the arguments. The table itself depends on none of their types.
Handler: TypeAlias = Callable[..., Reply | None]
AnyHandler = TypeVar("AnyHandler", bound=Handler)


class Command:
    """One command or subcommand (`xgroup|create`)."""

    def __init__(
        self, name: str, arity: int, flags: frozenset[str], keys: tuple[int, int, int], handler: Handler | None
    ) -> None:
        self.name = name
        self.arity = arity
        self.flags = flags  # Redis' names, as far as this engine uses them, and `effect` (see `verbatim`)
        self.keys = keys  # positions: first, last, step
        self.handler = handler  # if it returns None, it has blocked its client
        self.fast = "fast" in flags  # its time does not depend on the size of the data
        self.subcommands: dict[bytes, Command] = {}
        # If it changes data, the journal records it unchanged, or as `journal` defines for its name.
        self.verbatim = "write" in flags and "effect" not in flags
        self.calls = self.rejected = self.failed = self.nanoseconds = 0

    def check_arity(self, count: int) -> None:
        """Raise Redis' arity error if `count` arguments, including the name, are wrong."""
        if (self.arity >= 0 and count != self.arity) or count < -self.arity:
            raise CommandError(f"ERR wrong number of arguments for '{self.name}' command")


COMMANDS: dict[bytes, Command] = {}
REFUSED: dict[bytes, bytes] = {}  # Redis commands that this engine does not implement: the reason


def every_command() -> Iterable[Command]:
    """Yield all commands and subcommands."""
    for spec in COMMANDS.values():
        yield spec
        yield from spec.subcommands.values()


def command(
    name: str, arity: int, flags: str = "", keys: tuple[int, int, int] = (0, 0, 0)
) -> Callable[[AnyHandler], AnyHandler]:
    """Register a handler under its name; the first `container|sub` also creates the container."""

    def enter(handler: AnyHandler) -> AnyHandler:
        new_command = Command(name, arity, frozenset(flags.split()), keys, handler)
        parent, bar, child = name.partition("|")
        if bar:
            container = COMMANDS.get(parent.encode())
            if container is None:
                container = COMMANDS[parent.encode()] = Command(parent, -2, frozenset(), (0, 0, 0), None)
            container.subcommands[child.encode()] = new_command
        else:
            COMMANDS[name.encode()] = new_command
        return handler

    return enter


def find_by_name(args: list[bytes]) -> Command | None:
    """Return the command or subcommand that these arguments name, without an arity check; None if it is unknown."""
    spec = COMMANDS.get(args[0].lower())
    return spec.subcommands.get(args[1].lower()) if spec is not None and spec.handler is None and args[1:] else spec


def find(args: list[bytes]) -> Command:
    """Return the command that these arguments name. Raises Redis' errors for an unknown command or a wrong arity."""
    spec = COMMANDS.get(args[0].lower())
    if spec is None:
        why = REFUSED.get(args[0].lower(), b"")
        why = b" (not in this engine: %b)" % why if why else b""
        shown = b""
        for arg in args[1:]:
            if len(shown) >= 128:
                break
            shown += b"'%b' " % arg[: 128 - len(shown)].partition(b"\0")[0]
        raise CommandError(
            b"ERR unknown command '%b'%b, with args beginning with: %b"
            % (args[0].partition(b"\0")[0][:128], why, shown)
        )
    if spec.handler is None:
        if len(args) < 2:
            spec.check_arity(len(args))
        sub = spec.subcommands.get(args[1].lower())
        if sub is None:
            raise CommandError(
                b"ERR unknown subcommand '%b'. Try %b HELP." % (args[1][:128], spec.name.upper().encode())
            )
        spec = sub
    spec.check_arity(len(args))
    return spec


def keys_of(spec: Command, args: list[bytes]) -> list[bytes]:
    """Return the key arguments of a command."""
    first, last, step = spec.keys
    if not first:
        return []
    return args[first : (last if last >= 0 else len(args) + last) + 1 : step]
