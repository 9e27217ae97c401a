"""The command table: name, arity, flags, keys, handler; containers hold their subcommands.

Arity counts the command's name; negative means "at least". Source: Redis' `COMMAND INFO`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from spark_streams.engine.resp.replies import CommandError, Reply

# Called with the engine, the client and the arguments; the table itself needs to know neither.
Handler: TypeAlias = Callable[..., Reply | None]
AnyHandler = TypeVar("AnyHandler", bound=Handler)


class Command:
    """One command or subcommand (`xgroup|create`). A handler that answers None has blocked its client.

    flags: Redis' own words, as far as something here depends on them; and `effect`, see `verbatim`; keys: first, last,
    step.
    """

    def __init__(
        self, name: str, arity: int, flags: frozenset[str], keys: tuple[int, int, int], handler: Handler | None
    ) -> None:
        self.name = name
        self.arity = arity
        self.flags = flags
        self.keys = keys
        self.handler = handler
        self.fast = "fast" in flags  # its time does not depend on what is stored
        self.subcommands: dict[bytes, Command] = {}
        # What it changes is written down as it came, or as `journal` says for its name.
        self.verbatim = "write" in flags and "effect" not in flags
        self.calls = self.rejected = self.failed = self.nanoseconds = 0

    def check_arity(self, count: int) -> None:
        """Raises Redis' arity error when `count` arguments, the name included, are wrong."""
        if (self.arity >= 0 and count != self.arity) or count < -self.arity:
            raise CommandError(f"ERR wrong number of arguments for '{self.name}' command")


COMMANDS: dict[bytes, Command] = {}
REFUSED: dict[bytes, bytes] = {}  # commands of Redis that this engine does not have: the reason


def every_command() -> Iterable[Command]:
    """All commands and subcommands."""
    for spec in COMMANDS.values():
        yield spec
        yield from spec.subcommands.values()


def command(
    name: str, arity: int, flags: str = "", keys: tuple[int, int, int] = (0, 0, 0)
) -> Callable[[AnyHandler], AnyHandler]:
    """Enter a handler under its name; `container|sub` makes the container on first mention."""

    def enter(handler: AnyHandler) -> AnyHandler:
        made = Command(name, arity, frozenset(flags.split()), keys, handler)
        parent, bar, child = name.partition("|")
        if bar:
            container = COMMANDS.get(parent.encode())
            if container is None:
                container = COMMANDS[parent.encode()] = Command(parent, -2, frozenset(), (0, 0, 0), None)
            container.subcommands[child.encode()] = made
        else:
            COMMANDS[name.encode()] = made
        return handler

    return enter


def named_by(args: list[bytes]) -> Command | None:
    """The command that these arguments name, whatever their number."""
    spec = COMMANDS.get(args[0].lower())
    return spec.subcommands.get(args[1].lower()) if spec is not None and spec.handler is None and args[1:] else spec


def find(args: list[bytes]) -> Command:
    """The command that these arguments name. Raises Redis' errors for an unknown one or a wrong count."""
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
    """The key arguments, by the spec's positions."""
    first, last, step = spec.keys
    if not first:
        return []
    return args[first : (last if last >= 0 else len(args) + last) + 1 : step]
