"""Mutants that take an error of the server for an answer."""

from __future__ import annotations

from tools.simulation.mutants.mutant import Mutant

REFUSALS = (
    Mutant(
        "an-error-among-the-answers",
        "connector/wire/connection.py",
        "        if isinstance(reply, ReplyError) and not any(is_answer(reply) for is_answer in known):\n",
        "        if False:\n",
        "An error reply is returned in the place of an answer.",
    ),
    Mutant(
        "a-refused-step-is-the-end",
        "connector/source/trigger/bookmark.py",
        "self.was_refused |= self.is_at_the_end and position <= self.wanted.last",
        "self.was_refused |= False",
        "noAck: a step that the server has refused is taken for the end of the stream.",
    ),
    Mutant(
        "a-note-whose-entry-is-unknown",
        "connector/source/task/notes.py",
        "replies = server.execute_all(commands, is_no_group)\n",
        "replies = [None if isinstance(r, Exception) else r for r in server.pipeline(commands)]\n",
        "If the server refuses to say for whom an entry is pending, a replay deletes the note on it.",
    ),
)
