"""The options of XREAD and XREADGROUP, and the limits of their reply."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.engine.commands.command_arguments import integer_of, syntax_error
from spark_streams.engine.resp.wire_replies import CommandError
from spark_streams.engine.store.node_list import Slice


class ReadArguments:
    """Options of an XREAD or XREADGROUP."""

    keys: Sequence[bytes] = ()
    ids: Sequence[bytes] = ()
    count: int | None = None
    max_count: int | None = None
    max_size: int | None = None
    block: int | None = None
    group: bytes = b""
    consumer: bytes = b""
    makes_pending: bool = True  # new entries become pending for the consumer; False: NOACK
    claim: int | None = None  # milliseconds


def parse(args: list[bytes], grouped: bool) -> ReadArguments:
    """Return the options. Raises CommandError."""
    options = ReadArguments()
    has_group = False
    index = 1
    while index < len(args):
        option, more = args[index].lower(), len(args) - index - 1
        if option == b"streams" and more:
            stream_args = args[index + 1 :]
            if len(stream_args) % 2:
                raise _unbalanced(grouped)
            half = len(stream_args) // 2
            options.keys, options.ids = stream_args[:half], stream_args[half:]
            break
        if option == b"group" and more >= 2:
            _only_grouped("GROUP", grouped)
            has_group = True
            options.group, options.consumer = args[index + 1], args[index + 2]
            index += 3
        elif option == b"noack":
            _only_grouped("NOACK", grouped)
            options.makes_pending = False
            index += 1
        elif more:
            _take_number(options, option, args[index + 1], grouped)
            index += 2
        else:
            raise syntax_error()
    if not options.keys:
        raise syntax_error()
    if grouped and not has_group:
        raise CommandError("ERR Missing GROUP option for XREADGROUP")
    if options.max_count is not None and options.count is not None and options.max_count < options.count:
        raise CommandError("ERR MAXCOUNT must be greater than or equal to COUNT")
    return options


def _take_number(options: ReadArguments, option: bytes, text: bytes, grouped: bool) -> None:
    """Set an option that has a number as its argument. Raises CommandError."""
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
    name, id_forms = ("xreadgroup", "ID or '>'") if grouped else ("xread", "ID, '+', or '$'")
    return CommandError(
        f"ERR Unbalanced '{name}' list of streams: for each stream key an {id_forms} must be specified."
    )


def _only_grouped(option: str, grouped: bool) -> None:
    if not grouped:
        raise CommandError(f"ERR The {option} option is only supported by XREADGROUP. You called XREAD instead.")


def _positive(option: str, text: bytes) -> int:
    value = integer_of(text)
    if value <= 0:
        raise CommandError(f"ERR {option} must be a positive integer")
    return value


class ReplyQuota:
    """How much more a reply may hold: COUNT for each stream, MAXCOUNT and MAXSIZE for all streams together.

    MAXSIZE is a soft limit, as in Redis: an entry is added while the reply so far is smaller, and at least one entry is
    returned. The size so far is the bytes of the reply without two array headers whose numbers are not known yet: that
    of the whole reply and that of the current stream.
    """

    __slots__ = ("_entries", "_header", "_options", "_remaining_in_stream", "_size", "_stream_entries")

    def __init__(self, options: ReadArguments, resp: int) -> None:
        self._options = options
        self._entries = 0  # entries in the reply
        self._stream_entries = 0  # entries of the current stream
        self._size = 0
        self._header = 4 if resp == 2 else 0  # `*2` before a stream's name and entries
        self._remaining_in_stream: int | None = None

    @property
    def full(self) -> bool:
        """Whether no further entry of any stream fits."""
        max_count, size = self._options.max_count, self._options.max_size
        return bool(self._entries) and (
            (max_count is not None and self._entries >= max_count) or (size is not None and self._size >= size)
        )

    def begin_stream(self, key: bytes) -> None:
        """Begin the next stream."""
        self._size += self._header + len(b"$%d\r\n" % len(key)) + len(key) + 2
        self._stream_entries = 0
        count, max_count = self._options.count, self._options.max_count
        self._remaining_in_stream = count
        if max_count is not None:
            self._remaining_in_stream = (
                max_count - self._entries if count is None else min(count, max_count - self._entries)
            )

    def end_stream(self) -> None:
        """End the stream: the number of its entries is known."""
        self._size += len(b"*%d\r\n" % self._stream_entries)

    @property
    def count(self) -> int | None:
        """Number of entries of this stream that still fit, by count; None: no limit."""
        return self._remaining_in_stream

    @property
    def sized(self) -> bool:
        """Whether bytes are limited."""
        return self._options.max_size is not None

    def take_entry(self, size: int) -> bool:
        """Whether an entry of this size fits; if it does, count it."""
        if self._remaining_in_stream == 0 or (self._entries and self.sized and self.full):
            return False
        self.count_entries(1, size)
        return True

    def count_entries(self, count: int, size: int = 0) -> None:
        """Count entries that were added."""
        self._entries += count
        self._stream_entries += count
        self._size += size
        if self._remaining_in_stream is not None:
            self._remaining_in_stream -= count

    def cut(self, slices: Sequence[Slice], total: int, extra: int = 0) -> tuple[Sequence[Slice], int]:
        """Return as many of these entries, each with `extra` bytes, as fit by size; by count they all fit."""
        if not self.sized:
            self.count_entries(total)
            return slices, total
        fitting: list[Slice] = []
        count = 0
        for node, low, high in slices:
            upto = low
            while upto < high and self.take_entry(len(node.wire(upto, upto + 1)) + extra):
                upto += 1
            if upto > low:
                fitting.append(Slice(node, low, upto))
                count += upto - low
            if upto < high:
                break
        return fitting, count
