"""Commit mark: the value of the key `rstream:committed:{stream}:<group>:<consumer>`.

5-0                            at-least-once: batches up to 5-0 are committed and acknowledged
5-0 begun                      the query begins above 5-0, nothing is committed yet; combines with the words below
5-0 again=9-0                  batches up to 9-0 were committed, the last one runs again; combines with the words below
5-0 noAck                      noAck: batches up to 5-0 are committed, and nothing is ever pending
5-0 holds                      at-most-once: entries above 5-0 must not be trimmed
5-0 holds noAck                the same, for noAck of older versions, whose group is above the entries that are read
5-0 holds above=2-0            the same; it also holds entries above 2-0 that another consumer handed to the query

Earlier versions wrote `given=9-0` after `holds`: the end of a batch that was acknowledged before it was read. This
version accepts it, and does not need it.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.model.ids import InvalidStreamId, StreamId
from spark_streams.model.keys import key_beside

_BEGUN, _AGAIN, _HOLDS, _NO_ACK, _ABOVE, _GIVEN = "begun", "again=", "holds", "noAck", "above=", "given="


@dataclass(frozen=True)
class Mark:
    """up_to: all entries up to this one are committed. held_above: entries above this one are needed, independent of
    the group; None: the group's position and pending list show which entries are needed. no_ack: the query reads
    without a pending list. begun: it has committed nothing, and begins above `up_to`. committed_before: entries up to
    this one were committed, but the checkpoint has lost that: the query reads the entries above `up_to` again."""

    up_to: StreamId
    held_above: StreamId | None = None
    no_ack: bool = False
    begun: bool = False
    committed_before: StreamId | None = None

    @classmethod
    def parse(cls, value: bytes | None) -> Mark | None:
        """Return the mark; None if there is no value, or if this version cannot read it."""
        if value is None:
            return None
        first, *words = value.decode("utf-8", "replace").split(" ")
        try:
            up_to, begun = StreamId.parse(first), words[:1] == [_BEGUN]
            words = words[1:] if begun else words
            committed_before = None
            if words and words[0].startswith(_AGAIN):
                committed_before = StreamId.parse(words.pop(0).removeprefix(_AGAIN))
            if not words:
                return cls(up_to, begun=begun, committed_before=committed_before)
            if words == [_NO_ACK]:
                return cls(up_to, no_ack=True, begun=begun, committed_before=committed_before)
            above, no_ack = up_to, False
            for word in words[1:]:
                if word.startswith(_ABOVE):
                    above = StreamId.parse(word.removeprefix(_ABOVE))
                elif word.startswith(_GIVEN):
                    StreamId.parse(word.removeprefix(_GIVEN))
                elif word == _NO_ACK:
                    no_ack = True
                else:
                    return None
        except InvalidStreamId:
            return None
        return cls(up_to, above, no_ack, begun, committed_before) if words[0] == _HOLDS else None

    def __str__(self) -> str:
        is_present = {
            _BEGUN: self.begun,
            f"{_AGAIN}{self.committed_before}": self.committed_before is not None,
            _HOLDS: self.holds,
            _NO_ACK: self.no_ack,
        }
        words = [str(self.up_to), *[word for word, is_so in is_present.items() if is_so]]
        if self.holds:
            words += [f"{_ABOVE}{self.held_above}" if self.held_above != self.up_to else ""]
        return " ".join(word for word in words if word)

    @property
    def reached(self) -> StreamId:
        """The highest entry that was ever committed: a checkpoint below it is an older copy."""
        return self.up_to if self.committed_before is None else max(self.up_to, self.committed_before)

    @property
    def holds(self) -> bool:
        """Whether entries are needed that the group does not show as pending."""
        return self.held_above is not None


def committed_key(stream: str | bytes, group: str, consumer: str) -> bytes:
    """Return the key of one stream's mark."""
    return key_beside(stream, "committed", group, consumer)
