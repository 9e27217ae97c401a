"""The options of XADD and XTRIM, which Redis parses with one function (`streamParseAddOrTrimArgsOrReply`)."""

from __future__ import annotations

from spark_streams.base.ids import U64_MAX
from spark_streams.engine.commands.arguments import BAD_ID, entry_id, integer_of, syntax_error
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import CommandError
from spark_streams.engine.store import entryid, references
from spark_streams.engine.store.references import Policy
from spark_streams.engine.store.stream import Stream

POLICIES = {policy.value.encode(): policy for policy in Policy}
_IDMP = "ERR syntax error, IDMP/IDMPAUTO "


class AddOptions:
    """Options of an XADD or XTRIM, without fields and values."""

    ms: int | None = None  # of the ID; None: `*`
    seq: int | None = None  # None: `<ms>-*`
    make: bool = True  # not NOMKSTREAM
    producer: bytes | None = None
    message: bytes | None = None  # None: derived from fields and values (IDMPAUTO)
    keep: int | None = None
    min_id: int | None = None
    approximate: bool = False
    limit: int = 0
    policy: Policy = Policy.KEEPREF

    @property
    def trims(self) -> bool:
        """Whether a trimming strategy was specified."""
        return self.keep is not None or self.min_id is not None

    def trim(self, stream: Stream) -> int:
        """Trim the stream. Return how many entries were removed."""
        if not self.trims:
            return 0
        if self.policy is Policy.KEEPREF:
            return stream.trim(self.keep, self.min_id or 0, self.approximate, self.limit)
        return references.trim(stream, self.keep, self.min_id or 0, self.limit, self.policy)


def parse_add_or_trim(engine: Engine, args: list[bytes], adding: bool) -> tuple[AddOptions, int]:
    """Return the options, and the index of the ID. Raises CommandError."""
    options, limit_given, policy = AddOptions(), False, False
    index, last = 2, len(args) - 1
    while index <= last:
        option, more = args[index].lower(), last - index
        if adding and option == b"*":
            break
        if option in (b"maxlen", b"minid") and more:
            index = _threshold(options, args, index)
        elif option == b"limit" and more:
            options.limit = integer_of(args[index + 1])
            if options.limit < 0:
                raise CommandError("ERR The LIMIT argument must be >= 0.")
            limit_given = True
            index += 1
        elif option in POLICIES and not policy:
            options.policy, policy = POLICIES[option], True
        elif adding and option == b"nomkstream":
            options.make = False
        elif adding and ((option == b"idmpauto" and more) or (option == b"idmp" and more >= 2)):
            index = _producer(options, args, index)
        elif adding:
            options.ms, options.seq = _new_id(args[index])
            if options.producer is not None:
                raise CommandError(_IDMP + "can be used only with auto-generated IDs")
            break
        else:
            raise syntax_error()
        index += 1
    if options.limit and not options.trims:
        raise CommandError("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy")
    if not adding and not options.trims:
        raise CommandError("ERR syntax error, XTRIM must be called with a trimming strategy")
    if limit_given and not options.approximate:
        raise CommandError("ERR syntax error, LIMIT cannot be used without the special ~ option")
    if not limit_given and options.approximate:
        options.limit = min(100 * engine.node_limits.entries, 1_000_000) or 10_000
    return options, index


def _threshold(options: AddOptions, args: list[bytes], index: int) -> int:
    """Parse `MAXLEN|MINID [=|~] threshold` at `index`. Return the index of its last word."""
    if options.trims:
        raise CommandError("ERR syntax error, MAXLEN and MINID options at the same time are not compatible")
    by_length = args[index].lower() == b"maxlen"
    options.approximate = False
    if index + 2 < len(args) and args[index + 1] in (b"~", b"="):
        options.approximate = args[index + 1] == b"~"
        index += 1
    if by_length:
        options.keep = integer_of(args[index + 1])
        if options.keep < 0:
            raise CommandError("ERR The MAXLEN argument must be >= 0.")
    else:
        options.min_id = entry_id(args[index + 1])
    return index + 1


def _producer(options: AddOptions, args: list[bytes], index: int) -> int:
    """Parse `IDMPAUTO producer` or `IDMP producer message` at `index`. Return the index of its last word."""
    option = args[index].upper()
    if options.producer is not None:
        raise CommandError(_IDMP + "specified multiple times")
    options.producer = args[index + 1]
    if not options.producer:
        raise CommandError(b"ERR syntax error, %b requires a non-empty producer ID" % option)
    if option == b"IDMPAUTO":
        return index + 1
    options.message = args[index + 2]
    if not options.message:
        raise CommandError("ERR syntax error, IDMP requires a non-empty idempotent ID")
    return index + 2


def _new_id(text: bytes) -> tuple[int, int | None]:
    ms, dash, seq = text.partition(b"-")
    if dash and seq == b"*" and len(text) <= 127:
        try:
            return entryid.number(ms), None
        except entryid.EntryIdError:
            raise CommandError(BAD_ID) from None
    value = entry_id(text)
    return value >> 64, value & U64_MAX
