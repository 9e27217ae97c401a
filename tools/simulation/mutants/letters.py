"""Mutants of entries that do not fit, of their dead letters, and of the redrive."""

from __future__ import annotations

from tools.simulation.mutants.mutant import Mutant

LETTERS = (
    Mutant(
        "redrive-has-no-lease",
        "connector/deadletter/redrive.py",
        "held.callback(lease.release)\n                session.run(lambda server: lease.hold(server, [stream]))\n",
        "held.callback(lease.release)\n",
        "Two redrives of a stream work at a time.",
    ),
    Mutant(
        "redrive-has-no-fence",
        "connector/deadletter/mover.py",
        "return state if state is not None and state.run == self.state.run else None",
        "return state",
        "A redrive that stood still goes on beside its successor.",
    ),
    Mutant(
        "redrive-is-not-noted",
        "connector/deadletter/mover.py",
        "results = execute_packed(node, part.requests, len(part.ids), *notes)",
        'results = execute_packed(node, part.requests, len(part.ids), *[("ECHO", "") for _ in notes])',
        "A redrive does not record which dead letters it has sent back.",
    ),
    Mutant(
        "redrive-does-not-finish-a-page",
        "connector/deadletter/mover.py",
        "        if run.state.to:\n            finish(run, self._parking)",
        "        if False:\n            finish(run, self._parking)",
        "A redrive does not look what a killed one has sent back.",
    ),
    Mutant(
        "redrive-deletes-first",
        "connector/deadletter/mover.py",
        "        places = list[int]()\n",
        "        places = list[int]()\n        run.home.execute('XDEL', run.stream, *plan.ids)\n",
        "Dead letters are deleted before their entries are appended.",
    ),
    Mutant(
        "redrive-leaves-the-dead-letter",
        "connector/deadletter/mover.py",
        'replies = transact(run.home, [("XDEL", run.stream, *ids), state.store(run.stream)])',
        'replies = transact(run.home, [("XLEN", run.stream), state.store(run.stream)])',
        "A dead letter stays after its entry was appended.",
    ),
    Mutant(
        "redrive-counts-no-redrives",
        "connector/deadletter/redrive_plan.py",
        "marks = _marks(page, options.stream, moved, redrives[moved] + 1)",
        "marks = _marks(page, options.stream, moved, redrives[moved] * 0 + 1)",
        "An entry that is sent back does not say how often.",
    ),
    Mutant(
        "letter-forgets-its-past",
        "connector/deadletter/envelope.py",
        "    mark = mark or past_of(original)\n    envelope",
        "    mark = None\n    envelope",
        "A dead letter does not say that its entry had been sent back.",
    ),
    Mutant(
        "origin-of-a-returned-entry",
        "connector/deadletter/post.py",
        "origin_command(self.to, origin_of(self.stream), self.group)]",
        "origin_command(self.to, self.stream, self.group)]",
        "A dead letter after its last retry is not sent back.",
    ),
    Mutant(
        "note-is-not-emptied",
        "connector/deadletter/post.py",
        "*note_commands(entries, due=False)]",
        "]",
        "The note on an entry stays after its dead letter was written.",
    ),
    Mutant(
        "notes-of-an-older-state",
        "connector/source/task/notes.py",
        "_number_in(replies[stream]) < numbers[stream]",
        "_number_in(replies[stream]) < 0",
        "Notes that a server in an older state has forgotten are not missed.",
    ),
    Mutant(
        "forgotten-dead-letters",
        "connector/source/task/notes.py",
        "or (kind == LETTER and is_earlier(stream, StreamId.parse(entry)))",
        "",
        "A dead letter that a server in an older state has forgotten is not written again.",
    ),
    Mutant(
        "late-notes-count",
        "connector/source/task/notes.py",
        '("HSETNX", notes_key(',
        '("HSET", notes_key(',
        "A task that was suspended beyond the end of its batch makes a second dead letter.",
    ),
    Mutant(
        "no-look-after-dead-letters",
        "connector/source/trigger/acknowledge.py",
        "return run, commit.posted + entries",
        "return run, entries",
        "The group is not looked at again after entries became dead letters.",
    ),
    Mutant(
        "replay-drops-the-notes",
        "connector/source/task/notes.py",
        "void |= page.keys() - due - {BATCH}",
        "void |= page.keys() - {BATCH}",
        "A replay deletes the notes of the run before.",
    ),
    Mutant(
        "notes-of-what-is-set-aside-stay",
        "connector/source/task/notes.py",
        "return bool(within) if holder == consumer",
        "return True if holder == consumer",
        "A replay keeps the notes on entries that were set aside for batches of their own.",
    ),
)
