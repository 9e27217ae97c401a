"""Users of the console: names, and scrypt hashes of their passwords in a file that only its owner can read or write.

ann:$scrypt$ln=15,r=8,p=1$<salt>$<hash>        salt and hash in base64 without padding, as in the PHC string format
bob:$scrypt$ln=15,r=8,p=1$<salt>$<hash>:view   a user who makes no changes
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import shlex
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spark_streams.connector.errors import ConfigError
from spark_streams.operations.console.bounds import USER_CHARACTERS

ROLES = ("view", "write")
_MEMORY = 256 << 20  # bytes that a hash may take
_COST = (15, 8, 1)  # log_n, r, p of new hashes
_HASH = re.compile(
    r"\$scrypt\$ln=([0-9]{1,2}),r=([0-9]{1,2}),p=([0-9]{1,2})\$([A-Za-z0-9+/]{16,88})\$([A-Za-z0-9+/]{43})"
)


@dataclass(frozen=True)
class PasswordHash:
    """log_n, r, p: the cost, as scrypt names it. Takes 128 · r · 2 ** log_n bytes of memory."""

    log_n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    @classmethod
    def make(cls, password: str) -> PasswordHash:
        """Return the hash of a new password. It takes 32 MB and a tenth of a second."""
        salt = secrets.token_bytes(16)
        return cls(*_COST, salt, _digest(password, *_COST, salt))

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        """Raises ValueError."""
        match = _HASH.fullmatch(text)
        if match is None:
            raise ValueError("is no hash by scrypt")
        log_n, r, p = (int(match[number]) for number in (1, 2, 3))
        if not (
            r and p and 14 <= log_n <= 20 and (128 * r << log_n) <= _MEMORY and p <= 16 and r * p << log_n >= 1 << 17
        ):
            raise ValueError("has a cost outside the bounds")
        try:
            salt, digest = (base64.b64decode(part + "=" * (-len(part) % 4)) for part in (match[4], match[5]))
        except binascii.Error:
            raise ValueError("is no hash by scrypt") from None
        return cls(log_n, r, p, salt, digest)

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode().rstrip("=") for part in (self.salt, self.digest))
        return f"$scrypt$ln={self.log_n},r={self.r},p={self.p}${salt}${digest}"

    def accepts(self, password: str) -> bool:
        """Whether this is the password."""
        return hmac.compare_digest(_digest(password, self.log_n, self.r, self.p, self.salt), self.digest)


def _digest(password: str, log_n: int, r: int, p: int, salt: bytes) -> bytes:
    words = password.encode("utf-8", "surrogateescape")
    return hashlib.scrypt(words, salt=salt, n=1 << log_n, r=r, p=p, maxmem=2 * _MEMORY, dklen=32)


_NOBODY = PasswordHash(*_COST, bytes(16), bytes(32))  # takes as long as a user's hash, and accepts no password


@dataclass(frozen=True)
class Users:
    """Hashes of passwords by the user's name. Without users, everybody who reaches the console may use it. viewers:
    users with the role view; others have the role write."""

    hashes: Mapping[str, PasswordHash] = field(default_factory=dict, repr=False)
    viewers: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, lines: Iterable[str], path: str) -> Users:
        """Parse lines of the form NAME:HASH; a line that begins with # is a comment. Raises ConfigError."""
        hashes, viewers = {}, set()
        for number, line in enumerate(lines, start=1):
            text = line.rstrip("\r\n")
            if not text.strip() or text.startswith("#"):
                continue
            name, colon, rest = text.partition(":")
            hashed, _, role = rest.partition(":")
            if not (name and colon and hashed):
                raise ConfigError(
                    f"{path}: line {number} cannot be read. It does not have the form NAME:HASH. Remove the line, and "
                    f"add the user: {_add(path, 'NAME')}"
                )
            check_name(name, f"{path}: line {number}: ")
            if name in hashes:
                raise ConfigError(f"{path}: line {number} has user {name} a second time. Remove one of the two lines")
            try:
                hashes[name] = PasswordHash.parse(hashed)
            except ValueError as error:
                raise ConfigError(
                    f"{path}: line {number}: the hash of {name} cannot be read ({error}). It may be a plain password. "
                    f"The file has only hashes of passwords. Replace the line: {_add(path, name)}"
                ) from None
            if role not in ("", *ROLES):
                raise ConfigError(
                    f"{path}: line {number}: the role of {name} is unknown. Write view or write after the hash"
                )
            viewers |= {name} if role == "view" else set()
        if not hashes:
            raise ConfigError(f"{path} has no user. Add one: {_add(path, 'NAME')}")
        return cls(hashes, frozenset(viewers))

    @classmethod
    def read(cls, path: str) -> Users:
        """Read the file. Raises ConfigError, also if other users of the machine can read or change it."""
        try:
            with open(path, encoding="utf-8") as file:
                require_private(os.fstat(file.fileno()), path)
                return cls.parse(file, path)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the users cannot be read from {path}: {error}. {_add(path, 'NAME')}") from error

    def __bool__(self) -> bool:
        return bool(self.hashes)

    def accepts(self, name: str, password: str) -> bool:
        """Whether a user has this name and password. Takes as long for a name that no user has."""
        return self.hashes.get(name, _NOBODY).accepts(password)


def check_name(name: str, where: str = "") -> None:
    """Raise ConfigError if no user can have this name. where: what comes first in the message."""
    if not name or not name.isprintable() or ":" in name or name.startswith("#") or len(name) > USER_CHARACTERS:
        raise ConfigError(
            f"{where}a user's name has 1 to {USER_CHARACTERS} printable characters, no colon, and no # at its begin"
        )


def user_line(name: str, password: str, role: str = "write") -> str:
    """Return the line of a user."""
    return f"{name}:{PasswordHash.make(password)}{':view' if role == 'view' else ''}"


def add_user(path: Path, name: str, password: str, role: str = "write") -> None:
    """Write the user's line to the file, in the place of an earlier one. Only the owner can read the file afterwards.
    Raises ConfigError."""
    check_name(name)
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        others = [line for line in lines if line.partition(":")[0] != name]
        text = "".join(f"{line}\n" for line in (*others, user_line(name, password, role)))
        _replace(path.resolve(), text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"user {name} cannot be added to {path}: {error}") from error


def _replace(path: Path, text: str) -> None:
    """Write the file whole or not at all, with mode 0600."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def require_private(status: os.stat_result, path: str) -> None:
    """Raise ConfigError if another user of the machine can read or change the file."""
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{path} belongs to another user of this machine (uid {status.st_uid}), who can change the users. Run: "
            f"chown {os.geteuid()} {path}"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(
            f"{path} can be read or changed by other users of this machine (mode {stat.S_IMODE(status.st_mode):04o}). "
            f"Run: chmod 600 {path}"
        )


def _add(path: str, name: str) -> str:
    return f"rstream console --users {shlex.quote(path)} --add-user {shlex.quote(name)}"
