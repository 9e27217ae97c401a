"""The operator of the query: receives errors, judges whether they are right, and does what they say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import (
    ConsumerTakenError,
    DecodeError,
    GroupExistsError,
    GroupSharedError,
    LedgerError,
    ReplicationError,
    RStreamError,
    ServerError,
    StreamMissingError,
    StreamStateError,
)
from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.operations.verify.history import id_key
from spark_streams.operations.verify.judge import Facts, judge
from tools.simulation.met import GOES_ON, LEDGER_REMEDIES, RESTORING, finding_of, named_in, pair
from tools.simulation.model import OTHER_CHECKPOINT, OTHERS, REMOVED_WITH_COMMIT, RETURNED
from tools.simulation.options import with_option, without
from tools.simulation.reasons import Reason
from tools.simulation.setup import Step
from tools.simulation.sinks import OUT
from tools.simulation.world import CONSUMER, GROUP, OTHER, World, shape

_MAX_REPEATS = 3  # of an error without other events


class Operator:
    """Applies one of the remedies that a message names."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._errors: list[tuple[int, str]] = []
        self._restored: object = None  # the backup that was restored last

    def handle(self, error: RStreamError, had_successor: bool = False) -> None:
        """Judge the error that ended the query, and apply a remedy. had_successor: another process has its lease."""
        world, query = self._world, self._world.query
        text = error.message
        streams = [name for name in world.names() if re.search(rf"(?<![\w:]){name}(?![\w:])", text)]
        causes = sorted({cause for name in streams for cause in world.model.stream(name).causes})
        if isinstance(error, ReplicationError) and not world.has_replica:
            world.tell("   operator: repairs the replication")
            self._notes(error, "repair the replication")
            world.replicated = True
            return
        if isinstance(error, ServerError) and not isinstance(error, StreamStateError):
            self._judge_alarm(error, [], {"away"} if world.away else set())
            return
        if isinstance(error, DecodeError) and world.letters.explains(error):
            world.tell("   operator: the mode that the error names")
            self._notes(error, "another mode")
            query.options = {name: value for name, value in query.options.items() if name != "mode"}
            return
        if "Set mode=DEADLETTER" in text and "DEADLETTER" in query.modes - {query.options.get("mode")}:
            world.tell("   operator: the mode of the last batch again")
            self._notes(error, "its mode again")
            query.options = with_option(query.options, "mode", "DEADLETTER")
            return
        if not isinstance(error, StreamStateError):
            world.fail(f"unexpected | {shape(error)} | {query.mode}", text)
            return
        # That process ends, and the query is started again. Documented: a restored server may have an earlier driver's
        # lease.
        if isinstance(error, ConsumerTakenError) and (had_successor or not world.keeps_leases):
            self._notes(error, "start again")
            return
        if "set these options back" in text and (query.options.keys() & {"group", "consumer"}):
            world.tell("   operator: sets group and consumer back")
            self._notes(error, "set the options back")
            query.options = without(query.options, "group", "consumer")
            if any(OTHER in world.see(name).consumers or _has_group(world, name) for name in world.names()):
                world.fail(f"a refused query has joined | {query.mode}", text)
            return
        if isinstance(error, StreamMissingError):
            world.tell("   operator: creates what createStreams=false misses")
            self._notes(error, "create the stream")
            world.births.forget()
            found = re.search("'([^']+)' does not exist", text)
            assert found is not None, text
            world.add(found[1], 1)
            return
        if isinstance(error, GroupExistsError):
            world.tell("   operator: onNewCheckpoint=restart")
            self._notes(error, "restart the group")
            query.options = {**query.options, "onNewCheckpoint": "restart"}
            return
        if "onNewCheckpoint=restart cannot" in text:
            world.tell("   operator: onNewCheckpoint=resume")
            self._notes(error, "resume")
            query.options = {name: value for name, value in query.options.items() if name != "onNewCheckpoint"}
            return
        if "rstream:returned:" in text and any(RETURNED in world.model.stream(name).ever for name in streams):
            causes = [*causes, RETURNED]
        if isinstance(error, LedgerError):
            causes = sorted(world.model.stream(OUT).causes)
            causes += ["its sink is not told"] if self._is_not_told(text) else []
        elif not streams:
            world.fail(f"names no stream | {shape(error)}", text)
        forgiven = sorted({cause for name in streams for cause in world.model.stream(name).forgiven})
        self._name_those_of_others(text, streams)
        reasons = {
            Reason.DELETED_AHEAD: self._knows_of_a_deletion_above(text, streams),
            Reason.LEFT_BY_A_RUN: not forgiven and self._is_left_by_a_run_with_a_list(text),
        }
        others = {cause for name in streams for cause in world.model.stream(name).ever & OTHERS if forgiven}
        self._judge_alarm(error, streams, {*causes}, {one for one, is_so in reasons.items() if is_so}, forgiven, others)
        # Documented: a group from which others read is not set to the checkpoint.
        stuck_with_others = re.search("reads from (it|the group), too|A query with noAck cannot read them", text)
        if query.is_lenient and not isinstance(error, (GroupSharedError, LedgerError)) and not stuck_with_others:
            world.fail(f"a lenient query stops | {shape(error)} | after {'+'.join(causes)} | {query.mode}", text)
        for name in streams:
            self._name(name)
            world.has_no_proof(name, text)
            if "had left pending or released" in text:
                self._settle_what_was_claimed(name)
        if any("flushed" in world.model.stream(name).causes for name in streams):
            for name in world.names():  # the server is empty: one name covers all streams
                self._name(name)
        self._count(error, streams)
        self._remedy(error, text, streams)

    def _judge_alarm(
        self,
        error: RStreamError,
        streams: Sequence[str],
        causes: set[str],
        reasons: Collection[Reason] = (),
        forgiven: Collection[str] = (),
        others: Collection[str] = (),
    ) -> None:
        """Check that something has happened for which the query may stop. forgiven: what an earlier error has named."""
        world = self._world
        report = Facts((" ".join(streams), ""), is_reported=True, after=frozenset(causes), may_count=frozenset(reasons))
        judgement = judge([report])
        world.used.update(judgement.used)
        for fault in judgement.found:
            again = "+".join(sorted({*forgiven, *others}))
            kind = f"named again | {shape(error)} | after {again}" if forgiven else f"{fault} | {shape(error)}"
            world.fail(f"{kind} | {world.query.mode}", error.message)

    def _name_those_of_others(self, text: str, streams: list[str]) -> None:
        """Record that the error counts entries that were removed while other consumers had them, and that no error has
        named yet. The query claims them when the leases of these consumers have ended, and as many as a batch admits:
        after any number of idle triggers."""
        if (found := re.search(r"(\d+) entr\w+ above (\d+-\d+) that other consumers", text)) is None:
            return
        entries = [entry for name in streams for entry in self._world.model.entries_of(name)]
        gone = [one for one in entries if one.removed_by and (one.theirs or one.only_pending) and not one.named]
        for entry in [entry for entry in gone if entry.key > id_key(found[2])][: int(found[1])]:
            entry.named = True

    def _knows_of_a_deletion_above(self, text: str, streams: list[str]) -> bool:
        """Whether the error says that at least one entry above a shared group was deleted, and one was (documented: the
        query stops so at each start until the group has passed it, also if it was deleted before the query began)."""
        found = re.search(r"at least 1 entry above \S+ was trimmed .* The group is at (\d+-\d+)", text)
        entries = [entry for name in streams for entry in self._world.model.entries_of(name)]
        return found is not None and any(
            entry.removed_by == "deleted" and entry.key > id_key(found[1]) for entry in entries
        )

    def _is_left_by_a_run_with_a_list(self, text: str) -> bool:
        """Whether the error is about entries that a run without noAck has reserved (documented).

        A query with noAck does not read them if an earlier checkpoint has left them.
        """
        query = self._world.query
        had_pending_list = query.had_pending_list and "or a run without noAck left them" in text
        # Of an earlier checkpoint, or pieces of a batch that was cut: they wait for a run without noAck.
        return had_pending_list and (query.epoch > 0 or query.was_limited)

    def _is_not_told(self, text: str) -> bool:
        """Whether a batch was cut, or has lost entries before it was complete, of which a sink on another server does
        not know (documented: guarantees.md, two servers). The source does not ask whether a named write is complete
        before it cuts the batch, or one that a run without maxDeliveries has written (documented: guarantees.md,
        Source)."""
        model, query = self._world.model, self._world.query
        batch = re.match(r"batch (\d+) of query", text)
        is_from_before = batch is not None and int(batch[1]) in query.unlimited_batches
        if query.was_limited and (is_from_before or "transaction" in self._world.setup.sink_options):
            return True
        has_lost = any(entry.removed_by and entry.looked_for for entry in model.entries.values())
        return self._world.setup.sink_elsewhere and (query.was_limited or has_lost)

    def at_peace(self) -> None:
        """Forget earlier errors."""
        self._errors.clear()

    def _count(self, error: RStreamError, streams: list[str]) -> None:
        error_and_streams = shape(error) + " ".join(streams)
        self._errors.append((self._world.model.happened, error_and_streams))
        if self._errors.count(self._errors[-1]) > _MAX_REPEATS:
            self._world.fail(f"stuck | {shape(error)} | {self._world.query.mode}", error.message)
            self._start_new_checkpoint()

    def _name(self, name: str) -> None:
        """Record that an error has reported the loss of entries that are removed, or that the group has passed."""
        world = self._world
        seen = world.see(name)
        ours, logged = set(seen.ours()), id_key(world.query.logged(name))
        position = id_key(seen.position) if seen.position is not None else logged
        for entry in world.model.entries_of(name):
            passed = entry.key <= position and (entry.id not in ours or entry.key <= logged)
            if world.model.is_due(entry) and (entry.removed_by or passed):
                entry.named = True

    def _settle_what_was_claimed(self, name: str) -> None:
        """An error has counted entries that were removed before they were claimed. The claim has taken them from the
        pending list, so later runs do not report them again."""
        pending = self._world.see(name).pending
        for entry in self._world.model.entries_of(name):
            entry.settled |= entry.named and bool(entry.removed_by) and entry.shuffled and entry.id not in pending

    # -- remedies ------------------------------------------------------------------------------------------------

    def _remedy(self, error: RStreamError, text: str, streams: list[str]) -> None:
        world, query = self._world, self._world.query
        if isinstance(error, LedgerError):
            names = [name for name in named_in(text, LEDGER_REMEDIES) if name != "newer checkpoint" or query.newest]
        else:
            names = [name for name in named_in(text) for _ in range(1 + (name == "allow losses"))]
            names = [name for name in names if name != "allow losses" or not query.is_lenient]
            names = [name for name in named_in(text, RESTORING) if self._has(name)] or names
        if not names:
            world.fail(f"no remedy | {shape(error)}", text)
            if isinstance(error, LedgerError):
                return
            names = ["new checkpoint"]
        name = world.chance.choice(names)
        self._notes(error, name)
        if isinstance(error, LedgerError):
            world.tell(f"   operator: {name}: {text[-160:]}")
            self._remedy_ledger(name, text)
        else:
            self._do(name, text, streams)

    def _notes(self, error: RStreamError, remedy: str) -> None:
        self._world.met[pair(finding_of(error.message, error), remedy)] += 1

    def _do(self, name: str, text: str, streams: list[str]) -> None:
        {
            "allow losses": self._allow_losses,
            "new checkpoint": self._start_new_checkpoint,
            "set group": lambda: self._set_group(text, streams),
            "remove consumer": lambda: self._remove(text, streams),
            "acknowledge": lambda: self._acknowledge(streams),
            "list pending": self._list_pending,
            "start again": lambda: self._start_again(streams if GOES_ON in text else []),
            "restore a backup": lambda: self._restore(streams),
            "newer checkpoint": self._world.query.put_back,
        }[name]()

    def _has(self, name: str) -> bool:
        """Whether the operator has what this remedy needs: a backup that was not restored yet, the newer checkpoint."""
        world = self._world
        has = world.backup is not self._restored if name == "restore a backup" else world.query.newest is not None
        return world.setup.restores and has

    def _restore(self, streams: list[str]) -> None:
        """Restore these streams from the backup, with the keys beside them."""
        self._restored, names = self._world.backup, self._world.names()
        for name in streams:
            choice = (names.index(name) + 0.5) / len(names)
            self._world.happen(Step("import_backup", choice=choice, how=0.3))

    def _remedy_ledger(self, name: str, text: str) -> None:
        """Apply a remedy of the sink's errors (connector/sink/refusals.py)."""
        found = re.search(LEDGER_REMEDIES[name], text)
        words = () if found is None else found.groups()
        if name == "keep the rows":
            self._stay_with(*words)
        elif name == "set done":
            key, field, value = shlex.split(" ".join(words))
            self._world.sink_client.hset(key, field, value)
        elif name == "newer checkpoint":
            self._world.query.put_back()
        elif name == "write again":
            self._write_again()

    def _stay_with(self, key: str, field: str, batch: str) -> None:
        """Keep the written rows of the batch, and do not write its present rows."""
        self._world.sink_client.hset(key, field, "1")
        written, begun = {row.value[1] for row in self._world.sink.rows()}, self._world.query.begin_of(int(batch))
        for entry in self._world.model.entries.values():
            entry.excuses.add(Reason.KEPT_BY_OPERATOR)
            is_new = entry.key > id_key(begun.get(entry.stream, "0-0"))
            if entry.n in written and (is_new or self._world.query.is_within_batch(entry)):  # a later one may have it
                entry.repeat_reasons.add(Reason.KEPT_BY_OPERATOR)

    def _write_again(self) -> None:
        world = self._world
        world.sink.delivery = "at-least-once"
        for entry in world.model.entries.values():
            entry.repeat_reasons.add(Reason.AT_LEAST_ONCE)

    def _allow_losses(self) -> None:
        query = self._world.query
        query.lenient, query.strict_again = True, self._world.chance.random() < 0.3
        self.goes_on_without_commit()
        self._world.tell(f"   operator: failOnDataLoss=false{' until it is idle' if query.strict_again else ''}")

    def goes_on_without_commit(self) -> None:
        """Documented: a lenient query whose last commit was lost counts nothing of what it had removed itself."""
        entries = self._world.model.entries.values()
        self._world.model.excuse([one for one in entries if one.removed_by == REMOVED_WITH_COMMIT], Reason.COMMIT_LOST)

    def _start_again(self, streams: list[str]) -> None:
        """Start the query again. The error has named the missing entries of its last batch in these streams: later
        runs do not report them again."""
        self._world.tell("   operator: starts the query again")
        for name in streams:
            logged = id_key(self._world.query.logged(name))
            for entry in self._world.model.entries_of(name):
                if entry.removed_by and entry.key <= logged and self._world.model.is_due(entry):
                    entry.settled = True

    def _start_new_checkpoint(self) -> None:
        """Start a new checkpoint: unsettled entries are read again, entries that only the old one knew are given up."""
        self.renew()
        for stream in self._world.model.streams.values():
            stream.causes.add(OTHER_CHECKPOINT)

    def renew(self) -> None:
        """Start a new checkpoint although nothing is wrong: no error may follow from it."""
        world, model = self._world, self._world.model
        world.tell("   operator: a new checkpoint")
        may_have_read, letters = self._may_have_read(), self._may_be_letters()
        world.query.start_new_checkpoint()
        world.births.restart()
        for name, stream in model.streams.items():
            seen = world.see(name)
            ours, present = set(seen.ours()), set(seen.ids)
            position = None if seen.position is None else id_key(seen.position)
            mark = Mark.parse(str(world.client.get(committed_key(name, GROUP, CONSUMER))).encode())
            is_begin = mark is not None and mark.is_begin  # no batch has read this stream
            for entry in model.entries_of(name):
                # The query may have removed entries that the group had passed (onCommit).
                waiting = entry.id in present and (position is None or entry.key > position or entry.id in ours)
                entry.only_pending = entry.id in ours
                may_come = waiting or entry.id in seen.pending  # also if others hand it over
                comes_again = waiting and entry.id not in ours and entry.n in letters
                if (may_come and entry.n in may_have_read) or comes_again or entry.archived:
                    entry.repeat_reasons.add(Reason.A_NEW_CHECKPOINT)
                if entry.removed_by and entry.id in ours:
                    # It is read and found missing, also if a batch of the checkpoint before has read it (documented).
                    entry.looked_for = True
                    stream.causes.add(OTHER_CHECKPOINT)
                elif model.is_due(entry) and entry.removed_by and is_begin:
                    entry.excuses.add(Reason.EARLY)  # the new checkpoint counts from there, too
                elif model.is_due(entry) and (entry.removed_by or not waiting):
                    entry.settled = True
            stream.counted = 0

    def _may_have_read(self) -> set[int]:
        """Return the numbers of entries that a batch of this checkpoint has written, or may write yet: its last batch
        is unfinished, and has tasks that stand still."""
        query, model = self._world.query, self._world.model
        unfinished = query.reads() if query.committed < len(query.offsets) - 1 else []
        ends = {name: id_key(query.logged(name)) for name in unfinished}
        of_the_last = {entry.n for entry in model.entries.values() if entry.key <= ends.get(entry.stream, (0, 0))}
        # Documented: without a pending list, what has become a dead letter is not acknowledged with that.
        read = query.entries_since(0) if query.options.get("noAck") == "true" else []
        letters = {entry.n for entry in read if not entry.fits}
        return {row.value[1] for row in self._world.sink.rows()} | of_the_last | letters

    def _may_be_letters(self) -> set[int]:
        """Return the numbers of entries that are dead letters, or are noted as such. Where the group stands, it may
        deliver them again."""
        unfit = {entry.n for entry in self._world.query.entries_since(0) if not entry.fits}
        return unfit | {letter.entry.n for letter in self._world.letters.all.values()}

    def _set_group(self, text: str, streams: list[str]) -> None:
        """Run one of the commands rstream groups create or seek that the error names. The error has named the entries
        that the operator passes over so: a lenient run after it does not count them."""
        world = self._world
        commands = re.findall(r"rstream groups (?:seek|create) (\S+) .*?(?:--to|--start) ([0-9]+-[0-9]+)", text)
        name, position = world.chance.choice(commands or [(name, world.query.logged(name)) for name in streams])
        name = name.strip("'")  # as a shell does
        world.tell(f"   operator: sets the group of {name} to {position}")
        if world.see(name).position is None:
            world.client.xgroup_create(
                name, GROUP, id=position, mkstream=True, entries_read=world.added_to(name, position)
            )
            for entry in world.model.entries_of(name) if world.query.is_account_unknown(name) else ():
                if id_key(position) < entry.key <= id_key(world.query.logged(name)):  # of the batch that runs again
                    entry.repeat_reasons.add(Reason.SHARED_SET_BACK)
        else:
            world.client.xgroup_setid(name, GROUP, id=position, entries_read=world.added_to(name, position))
            value = world.raw.get(key := committed_key(name, GROUP, CONSUMER))
            world.client.set(key, str(Mark.of_seek(StreamId.parse(position), Mark.parse(value))))
        world.model.pass_over(world.model.entries_of(name, world.see(name).ours()), id_key(position))
        for entry in world.model.entries_of(name):
            entry.settled |= entry.named and world.model.is_due(entry) and entry.key <= id_key(position)

    def _remove(self, text: str, streams: list[str]) -> None:
        """Run rstream groups delete --consumer, which is refused while entries are pending for it."""
        match = re.search(r"--consumer (\S+)", text)
        assert match is not None, text
        for name in streams:
            if match[1] in self._world.see(name).pending.values():
                self._world.tell(f"   operator: consumer {match[1]} of {name} has pending entries: it stays")
                self._list_pending()
            else:
                self._world.tell(f"   operator: deletes consumer {match[1]} of {name}")
                self._world.client.xgroup_delconsumer(name, GROUP, match[1])

    def _acknowledge(self, streams: list[str]) -> None:
        """Run rstream groups ack: the entries need not be read."""
        for name in streams:
            ours = self._world.see(name).ours()
            self._world.tell(f"   operator: acknowledges {len(ours)} entries of {name}")
            self._world.model.excuse(self._world.model.entries_of(name, ours), Reason.DONE_BY_OPERATOR)
            if ours:
                self._world.client.xack(name, GROUP, *ours)
                self._world.model.stream(name).suffers("our entries acknowledged")

    def _list_pending(self) -> None:
        self._world.tell("   operator: without noAck")
        self._world.query.options = {k: v for k, v in self._world.query.options.items() if k != "noAck"}


def _has_group(world: World, name: str) -> bool:
    return world.see(name).exists and any(group["name"] == OTHER for group in world.client.xinfo_groups(name))
