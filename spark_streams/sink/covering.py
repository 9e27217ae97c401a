"""Whether all that a task has written is on the server that it ends with.

A connection that was made anew may lead to another master, which lacks some of what the last one had answered for. The
marks tell: where one of this attempt is missing, so are its rows. As long as replicas have not acknowledged a chunk
(waitReplicas) it is kept, and written again; otherwise another attempt writes it, which finds what is there.
"""

from __future__ import annotations

import functools

from spark_streams.sink import refusals
from spark_streams.sink.ledger_view import LedgerView, LedgerViews, checked
from spark_streams.sink.opening import open_views
from spark_streams.sink.replicas import WINDOW, wait_for_replicas
from spark_streams.sink.resolving import Resolver, Write
from spark_streams.wire.server import Server
from spark_streams.wire.session import Session


class Covering:
    """replicas: how many must have what is written, None: nobody waits for them."""

    def __init__(self, session: Session, views: LedgerViews, resolver: Resolver, replicas: int | None) -> None:
        self._session = session
        self._views = views
        self._resolver = resolver
        self._replicas = replicas
        self._window: list[Write] = []  # written since the last WAIT; only where there is one
        self._server: Server | None = None  # has all that was written before this connection was made

    def begin(self) -> None:
        """The task has its first view."""
        self._server = self._server or self._session.get()

    def look(self) -> None:
        """No EXEC is under way, and something is about to be written: all that was written before it is there, so that
        rows stay in their order where another master has become the server. Raises LedgerError as `cover` does."""
        while self._server is not None and (server := self._session.get()) is not self._server:
            self._look_for_marks()
            if self._session.get() is server:
                self._server = server

    def add(self, write: Write) -> None:
        """This chunk is going to be written."""
        if self._replicas is not None:
            self._window.append(write)

    @property
    def is_due(self) -> bool:
        return len(self._window) >= WINDOW

    def cover(self, at_the_end: bool = False) -> None:
        """Nothing is under way: all that was written is there, and replicas have it where they are to.

        at_the_end: also what other attempts have written of these rows. Raises LedgerError where rows are lost that are
        not in memory any more, ReplicationError.
        """
        if self._server is None:
            return
        while not self._session.run_part(lambda server: self._cover(server, at_the_end)):
            pass

    def _cover(self, server: Server, at_the_end: bool) -> bool:
        """One attempt; False where the connection was made anew in the midst of it."""
        if server is not self._server:
            self._look_for_marks()
            self._views.forget_all()
            if self._session.get() is not server:
                return False
            self._server = server
        if self._replicas is None or not (self._window or at_the_end):
            return True
        unfinished = [view for view in self._views.all() if not view.done]
        for there, some in server.parts(unfinished, lambda view: view.stream):
            # So that this connection has written something after the rows, whoever wrote them.
            there.execute("INCRBY", some[0].keys.part("written"), 0)
        wait_for_replicas(server, self._replicas, [view.stream for view in self._views.all()])
        self._window.clear()
        return True

    def _look_for_marks(self) -> None:
        views = [view for view in self._views.all() if view.mine and not view.done]
        marks = self._resolver.asking(lambda: checked(self._resolver.ask([("HKEYS", view.marks) for view in views])))
        missing = {view.stream: view.mine - set(names) for view, names in zip(views, marks, strict=True)}
        kept = {write.mark for write in self._window}
        for view in views:
            lost = missing[view.stream]
            if lost - kept or (lost and not view.is_plain):
                raise refusals.vanished_meanwhile(self._views.batch, view.shown, len(lost))
        again = [
            write for write in self._window if any(write.mark in missing.get(view.stream, ()) for view in write.views)
        ]
        if again:
            self._write_again(again)

    def _write_again(self, writes: list[Write]) -> None:
        views: list[LedgerView] = list({view.stream: view for write in writes for view in write.views}.values())
        self._views.begin_afresh(views)
        for some in self._session.get().together(views, lambda view: view.stream):
            self._resolver.asking(functools.partial(open_views, self._views, some, self._resolver.ask))
        for view in views:
            if not view.is_untouched and not view.done:
                # Others have written meanwhile: their rows and ours would have to be matched.
                raise refusals.vanished_meanwhile(self._views.batch, view.shown, len(writes))
        for write in writes:
            self._resolver.resolve(write)
