"""Snapshots of the server while the query runs: which entries are acknowledged. At the end it reads what the sink has.

An entry is acknowledged if the group has received it and it is not pending. A snapshot reads that first and the commit
log later: if the log then lacks the entry's batch, the entry was acknowledged before its commit.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from spark_streams.base.ids import MIN_ID, InvalidStreamId, StreamId
from spark_streams.base.numbers import parse_number
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.replies import is_no_group, is_no_such_key
from spark_streams.connector.wire.session import Session
from spark_streams.connector.wire.xinfo import group_named
from spark_streams.operations.verify.checkpoint_log import CheckpointLog
from spark_streams.operations.verify.history import Added, Place, Row
from spark_streams.operations.verify.judge import Facts, FactsByPlace
from spark_streams.operations.verify.running_query import BAD, RunPlan

_INTERVAL = 0.1  # seconds between snapshots
_PAGE = 5_000  # entries of a reply
_STRANGERS = ("", "0-0")  # place of rows that strangers have written
_NEVER = 2**62  # batch of a row that no batch of the offset log contains


class RunObserver(threading.Thread):
    """Looks again and again until `close`. added: the growing lists of the producers."""

    def __init__(
        self, address: Address, plan: RunPlan, checkpoint: CheckpointLog, added: Sequence[Sequence[Added]]
    ) -> None:
        super().__init__(daemon=True)
        self._session = Session(address, "rstream verify", is_known=True)
        self._plan, self._checkpoint, self._added = plan, checkpoint, added
        self._ending = threading.Event()
        self._looked_at = [0] * len(added)  # entries of each list
        self._open: dict[Place, StreamId] = {}  # entries that no snapshot has shown acknowledged
        self._acknowledged: dict[Place, int] = {}  # with the last committed batch when it was noticed
        self.seen_in_time = 0  # acknowledgements that snapshots have shown while the query ran
        self.written_ms: list[int] = []  # when the server took each row
        self.waits: list[float] = []  # seconds from each entry to its row, by the server's clock
        self.lost_by_server = set[Place]()  # entries that it confirmed, and that their streams do not hold
        self.unconfirmed = set[Place]()  # entries of the streams that no reply has confirmed

    def run(self) -> None:
        while not self._ending.wait(_INTERVAL):
            try:
                self._session.run(self._take_snapshot)
            except RStreamError:
                continue  # after a minute; the last snapshot raises the error, if there is still one

    def close(self) -> None:
        """End the thread, if it runs, and close the connection."""
        self._ending.set()
        if self.is_alive():
            self.join()
        self._session.close()

    def _take_snapshot(self, server: Server) -> None:
        for at, entries in enumerate(self._added):
            new = entries[self._looked_at[at] :]
            self._open.update((entry.place, StreamId.parse(entry.place[1])) for entry in new if entry.place is not None)
            self._looked_at[at] += len(new)
        groups = {stream: (last, pending) for stream, last, pending in self._groups(server)}
        committed = self._checkpoint.committed()
        self._checkpoint.ends()
        for place, entry_id in list(self._open.items()):
            last, pending = groups.get(place[0], (MIN_ID, ()))
            if entry_id <= last and place not in pending:
                self._acknowledged[place] = committed
                del self._open[place]

    def _groups(self, server: Server) -> Iterator[tuple[str, StreamId, set[Place]]]:
        """Yield (stream, last delivered ID, pending entries) of each stream that has the group."""
        streams, group = self._plan.streams, self._plan.prefix
        pending = [("XPENDING", stream, group, "-", "+", 1_000_000) for stream in streams]
        commands = [*(("XINFO", "GROUPS", stream) for stream in streams), *pending]
        replies = server.execute_all(commands, is_no_such_key, is_no_group)
        for stream, about, reply in zip(streams, replies, replies[len(streams) :], strict=False):
            found = group_named(group, about)
            if found is not None and not is_no_group(reply):
                yield stream, found.last_delivered, {(stream, entry[0].decode()) for entry in reply}

    def facts(self) -> list[Facts]:
        """End the thread, take a last snapshot, read both ends of the query, and return all that is known."""
        self.seen_in_time = len(self._acknowledged) if self.is_alive() else 0  # a thread that has failed proves nothing
        self.close()
        self._session.run(self._take_snapshot)
        return self._session.run(self._facts)

    def _facts(self, server: Server) -> list[Facts]:
        plan, rows, added = self._plan, list[Row](), [entry for entries in self._added for entry in entries]
        ends = sorted(self._checkpoint.ends().items())
        ends_of = {stream: [at.get(stream, MIN_ID) for _, at in ends] for stream in plan.streams}
        self.written_ms, self.waits = [], []
        for position, (row_id, fields) in enumerate(_entries(server, plan.out)):
            place, number = _place(fields, plan.streams), parse_number(fields.get("n", ""))
            value = (fields.get("p", ""), -1 if number is None else number)
            at = bisect_left(ends_of.get(place[0], ()), entry := StreamId.parse(place[1]))
            batch = -1 if place == _STRANGERS else ends[at][0] if at < len(ends) else _NEVER
            rows.append(Row(place, value, batch, 0, 0, position, lane=(plan.out, 0, 0)))
            if place != _STRANGERS:
                self.written_ms.append(row_id.ms)
                self.waits.append((row_id.ms - entry.ms) / 1000)
        letters = [fields for _, fields in _entries(server, plan.dead)]
        pending = {place for _, _, places in self._groups(server) for place in places}
        held = {(stream, str(entry_id)) for stream in plan.streams for entry_id, _ in _entries(server, stream)}
        confirmed = {entry.place for entry in added if entry.place is not None}
        self.lost_by_server, self.unconfirmed = confirmed - held, held - confirmed
        # Entries of unknown outcome are known by their rows only: no snapshot has shown their acknowledgement.
        late = {row.place for row in rows} - self._acknowledged.keys() - pending
        acknowledged = self._acknowledged | dict.fromkeys(late, self._checkpoint.committed())
        for place in (facts := FactsByPlace(added, rows)).keys() | acknowledged.keys() | pending:
            facts[place].acknowledged = [acknowledged[place]] if place in acknowledged else []
            facts[place].is_pending = place in pending
        for fields in letters:
            letter = facts[fields.get("dl.stream", ""), fields.get("dl.id", "")]
            letter.letters, letter.is_bad = letter.letters + 1, fields.get("n") == BAD
        return list(facts.values())


def _place(fields: Mapping[str, str], streams: Sequence[str]) -> Place:
    """Return the entry that a row names, or _STRANGERS if no query has written the row."""
    stream, text = fields.get("source", ""), fields.get("entry", "")
    try:
        return (stream, str(StreamId.parse(text))) if stream in streams else _STRANGERS
    except InvalidStreamId:
        return _STRANGERS


def _entries(server: Server, stream: str) -> Iterator[tuple[StreamId, dict[str, str]]]:
    """Yield the entries of a stream as text."""
    start, page = "-", Sequence[object]
    while start:
        page = server.execute("XRANGE", stream, start, "+", "COUNT", _PAGE)
        for entry_id, words in page:
            texts = [word.decode("utf-8", "replace") for word in words]
            yield StreamId.parse(entry_id), dict(zip(texts[0::2], texts[1::2], strict=True))
        start = f"({page[-1][0].decode()}" if len(page) == _PAGE else ""
