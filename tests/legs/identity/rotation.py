"""A user whose password is another one every second, and whose connections the server closes then, as clouds do."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import redis

from tools.servers.server import Server

RIGHTS = ("~*", "&*", "+@all")


class Rotation:
    """`file` holds the password of now. The one before is good for half a turn still, as it is where passwords are
    rotated by the book: first the server, then those who connect, then the server forgets the old one."""

    def __init__(self, server: Server, file: Path, every: float = 1.0) -> None:
        self._server = server
        self._every = every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._turn)
        self.file = file
        self.passwords: list[str] = []
        with server.client() as admin:
            admin.execute_command("ACL", "SETUSER", "app", "reset", "on", *RIGHTS)
            self.renew(admin)

    def renew(self, admin: redis.Redis) -> None:
        """A new password; the old ones are still good."""
        self.passwords.append(f"s3cret-{secrets.token_hex(8)}")
        admin.execute_command("ACL", "SETUSER", "app", f">{self.passwords[-1]}")
        fresh = self.file.with_suffix(".new")
        fresh.write_text(self.passwords[-1] + "\n")
        fresh.replace(self.file)

    def forget(self, admin: redis.Redis) -> None:
        """The old ones are not, and who came with one is shut out."""
        for old in self.passwords[:-1]:
            with contextlib.suppress(redis.ResponseError):  # it was forgotten before
                admin.execute_command("ACL", "SETUSER", "app", f"<{old}")
        admin.execute_command("CLIENT", "KILL", "USER", "app")

    def _turn(self) -> None:
        with self._server.client() as admin:
            while not self._ended.wait(self._every / 2):
                self.renew(admin)
                self._ended.wait(self._every / 2)
                self.forget(admin)

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()
