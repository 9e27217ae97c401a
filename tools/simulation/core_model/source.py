"""Model of the driver side of a Redis Streams source: one stream, one group, one query.

Facts on the server: the group (last-delivered ID D, entries-read), the pending list of our consumer, the mark, and with
maxDeliveries the record. Facts in the checkpoint: one Offset per batch. Nothing is kept elsewhere: a new process with
the same Offset goes on, whichever command was the last one of the old process.

Every server command goes through `_do`. A MULTI is one command. The product sends XREADGROUP with CLIENT REPLY SKIP;
the model ignores its reply.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.source.commit_mark import SOUGHT, Mark
from tools.simulation.core_model.facts import (
    Look,
    Offset,
    Range,
    as_range,
    at_end,
    has_forgotten,
    is_older,
    is_unmarked,
    lost_above,
    milliseconds,
    moved_since,
    next_token,
    ordinal_in_shared_group,
    recounted,
    runs_of,
    unacknowledged,
    without,
)

MANY = 10_000
PAGE = 3  # IDs of one XACK. The product uses thousands; a small page gives more crash points


class RefusedError(Exception):
    """The server has refused a command: the query fails, and starts again."""


class StopError(Exception):
    """A strict query stops: outcome, number of lost entries (at least)."""


class Names(NamedTuple):
    """Names on the server: the stream, our group and consumer, and the keys beside them."""

    stream: str
    group: str
    consumer: str
    mark: str
    record: str
    dead: str


class Source:
    """The driver of one process. report(outcome, count): what a lenient query logs; strict: failOnDataLoss;
    claims(consumer): whether to claim from it; max_deaths: runs that a batch may kill (maxDeliveries), None: unlimited;
    prefetch: it reserves entries ahead."""

    def __init__(
        self, server: Any, names: Names, report: Callable[[str, int], None],
        strict: bool = True, limit: int = 5, claims: Callable[[str], bool] = lambda name: False,
        max_deaths: int | None = None, prefetch: bool = True,
    ) -> None:  # fmt: skip
        self._server, self._report = server, report
        self._key, self._group, self._us, self._mark_key, self._record_key, self._dead_key = names
        self.strict, self._limit, self._claims, self._max_deaths = strict, limit, claims, max_deaths
        self._prefetch = prefetch
        self._background: Iterator[int] = iter(())
        self._first_look = Look(False)  # where it begins without a batch, as Spark has asked
        self._begins: Offset | None = None  # where this process has begun, if Spark had logged no batch
        self._adjusted: tuple[str, Offset] | None = None  # token of the checkpoint's offset, the offset after a repair
        self._is_corrected = False  # whether an offset must keep a correction
        self._live = ""  # token of the batch that this process has made or planned
        self._knows = False  # that no checkpoint is newer: it has made a trigger
        self._settled = ""  # token of the last batch that this process has acknowledged completely
        # highest XDEL in a shared group that this process has reported, or that came before it began without a batch
        self._told: StreamId = MIN_ID

    # -- Spark's calls -----------------------------------------------------------------------------------------------

    def initial_offset(self) -> Offset:
        """Return where the query begins without a batch: at its mark if an earlier process has begun there, and has
        reserved entries above it; otherwise where the group stands. Spark asks for it also if a first batch is logged,
        so it changes nothing."""
        self._first_look = look = self._look()
        mark = look.mark
        is_reserved = look.has_group and mark and mark.is_begin and self._pending(Range(mark.id, MAX_ID))
        position = min(mark.id, look.delivered) if mark and is_reserved else look.delivered
        return Offset(position, None, 0, 0, "")

    def _begun(self, position: StreamId) -> Offset:
        """Return the account with which the query begins, until its first batch is logged. Create the group if it is
        missing, with our consumer and the mark in one MULTI.

        The mark of a query of which no batch was logged keeps the account. Otherwise it begins anew: what is pending up
        to the position are old entries, everything else is acknowledged, or was lost before."""
        look = self._look()
        mark = look.mark
        self._told = look.deleted
        member = ["XGROUP", "CREATECONSUMER", self._key, self._group, self._us]
        if not look.has_group:
            is_gone = self._first_look.exists and not look.exists
            if mark is not None or is_gone:  # an earlier process has created the group, or Spark has asked before
                self._find("GROUP_MISSING" if look.exists else "STREAM_MISSING", 0)
            before = self._first_look if self._first_look.added <= look.added else look
            start = Offset(MIN_ID, before.added - before.length, before.added, 0, "")
            create = ["XGROUP", "CREATE", self._key, self._group, "0", *(() if look.exists else ("MKSTREAM",))]
            self._do(create, member, ["SET", self._mark_key, str(start.mark())])
            return start
        if mark is not None and mark.id == position and (known := mark.read_at_begin) is not None:
            return Offset(position, known, min(known, look.added), 0, "")
        read, missed = self._read_before(position, look)
        name = (mark.number, SOUGHT if mark.is_seek else mark.token) if mark and mark.number else (0, "")
        start = Offset(position, read, look.added, *name, missed)
        self._do(member, ["SET", self._mark_key, str(start.mark())])
        return start

    def _read_before(self, position: StreamId, look: Look) -> tuple[int | None, int]:
        """Return how many entries were ever added up to a position (None: the group is shared), and how many lost ones
        the server does not count."""
        end = position if not look.others else look.delivered
        stream, above = self._do(["XINFO", "STREAM", self._key], _xrange(self._key, Range(end, MAX_ID)))
        read = _pairs(stream)["entries-added"] - len(above)
        if not look.others:
            return read, 0
        return None, 0 if look.entries_read is None else read - look.entries_read

    def latest_offset(self, checkpoint: Offset) -> Offset:
        """Return the end of the next batch, or `checkpoint` if there is nothing to read. `checkpoint` is committed."""
        self.finish_background()
        if not checkpoint.checkpoint and self._begins is None:
            self._begins = self._begun(checkpoint.position)
            self._adjusted = (checkpoint.token, self._begins)
        start, look = self._reconciled(checkpoint)
        if not look.is_member:  # deleted while the group was at the position; XREADGROUP creates it only with an entry
            self._do(["XGROUP", "CREATECONSUMER", self._key, self._group, self._us])
        above = self._above(start, look)
        # Of a query that begins, nothing is to be acknowledged. The server may have been restored.
        is_settled = not start.checkpoint or (self._settled == start.token and look.mark == start.mark())
        expected = len(above) + (start.new.count if start.new and not is_settled else 0)
        has_old = look.ours > expected or bool(self._to_claim(look))
        may_wait = self._live == start.token and not (start.old or start.guarded or has_old)
        if not is_settled and not may_wait:
            self._acknowledge_now(start, look.mark)
            is_settled = True
        old: list[StreamId] = []
        pieces: list[Range] = []
        left = start.left
        if is_settled:
            piece = self._next_piece(start)
            if piece is not None:
                return self._made(replace(start, new=None, owed=None, old=(piece,), left=True), start, look)
            if consumers := self._to_claim(look):
                self._claim(consumers)
                look = self._look()
                above = self._above(start, look)  # claimed entries may lie above the position
            suspects = [as_range(s) for s in self._record()["suspects"]]
            found = self._pending(Range(MIN_ID, start.position, until=look.until))
            old = [i for i in found if not any(s.after < i <= s.last for s in suspects)][: self._limit]
            pieces = runs_of(old, suspects, look.until)
            left = bool(suspects) or look.ours - len(above) > len(old)
        new, after = self._new_entries(start, look, above, self._limit - len(old))
        if not pieces and not new:
            held = 0 if is_settled else sum(entries.count for entries in start.ranges)
            done = 0 if is_settled else self._acknowledge_now(start, look.mark)
            if not self._is_corrected:
                # Others have taken entries of the batch: as many that were handed over seemed to be these.
                return self.latest_offset(checkpoint) if look.others and done < held else checkpoint
            # An empty batch keeps the correction: otherwise a strict query would stop again.
            return self._made(replace(start, new=None, old=(), owed=None, left=left), start, after)
        owed = None if is_settled else start.new
        position = new.last if new else start.position
        end = replace(start, new=new, old=tuple(pieces), owed=owed, position=position, left=left)
        end = self._made(end, start, after)
        if not is_settled:
            self._background = self._background_work(start, look.mark)
        return end

    def plan(self, checkpoint: Offset, end: Offset) -> tuple[Offset, list[Range]]:
        """Return the batch as its tasks read it, and their ranges. A batch that runs again is compared with the server
        first. Others in the group may have claimed entries of it, unless they were acknowledged with it."""
        if end.number == 1:
            self._begin_batches(end)
        is_again = end.token != self._live
        if is_again:
            self._require_newest(checkpoint, end)
            look = self._look()
            if (look.others or look.released) and look.mark != end.mark():
                end = replace(end, read=None)
        if not end.guarded:
            return end, self._held(end) if is_again else end.ranges
        record = self._record()
        batches = {t: b for t, b in record.get("batches", {}).items() if t in (checkpoint.token, end.token)}
        attempts, is_aside = batches.get(end.token, (0, False))
        changes: list[list[str]] = []
        if not is_aside and self._max_deaths is not None and attempts >= self._max_deaths:
            is_aside = True
            record["suspects"], changes = self._halved(record.get("suspects", []), end)
        batches[end.token] = (attempts + 1, is_aside)
        self._do(["SET", self._record_key, json.dumps({**record, "batches": batches})], *changes)
        return end, [] if is_aside else self._held(end) if is_again else end.ranges

    def _begin_batches(self, end: Offset) -> None:
        """Replace the mark of a begin: Spark has logged the first batch above it. The query may now be killed while it
        acknowledges the batch, and to a new checkpoint the mark would prove that nothing is acknowledged."""
        mark = _mark(self._do(["GET", self._mark_key])[0])
        if mark is None:
            return
        if mark.is_begin or (mark.is_seek and end.new is not None and end.new.after == mark.id):
            self._do(["SET", self._mark_key, str(Mark.of_first_batch(mark.id, end.token))])

    def read(self, end: Offset, batch: list[Range]) -> dict[StreamId, list[str]]:
        """What the tasks of the batch read: the fields of its entries. The new range of a query that is alone is read
        from the stream, all others by the pending list. A missing entry is lost; one too many comes from an older state
        of the server."""
        rows: dict[StreamId, list[str]] = {}
        for entries in batch:
            if not entries.count:
                continue
            found = {StreamId.parse(row[0]): row[1] for row in self._do(_xrange(self._key, entries))[0]}
            if not self._is_in_stream(entries, end):
                pending = set(self._pending(entries))
                found = {entry: fields for entry, fields in found.items() if entry in pending}
            if len(found) < entries.count:
                self._find("ENTRIES_LOST", entries.count - len(found))
            if len(found) > max(r.count for r in end.ranges if r[:2] == entries[:2]):
                self._find("SERVER_RESTORED", 0)
            rows |= found
        return rows

    def commit(self, end: Offset) -> None:
        """Spark may call it late or never: nothing depends on it. latest_offset acknowledges."""

    def background_step(self) -> bool:
        """Run one command of the background worker. Return whether there was one."""
        return next(self._background, False) is not False

    def finish_background(self) -> None:
        """Run the rest of the background work."""
        while self.background_step():
            pass

    # -- choosing entries --------------------------------------------------------------------------------------------

    def _above(self, start: Offset, look: Look) -> list[StreamId]:
        """Entries pending for us above the position: reserved ahead, or left by a crash. Bounded by D: after the group
        was set back, higher ones are delivered again."""
        is_any = look.delivered > start.position
        return self._pending(Range(start.position, look.delivered, until=look.until)) if is_any else []

    def _new_entries(self, start: Offset, look: Look, above: list[StreamId], limit: int) -> tuple[Range | None, Look]:
        """Take what is pending above the position, otherwise reserve new entries. The range ends at the last one, or at
        D if all are taken."""
        if limit <= 0:
            return None, look
        if len(above) > limit:
            return Range(start.position, above[limit - 1], limit, look.until), look
        wanted = 0 if above else limit
        look = self._look() if wanted else look  # what was acknowledged meanwhile is not pending
        while wanted > 0:
            self._do(self._xreadgroup(wanted))
            before, look = look, self._look()
            gained = look.ours - before.ours
            held = self._pending(Range(start.position, look.delivered))  # after a set-back, some were pending before
            wanted = 0 if gained <= 0 or look.delivered >= look.last else limit - len(held)
            if look.delivered == before.delivered == start.position and look.delivered < look.last:
                self._do(self._xreadgroup(1))  # with its reply, to see an error
                look = self._look()
        if look.delivered <= start.position:
            return None, look  # the group is at the position, or somebody has just set it back
        new = Range(start.position, look.delivered, 0, look.until)
        ids = self._pending(new)
        if len(ids) > limit:  # the group was set back: some were pending before
            return Range(start.position, ids[limit - 1], limit, look.until), look
        return (new._replace(count=len(ids)) if ids else None), look

    def _made(self, end: Offset, start: Offset, look: Look) -> Offset:
        """Name the batch. Its account is exact if the query was alone before and after it reserved the entries."""
        new = end.new.count if end.new else 0
        read = None if start.read is None or look.others else min(start.read + new, look.added)
        missed = start.missed
        if look.entries_read is not None and read is not None and end.position == look.delivered:
            missed = read - look.entries_read
        checkpoint = start.checkpoint or secrets.token_hex(4)
        self._live, self._is_corrected = next_token(checkpoint), False
        group_read = 0
        if read is None and look.entries_read is not None:
            known = start.group_read if start.read is None else start.read
            group_read = look.entries_read + missed if end.position == look.delivered else known
        return replace(
            end, number=start.number + 1, token=self._live, checkpoint=checkpoint, added=look.added, read=read,
            missed=missed, group_read=group_read, left=end.left or read is None,
            guarded=self._max_deaths is not None,
        )  # fmt: skip

    def _to_claim(self, look: Look) -> list[str]:
        """Consumers with entries to claim; "" for released entries."""
        return [name for name, pending in look.others if pending and self._claims(name)] + [""] * bool(look.released)

    def _claim(self, consumers: list[str]) -> None:
        """Claim for our own consumer. Below the position they are old entries, above it they are as reserved:
        a crash after XCLAIM changes nothing. Removed entries are reported before XCLAIM drops them from the list."""
        for consumer in consumers:
            rows = self._do(["XPENDING", self._key, self._group, "-", "+", MANY])[0]
            ids = [StreamId.parse(row[0]) for row in rows if row[1] == consumer][: self._limit]
            if not ids:
                continue
            there = {StreamId.parse(row[0]) for row in self._do(["XRANGE", self._key, str(ids[0]), str(ids[-1])])[0]}
            if lost := len(set(ids) - there):
                self._find("ENTRIES_LOST", lost)
            self._do(["XCLAIM", self._key, self._group, self._us, 0, *map(str, ids), "JUSTID"])

    # -- acknowledging -----------------------------------------------------------------------------------------------

    def _acknowledge_now(self, start: Offset, mark: Mark | None) -> int:
        """Acknowledge a committed batch. Return how many entries it still had."""
        return sum(self._acknowledge(start, mark))

    def _acknowledge(self, start: Offset, mark: Mark | None) -> Iterator[int]:
        """Acknowledge a committed batch in pages, then set the mark. Yield after each command how many entries it has
        acknowledged. After a crash all ranges are listed again: what was acknowledged is no longer in the list. A batch
        that the record does not prove read stays pending: better read again than acknowledged unread. Before the first
        batch of a checkpoint, nothing is committed.
        """
        if not start.checkpoint:
            return
        record = self._record()
        attempts, is_aside = record.get("batches", {}).get(start.token, (0, False))
        ranges = unacknowledged(start, mark)
        ids = sorted({i for entries in ranges for i in self._pending(entries)})
        if start.guarded and (is_aside or not attempts):
            ids = [i for i in ids if not any(r.after < i <= r.last for r in start.ranges)]
        for first in range(0, len(ids), PAGE):
            page = ids[first : first + PAGE]
            self._do(["XACK", self._key, self._group, *map(str, page)])
            yield len(page)
        is_sought = mark is not None and mark.is_seek  # a kill before the query has moved there would hide it
        commands = [] if is_sought else [["SET", self._mark_key, str(start.mark())]]
        if attempts and not is_aside and record["suspects"]:
            suspects = without(record["suspects"], start.old)
            commands.append(["SET", self._record_key, json.dumps({**record, "suspects": suspects})])
        if commands:
            self._do(*commands)
        yield 0
        self._settled = start.token

    def _background_work(self, start: Offset, mark: Mark | None) -> Iterator[int]:
        """While tasks run: reserve the next batch ahead (it stays pending above the position), then acknowledge."""
        if self._prefetch and not self._max_deaths:
            look = self._look()
            yield 0
            if not look.others:
                self._do(self._xreadgroup(self._limit))
                yield 0
        yield from self._acknowledge(start, mark)

    # -- comparing checkpoint and server -----------------------------------------------------------------------------

    def _reconciled(self, checkpoint: Offset) -> tuple[Offset, Look]:
        """Compare until nothing is found. Return the start of the next batch and the state of the server. If the
        query is alone, a second look confirms a finding: pending entries are listed after the look."""
        start = self._adjusted[1] if self._adjusted and self._adjusted[0] == checkpoint.token else checkpoint
        for _ in range(20):
            look = self._as_left(start, self._look())
            if (moved := moved_since(start, look)) is not None:
                start = self._moved(start, moved, look)
                self._adjusted = (checkpoint.token, start)
                look = self._look()
            start = recounted(start, look, self._read_before) if has_forgotten(start, look) else start
            start = at_end(start, look)
            self._adjusted = (checkpoint.token, start)
            outcome, count = self._compare(start, look)
            if not outcome:
                if look.mark is None and look.others and start.number and not start.checkpoint:
                    self._do(["SET", self._mark_key, str(start.mark())])
                self._knows = True
                return start, look
            if start.read is not None and not look.others:
                look = self._look()
                if self._compare(start, look) != (outcome, count):
                    continue
            self._find(outcome, count)
            before, start = start, self._repaired(outcome, count, start, look, checkpoint)
            self._is_corrected |= start.account() != before.account()
            self._adjusted = (checkpoint.token, start)
        raise AssertionError(f"no end of repairs: {outcome}")

    def _moved(self, start: Offset, moved: Offset, look: Look) -> Offset:
        """Acknowledge what is committed, and go on where an operator or an earlier run has moved the group."""
        held = [i for entries in unacknowledged(start, look.mark) for i in self._pending(entries)]
        if self._settled != start.token:
            self._acknowledge_now(start, look.mark)
        if moved.read is None and not look.others:
            moved = replace(moved, read=self._read_before(moved.position, look)[0])
        self._put_group("", moved)
        self._is_corrected |= not held or moved.position != start.position
        return moved

    def _as_left(self, start: Offset, look: Look) -> Look:
        """Return what the short look shows. If the group is where this process has left it, with as many pending
        entries, the product asks neither whose they are (what was released since is found a trigger later) nor for the
        mark."""
        if self._live != start.token or start.read is None or look.others or not look.is_member:
            return look
        is_settled = self._settled == start.token
        unsettled = 0 if is_settled else sum(entries.count for entries in start.ranges)
        is_as_left = look.delivered == start.position and look.ours + look.released == unsettled
        mark = start.mark() if is_settled and look.mark is None else look.mark
        return replace(look, ours=unsettled, released=0, mark=mark) if is_as_left else look

    def _compare(self, start: Offset, look: Look) -> tuple[str, int]:
        """Return the outcome and the number of lost entries (at least), or nothing."""
        unread = start.added - (start.read or 0) if start.read is not None else 1
        if not look.exists:
            return "STREAM_MISSING", unread
        is_other = look.last < start.position or look.added < start.added
        if not look.has_group:
            lost = lost_above(look, start.position, start.read)
            return ("STREAM_REPLACED", unread) if is_other or (lost or 0) < 0 else ("GROUP_MISSING", 0)
        if is_older(start, look.mark):
            return "CHECKPOINT_OLDER", int(bool(look.others) or start.read is None)
        if is_other:
            return "SERVER_RESTORED", max(start.added - look.added, 1)
        if is_unmarked(start, look) and not self._knows:
            return "CHECKPOINT_OLDER", int(bool(look.others) or start.read is None)
        if look.others or start.read is None:
            if look.delivered < start.position:
                return "GROUP_BELOW", 0
            if not look.is_member and look.delivered > start.position:
                return "GROUP_ABOVE", 1  # created again, or our consumer was deleted: what it had pending is unknown
            return self._lost_in_shared_group(start, look)
        if look.delivered < start.position:
            return self._compare_below(start, look)
        if look.released and look.delivered > start.position:
            return "", 0  # they may be ours: this trigger claims them
        above = self._above(start, look)
        if look.delivered > start.position and (not above or above[-1] < look.delivered):
            return "GROUP_ABOVE", 0
        lost = lost_above(look, look.delivered, start.read + len(above)) or 0
        return ("ENTRIES_LOST", lost) if lost > 0 else ("SERVER_RESTORED", 1) if lost < 0 else ("", 0)

    def _compare_below(self, start: Offset, look: Look) -> tuple[str, int]:
        """The group of a query that is alone is below the checkpoint: are the entries up to the checkpoint there?"""
        is_there = bool(self._do(["XRANGE", self._key, str(start.position), str(start.position)])[0])
        lost = lost_above(look, start.position, start.read)
        if (not is_there and look.length and look.first <= start.position > look.deleted) or (lost or 0) < 0:
            return "SERVER_RESTORED", 1
        is_proved = is_there or look.first > start.position or look.length == 0
        return ("SET_TO_CHECKPOINT" if is_proved else "GROUP_BELOW"), 0

    def _lost_in_shared_group(self, start: Offset, look: Look) -> tuple[str, int]:
        """By the server's counter, or by ours if nobody has read since the checkpoint. An XDEL above D is certain."""
        lost = lost_above(look, look.delivered, ordinal_in_shared_group(start, look))
        if lost is None and look.deleted > look.delivered and look.deleted != self._told:
            return "ENTRIES_LOST", 1
        return ("ENTRIES_LOST", lost) if lost and lost > 0 else ("", 0)

    def _repaired(self, outcome: str, count: int, start: Offset, look: Look, checkpoint: Offset) -> Offset:
        """Apply the rule: alone, the checkpoint decides; shared, the group decides. Return the start of the next
        batch. What is committed is acknowledged first, unless the mark is newer."""
        is_alone = start.read is not None and not look.others
        is_in_place = outcome not in ("CHECKPOINT_OLDER", "ENTRIES_LOST") or is_unmarked(start, look)
        if look.has_group and is_in_place and self._settled != start.token:
            self._acknowledge_now(start, look.mark)
        done = start.account()
        if outcome == "ENTRIES_LOST":
            read = None if is_alone else ordinal_in_shared_group(start, look)
            if not is_alone and lost_above(look, look.delivered, read) is None:
                self._told = look.deleted
                return start
            if start.read is not None and (is_alone or look.delivered == start.position):
                return replace(start, read=min(start.read + count, look.added))
            return replace(start, missed=start.missed + count, group_read=(read or 0) + count)
        if outcome in ("STREAM_MISSING", "STREAM_REPLACED"):
            done = replace(done, position=MIN_ID, read=0, added=look.added, missed=0)
            self._put_group("CREATE", done, not look.exists)
        elif outcome == "GROUP_MISSING":
            self._put_group("CREATE", done)
        elif outcome == "SERVER_RESTORED":
            position = min(start.position if is_alone else look.delivered, look.last)
            read = self._read_before(position, look)[0] if is_alone else None
            done = replace(done, position=position, read=read, added=look.added, missed=0, group_read=0)
            self._put_group("SETID" if is_alone or look.delivered > look.last else "", done)
        elif is_alone:  # SET_TO_CHECKPOINT, GROUP_BELOW, GROUP_ABOVE, CHECKPOINT_OLDER: count losses above it anew
            is_logged = bool(checkpoint.number) and checkpoint.position == start.position
            read = checkpoint.read if is_logged else start.read
            more = lost_above(look, start.position, read) or 0  # negative: losses above the position were counted
            number = max(done.number, look.mark.number if look.mark else 0)
            done = replace(done, number=number, read=None if read is None else read + min(more, 0))
            self._put_group("SETID", done)
        elif outcome == "CHECKPOINT_OLDER":
            if (mark := look.mark) is None:
                self._put_group("", done)
                return done
            return replace(done, position=mark.id, number=mark.number, token=mark.token, added=look.added, read=None)
        else:  # GROUP_BELOW, GROUP_ABOVE
            done = replace(done, position=look.delivered, read=None, group_read=0)
            self._put_group("", done)
            self._do(["XGROUP", "CREATECONSUMER", self._key, self._group, self._us])
        return done

    def _put_group(self, command: str, start: Offset, is_missing: bool = False) -> None:
        """Set the group and the mark in one MULTI. is_missing: the query saw that the stream is missing (MKSTREAM); if
        it is deleted meanwhile, the command must fail."""
        to = ["XGROUP", command, self._key, self._group, str(start.position)]
        to += ["MKSTREAM"] if command == "CREATE" and is_missing else []
        to += ["ENTRIESREAD", start.read] if start.read is not None else []
        member = [["XGROUP", "CREATECONSUMER", self._key, self._group, self._us]] if command == "CREATE" else []
        self._do(*([to] if command else []), *member, ["SET", self._mark_key, str(start.mark())])

    def _require_newest(self, start: Offset, end: Offset) -> None:
        """Before a logged batch is read again by a new process: find what keeps it from being read. The next trigger
        acknowledges its start, and brings the group to a state in which it can go on.

        For a first batch, Spark passes where the query would begin now. That is no part of the checkpoint, so the batch
        is compared by its end only. If the mark is of this batch, only the commit log has lost it."""
        look, is_first = self._look(), not start.checkpoint
        is_newest = look.mark == end.mark() or not look.has_group
        is_found = is_older(end, look.mark) or (not is_first and is_older(start, look.mark)) or is_unmarked(end, look)
        if not is_newest and is_found:
            self._find("CHECKPOINT_OLDER", 0)
        if not look.has_group and (end.read is None or end.old):
            self._find("GROUP_MISSING" if look.exists else "STREAM_MISSING", 0)

    def _held(self, end: Offset) -> list[Range]:
        """Return the ranges of a batch that is read again, with what they still have. `read` proves the rest."""
        ranges: list[Range] = []
        has_group = self._look().has_group
        for entries in end.ranges:
            count = entries.count
            if not self._is_in_stream(entries, end):
                count = len(self._pending(entries)) if has_group else 0
            if count < entries.count:
                self._find("ENTRIES_LOST", entries.count - count)
            ranges.append(entries._replace(count=count))
        return ranges

    @staticmethod
    def _is_in_stream(entries: Range, end: Offset) -> bool:
        """Whether the stream itself has the entries of a range, because nobody else could receive some of them."""
        return entries[:2] == (end.new or entries)[:2] and end.new is not None and end.read is not None

    # -- batches that kill the query ---------------------------------------------------------------------------------

    def _next_piece(self, start: Offset) -> Range | None:
        """A range under suspicion is a batch of its own."""
        for piece in map(as_range, self._record()["suspects"]):
            if held := len(self._pending(piece)):
                if held < piece.count:
                    self._find("ENTRIES_LOST", piece.count - held)
                return piece._replace(count=held)
        return None

    def _halved(self, suspects: list, end: Offset) -> tuple[list, list[list[str]]]:
        """Halve the ranges of a batch that died too often. A single entry becomes a dead letter, in the same MULTI."""
        kept = without(suspects, end.ranges)
        ids = sorted({i for entries in end.ranges for i in self._pending(entries)})
        if len(ids) == 1:
            return kept, [["XADD", self._dead_key, "*", "id", str(ids[0])],
                          ["XACK", self._key, self._group, str(ids[0])]]  # fmt: skip
        for half in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
            if half:
                kept.append([half[0].previous(), half[-1], len(half), max(r.until for r in end.ranges)])
        return kept, []

    def _record(self) -> dict:
        return json.loads(self._do(["GET", self._record_key])[0] or '{"suspects": []}')

    # -- the server --------------------------------------------------------------------------------------------------

    def _find(self, outcome: str, count: int) -> None:
        """Stop if the query is strict; otherwise report. The one exception is logged in both modes."""
        if outcome != "SET_TO_CHECKPOINT" and self.strict:
            raise StopError(outcome, count)
        self._report(outcome, count)

    def _pending(self, entries: Range) -> list[StreamId]:
        """Entries of our pending list in a range, in order. (The product filters on the server: XPENDING … IDLE.)"""
        first, last = "(" + str(entries.after), str(entries.last)
        pending = ["XPENDING", self._key, self._group, first, last, MANY, self._us]
        time, rows = self._do(["TIME"], pending)
        now = milliseconds(time)
        return [StreamId.parse(row[0]) for row in rows if not entries.until or now - row[2] <= entries.until]

    def _look(self) -> Look:
        stream, groups, consumers, mark, time = self._do(
            ["XINFO", "STREAM", self._key], ["XINFO", "GROUPS", self._key],
            ["XINFO", "CONSUMERS", self._key, self._group], ["GET", self._mark_key], ["TIME"], may_fail=True,
        )  # fmt: skip
        mark = _mark(mark)
        if isinstance(stream, Exception):
            return Look(False, mark=mark)
        info = _pairs(stream)
        edges = [StreamId.parse(info[name][0]) if info[name] else MIN_ID for name in ("first-entry", "last-entry")]
        ids = [StreamId.parse(info[name]) for name in ("last-generated-id", "max-deleted-entry-id")]
        counts = info["length"], info["entries-added"]
        look = Look(True, False, *counts, *edges, *ids, mark=mark, time=milliseconds(time))
        group = next((g for g in map(_pairs, groups) if g["name"] == self._group), None)
        if group is None:
            return look
        pending = {c["name"]: c["pending"] for c in map(_pairs, consumers)}
        is_member, ours = self._us in pending, pending.pop(self._us, 0)
        return replace(
            look, has_group=True, is_member=is_member,
            delivered=StreamId.parse(group["last-delivered-id"]), entries_read=group["entries-read"],
            ours=ours, others=tuple(pending.items()), released=group["pending"] - ours - sum(pending.values()),
        )  # fmt: skip

    def _xreadgroup(self, count: int) -> list:
        return ["XREADGROUP", "GROUP", self._group, self._us, "COUNT", count, "STREAMS", self._key, ">"]

    def _do(self, *commands: list, may_fail: bool = False) -> list:
        """Send commands, several as one MULTI. Return their replies."""
        replies = self._server.run(list(commands))
        if not may_fail:
            for reply in replies:
                if isinstance(reply, Exception):
                    raise RefusedError(str(reply))
        return replies


def _xrange(stream: str, entries: Range) -> list:
    return ["XRANGE", stream, "(" + str(entries.after), str(entries.last)]


def _mark(value: str | None) -> Mark | None:
    return Mark.parse((value or "").encode())


def _pairs(reply: list) -> dict:
    return dict(zip(reply[::2], reply[1::2], strict=True))
