"""The options of XADD and XTRIM, which Redis reads with one function (`streamParseAddOrTrimArgsOrReply`)."""

from __future__ import annotations

from spark_streams.engine.commands.arguments import BAD_ID, entry_id, integer_of, syntax_error
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import CommandError
from spark_streams.engine.store import entryid, references
from spark_streams.engine.store.references import Policy
from spark_streams.engine.store.stream import Stream
from spark_streams.model.ids import U64_MAX

POLICIES = {policy.value.encode(): policy for policy in Policy}
_IDMP = "ERR syntax error, IDMP/IDMPAUTO "


class AddOptions:
    """What an XADD or XTRIM asks for besides fields and values."""

    ms: int | None = None  # of the id; None: `*`
    seq: int | None = None  # None: `<ms>-*`
    make: bool = True  # not NOMKSTREAM
    producer: bytes | None = None
    message: bytes | None = None  # None: made of fields and values (IDMPAUTO)
    keep: int | None = None
    min_id: int | None = None
    approximate: bool = False
    limit: int = 0
    policy: Policy = Policy.KEEPREF

    @property
    def trims(self) -> bool:
        """Whether a trimming strategy is given."""
        return self.keep is not None or self.min_id is not None

    def trim(self, stream: Stream) -> int:
        """Trim the stream; how many entries went."""
        if not self.trims:
            return 0
        if self.policy is Policy.KEEPREF:
            return stream.trim(self.keep, self.min_id or 0, self.approximate, self.limit)
        return references.trim(stream, self.keep, self.min_id or 0, self.limit, self.policy)


def parse_add_or_trim(engine: Engine, args: list[bytes], adding: bool) -> tuple[AddOptions, int]:
    """The options, and where the id stands. Raises CommandError."""
    found, limit_given, policy = AddOptions(), False, False
    at, last = 2, len(args) - 1
    while at <= last:
        option, more = args[at].lower(), last - at
        if adding and option == b"*":
            break
        if option in (b"maxlen", b"minid") and more:
            at = _threshold(found, args, at)
        elif option == b"limit" and more:
            found.limit = integer_of(args[at + 1])
            if found.limit < 0:
                raise CommandError("ERR The LIMIT argument must be >= 0.")
            limit_given = True
            at += 1
        elif option in POLICIES and not policy:
            found.policy, policy = POLICIES[option], True
        elif adding and option == b"nomkstream":
            found.make = False
        elif adding and ((option == b"idmpauto" and more) or (option == b"idmp" and more >= 2)):
            at = _producer(found, args, at)
        elif adding:
            found.ms, found.seq = _new_id(args[at])
            if found.producer is not None:
                raise CommandError(_IDMP + "can be used only with auto-generated IDs")
            break
        else:
            raise syntax_error()
        at += 1
    if found.limit and not found.trims:
        raise CommandError("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy")
    if not adding and not found.trims:
        raise CommandError("ERR syntax error, XTRIM must be called with a trimming strategy")
    if limit_given and not found.approximate:
        raise CommandError("ERR syntax error, LIMIT cannot be used without the special ~ option")
    if not limit_given and found.approximate:
        found.limit = min(100 * engine.node_limits.entries, 1_000_000) or 10_000
    return found, at


def _threshold(found: AddOptions, args: list[bytes], at: int) -> int:
    """`MAXLEN|MINID [=|~] threshold` at `at`; where its last word stands."""
    if found.trims:
        raise CommandError("ERR syntax error, MAXLEN and MINID options at the same time are not compatible")
    by_length = args[at].lower() == b"maxlen"
    found.approximate = False
    if at + 2 < len(args) and args[at + 1] in (b"~", b"="):
        found.approximate = args[at + 1] == b"~"
        at += 1
    if by_length:
        found.keep = integer_of(args[at + 1])
        if found.keep < 0:
            raise CommandError("ERR The MAXLEN argument must be >= 0.")
    else:
        found.min_id = entry_id(args[at + 1])
    return at + 1


def _producer(found: AddOptions, args: list[bytes], at: int) -> int:
    """`IDMPAUTO producer` or `IDMP producer message` at `at`; where its last word stands."""
    option = args[at].upper()
    if found.producer is not None:
        raise CommandError(_IDMP + "specified multiple times")
    found.producer = args[at + 1]
    if not found.producer:
        raise CommandError(b"ERR syntax error, %b requires a non-empty producer ID" % option)
    if option == b"IDMPAUTO":
        return at + 1
    found.message = args[at + 2]
    if not found.message:
        raise CommandError("ERR syntax error, IDMP requires a non-empty idempotent ID")
    return at + 2


def _new_id(text: bytes) -> tuple[int, int | None]:
    ms, dash, seq = text.partition(b"-")
    if dash and seq == b"*" and len(text) <= 127:
        try:
            return entryid.number(ms), None
        except entryid.EntryIdError:
            raise CommandError(BAD_ID) from None
    value = entry_id(text)
    return value >> 64, value & U64_MAX
