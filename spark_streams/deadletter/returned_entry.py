"""An entry that came back for another try: what it was, and what is known of the tries before.

While it waits, and where it comes back, it is written as a dead letter is (envelope): its own fields, and behind them
what happened. `dl.deliveries` says how often it was tried. What it was, its own mark of a redrive included, is all in
there.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.deadletter.envelope import MARK, NAMES, Mark, opened, past_of
from spark_streams.errors import StreamStateError


@dataclass(frozen=True)
class ReturnedEntry:
    """fields: as the original entry had them; stream, id: where it stood; attempts: how often it was tried before;
    first_failed: when the first one failed."""

    fields: Sequence[bytes]
    stream: str
    id: str
    attempts: int
    first_failed: str

    @classmethod
    def of(cls, where: str, entry: bytes, fields: Sequence[bytes]) -> ReturnedEntry:
        """where, entry: its stream now, and its id there, for the message. Raises StreamStateError for an entry that
        was put there by somebody else."""
        own, envelope = opened(fields)
        if len(envelope) < len(NAMES) or not (envelope["stream"] and envelope["id"]):
            raise not_one_of_ours(where, entry)
        return cls(
            with_mark(own, envelope),
            envelope["stream"],
            envelope["id"],
            attempts_in(envelope["deliveries"]),
            envelope["first-failed"],
        )

    def told(self) -> dict[str, str]:
        """What the envelope of its next dead letter says of it whatever happens."""
        return {"stream": self.stream, "id": self.id, "first-failed": self.first_failed}


def attempts_in(deliveries: str) -> int:
    """How often an entry was tried that had been tried at all."""
    return max(1, int(deliveries)) if deliveries.isascii() and deliveries.isdigit() else 1


def with_mark(own: Sequence[bytes], envelope: Mapping[str, str]) -> Sequence[bytes]:
    """The entry's own fields, with the mark that an entry which was sent back had as its last one."""
    mark = mark_of(envelope)
    return own if mark is None or past_of(own) == mark else [*own, MARK, bytes(mark)]


def mark_of(envelope: Mapping[str, str]) -> Mark | None:
    """The mark that the envelope was told of; None where the entry had not been sent back."""
    if envelope["redrives"] in ("", "0"):
        return None
    return Mark(int(envelope["redrives"]), envelope["first-failed"], envelope["previous"])


def not_one_of_ours(where: str, entry: bytes) -> StreamStateError:
    """The error for an entry of a stream that only the product writes to."""
    return StreamStateError(
        f"entry {entry.decode('utf-8', 'replace')} of stream {where!r} was put there by somebody else: what comes back "
        f"for another try has an envelope; remove it (XDEL {where} {entry.decode('utf-8', 'replace')})"
    )
