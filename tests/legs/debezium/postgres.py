"""A PostgreSQL of a test's own, in a temporary folder and on a free port."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.servers.server import free_port
from tools.waiting import stop, until

_NO_ROOT = "postgres"  # PostgreSQL refuses to run as root; Debian's package makes this user
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",
    "fsync": "off",
    "deadlock_timeout": "100ms",
    "timezone": "UTC",
}


@dataclass(frozen=True)
class Postgres:
    """A running server, whom everybody on this machine may ask."""

    programs: Path
    port: int

    def command(self, *words: str) -> list[str]:
        """Return psql's command. It goes on after an error: a transaction is then rolled back."""
        where = ["--host=127.0.0.1", f"--port={self.port}", "--username=postgres", "--dbname=postgres"]
        return [str(self.programs / "psql"), *where, "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", *words]

    def run(self, sql: str) -> str:
        """Return what psql prints. Raises CalledProcessError at the first error."""
        command = self.command("--set=ON_ERROR_STOP=1", "--file=-")
        return subprocess.run(command, input=sql, capture_output=True, text=True, check=True).stdout

    def answers(self) -> bool:
        command = self.command("--command=SELECT 1")
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def session(self, sql: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start to run a file, and write what psql says to another."""
        with log.open("wb") as said:
            return subprocess.Popen(self.command(f"--file={sql}"), stdout=said, stderr=said)


def programs() -> Path | None:
    """Return the folder of the newest PostgreSQL here, None if there is none."""
    on_path = shutil.which("initdb")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = Path(on_path).resolve() if on_path else debian[-1] if debian else None
    return found and found.parent


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Start a server, and stop it at the end."""
    where = programs()
    assert where is not None, "PostgreSQL is not installed"
    as_other = ["setpriv", f"--reuid={_NO_ROOT}", f"--regid={_NO_ROOT}", "--clear-groups"] if os.getuid() == 0 else []
    with tempfile.TemporaryDirectory(prefix="rstream-postgres-") as folder:
        if as_other:
            shutil.chown(folder, _NO_ROOT)
        options = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync"]
        made = [*as_other, where / "initdb", *options, f"--pgdata={folder}/data"]
        subprocess.run(made, check=True, capture_output=True, cwd=folder)
        server = Postgres(where, free_port())
        settings = {**_SETTINGS, "port": str(server.port), "unix_socket_directories": folder}
        words = [f"--{name}={value}" for name, value in settings.items()]
        with (Path(folder) / "log").open("w+b") as log:
            started = [*as_other, where / "postgres", "-D", f"{folder}/data", *words]
            process = subprocess.Popen(started, stdout=log, stderr=log, cwd=folder)
            try:
                until(
                    server.answers, "PostgreSQL did not start", alive=lambda: process.poll() is None, interval=0.2,
                    log=(Path(folder) / "log").read_text,
                )  # fmt: skip
                yield server
            finally:
                process.send_signal(2)  # it ends its sessions
                stop(process)
