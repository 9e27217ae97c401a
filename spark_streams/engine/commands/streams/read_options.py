"""The options of XREAD and XREADGROUP, and what they let into a reply."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.engine.commands.arguments import integer_of, syntax_error
from spark_streams.engine.resp.replies import CommandError
from spark_streams.engine.store.node_list import Slice


class ReadOptions:
    """What an XREAD or XREADGROUP asks for."""

    keys: Sequence[bytes] = ()
    ids: Sequence[bytes] = ()
    count: int | None = None
    max_count: int | None = None
    max_size: int | None = None
    block: int | None = None
    group: bytes = b""
    consumer: bytes = b""
    no_ack: bool = False
    claim: int | None = None  # milliseconds


def parse(args: list[bytes], grouped: bool) -> ReadOptions:
    """The options. Raises CommandError."""
    options = ReadOptions()
    has_group = False
    at = 1
    while at < len(args):
        option, more = args[at].lower(), len(args) - at - 1
        if option == b"streams" and more:
            rest = args[at + 1 :]
            if len(rest) % 2:
                raise _unbalanced(grouped)
            half = len(rest) // 2
            options.keys, options.ids = rest[:half], rest[half:]
            break
        if option == b"group" and more >= 2:
            _only_grouped("GROUP", grouped)
            has_group = True
            options.group, options.consumer = args[at + 1], args[at + 2]
            at += 3
        elif option == b"noack":
            _only_grouped("NOACK", grouped)
            options.no_ack = True
            at += 1
        elif more:
            _take_number(options, option, args[at + 1], grouped)
            at += 2
        else:
            raise syntax_error()
    if not options.keys:
        raise syntax_error()
    if grouped and not has_group:
        raise CommandError("ERR Missing GROUP option for XREADGROUP")
    if options.max_count is not None and options.count is not None and options.max_count < options.count:
        raise CommandError("ERR MAXCOUNT must be greater than or equal to COUNT")
    return options


def _take_number(options: ReadOptions, option: bytes, text: bytes, grouped: bool) -> None:
    """An option that has a number behind it. Raises CommandError."""
    if option == b"count":
        options.count = max(integer_of(text), 0) or None
    elif option == b"block":
        options.block = integer_of(text, "ERR timeout is not an integer or out of range")
        if options.block < 0:
            raise CommandError("ERR timeout is negative")
    elif option == b"maxcount":
        options.max_count = _positive("MAXCOUNT", text)
    elif option == b"maxsize":
        options.max_size = _positive("MAXSIZE", text)
    elif option == b"claim":
        _only_grouped("CLAIM", grouped)
        options.claim = integer_of(text, "ERR min-idle-time is not an integer or out of range")
        if options.claim < 0:
            raise CommandError("ERR min-idle-time must be a positive integer")
    else:
        raise syntax_error()


def _unbalanced(grouped: bool) -> CommandError:
    name, wanted = ("xreadgroup", "ID or '>'") if grouped else ("xread", "ID, '+', or '$'")
    return CommandError(f"ERR Unbalanced '{name}' list of streams: for each stream key an {wanted} must be specified.")


def _only_grouped(option: str, grouped: bool) -> None:
    if not grouped:
        raise CommandError(f"ERR The {option} option is only supported by XREADGROUP. You called XREAD instead.")


def _positive(option: str, text: bytes) -> int:
    value = integer_of(text)
    if value <= 0:
        raise CommandError(f"ERR {option} must be a positive integer")
    return value


class Room:
    """How much more one reply may hold: COUNT for each stream, MAXCOUNT and MAXSIZE for all of them.

    MAXSIZE is a soft limit, as in Redis: an entry still goes in while the reply so far is smaller, and one always
    does. The reply so far are its bytes but for the array headers whose numbers are not known yet: that of the whole
    reply and that of the stream at hand.
    """

    __slots__ = ("_entries", "_header", "_here", "_left_in_stream", "_options", "_size")

    def __init__(self, options: ReadOptions, resp: int) -> None:
        self._options = options
        self._entries = 0  # in the reply
        self._here = 0  # of the stream at hand
        self._size = 0
        self._header = 4 if resp == 2 else 0  # `*2` around a stream's name and entries
        self._left_in_stream: int | None = None

    @property
    def full(self) -> bool:
        """Whether no entry of any stream goes in any more."""
        most, size = self._options.max_count, self._options.max_size
        return bool(self._entries) and (
            (most is not None and self._entries >= most) or (size is not None and self._size >= size)
        )

    def begin(self, key: bytes) -> None:
        """The next stream."""
        self._size += self._header + len(b"$%d\r\n" % len(key)) + len(key) + 2
        self._here = 0
        count, most = self._options.count, self._options.max_count
        self._left_in_stream = count
        if most is not None:
            self._left_in_stream = most - self._entries if count is None else min(count, most - self._entries)

    def end(self) -> None:
        """The stream is done: the number of its entries is known."""
        self._size += len(b"*%d\r\n" % self._here)

    @property
    def count(self) -> int | None:
        """How many entries of this stream may still come, by their number; None: any."""
        return self._left_in_stream

    @property
    def sized(self) -> bool:
        """Whether bytes are counted."""
        return self._options.max_size is not None

    def take(self, size: int) -> bool:
        """Whether an entry of so many bytes goes in; if so, it is counted."""
        if self._left_in_stream == 0 or (self._entries and self.sized and self.full):
            return False
        self.took(1, size)
        return True

    def took(self, count: int, size: int = 0) -> None:
        """So many entries went in."""
        self._entries += count
        self._here += count
        self._size += size
        if self._left_in_stream is not None:
            self._left_in_stream -= count

    def cut(self, slices: Sequence[Slice], total: int, extra: int = 0) -> tuple[Sequence[Slice], int]:
        """As much of these entries, each with `extra` bytes, as goes in by size; they fit by count."""
        if not self.sized:
            self.took(total)
            return slices, total
        kept: list[Slice] = []
        count = 0
        for node, low, high in slices:
            upto = low
            while upto < high and self.take(len(node.wire(upto, upto + 1)) + extra):
                upto += 1
            if upto > low:
                kept.append(Slice(node, low, upto))
                count += upto - low
            if upto < high:
                break
        return kept, count
