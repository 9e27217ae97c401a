"""Commit mark: the value of the key `rstream:committed:{stream}:<group>:<consumer>`.

5-0                  batches up to 5-0 are committed and acknowledged
5-0 begun            the query begins above 5-0, nothing is committed yet; combines with the words below
5-0 again=9-0        batches up to 9-0 were committed, the last one runs again; combines with the words below
5-0 noAck            noAck: batches up to 5-0 are committed, and nothing is ever pending
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.model.ids import InvalidStreamId, StreamId
from spark_streams.model.keys import key_beside

_BEGUN, _AGAIN, _NO_ACK = "begun", "again=", "noAck"


@dataclass(frozen=True)
class Mark:
    """up_to: all entries up to this one are committed. no_ack: the query reads without a pending list. begun: it has
    committed nothing, and begins above `up_to`. committed_before: entries up to this one were committed, but the
    checkpoint has lost that: the query reads the entries above `up_to` again."""

    up_to: StreamId
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
        except InvalidStreamId:
            return None
        return cls(up_to, words == [_NO_ACK], begun, committed_before) if words in ([], [_NO_ACK]) else None

    def __str__(self) -> str:
        is_present = {
            _BEGUN: self.begun,
            f"{_AGAIN}{self.committed_before}": self.committed_before is not None,
            _NO_ACK: self.no_ack,
        }
        return " ".join([str(self.up_to), *[word for word, is_so in is_present.items() if is_so]])

    @property
    def reached(self) -> StreamId:
        """The highest entry that was ever committed: a checkpoint below it is an older copy."""
        return self.up_to if self.committed_before is None else max(self.up_to, self.committed_before)


def committed_key(stream: str | bytes, group: str, consumer: str) -> bytes:
    """Return the key of one stream's mark."""
    return key_beside(stream, "committed", group, consumer)
