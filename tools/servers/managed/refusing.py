"""A proxy with the limits of managed servers: of a request's arguments, of IDs, tokens, and the life of connections."""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from spark_streams.operations.verify.relay import DOWN, READ, Relay, reset

# What the server gets in place of a refused request, so that its error comes in turn, and refuses a transaction.
REFUSED = b"*2\r\n$6\r\nCLIENT\r\n$18\r\nTOO-MANY-ARGUMENTS\r\n"
_FULL_ID = re.compile(rb"\d+-[\d*]+")
_SEEN = 8  # words of a request that are looked at
# A command whose keys may lie in several slots, on a server that refuses it: the sum of its replies for each key.
_ACROSS = b"""#!lua flags=allow-cross-slot-keys
local sum = 0
for i = 2, #ARGV do sum = sum + redis.call(ARGV[1], ARGV[i]) end
return sum"""


@dataclass(frozen=True)
class Limits:
    """Of a service."""

    arguments: int = 1 << 30
    full_ids: bool = True  # XADD takes IDs with a sequence number
    across: str = ""  # of EXISTS, DEL, UNLINK, TOUCH those with keys of any slots, in a cluster with one address
    token: float = 0  # seconds for which a token is good; 0: passwords do not end
    idle: float = 1e9  # seconds without a request, then the connection is closed
    lifetime: float = 1e9  # seconds after which each connection is closed


class RefusingProxy(Relay):
    """Passes requests on to the server at `url`, unless they exceed its limits. secret: the password behind tokens."""

    def __init__(self, url: str, limits: Limits, port: int = 0, secret: str = "") -> None:
        super().__init__(url, port)
        self._limits = limits
        self._secret = secret.encode()
        self._tokens = dict[bytes, float]()  # until when each is good
        self.longest: tuple[int, bytes] = (0, b"")  # arguments of the longest request so far, and its command
        self.refused = list[bytes]()  # the command of each refused request
        self.closed = 0  # connections that were too old or idle
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def token(self) -> str:
        """Return a new token, as the cloud's service of identities does."""
        made = secrets.token_hex(8)
        self._tokens[made.encode()] = time.monotonic() + self._limits.token
        return made

    def _pass_on(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        if direction == DOWN:
            super()._pass_on(source, target, direction)
            return
        waiting, begun = bytearray(), time.monotonic()
        with contextlib.suppress(OSError):  # the other side is gone, and both are closed
            while True:
                left = begun + self._limits.lifetime - time.monotonic()
                source.settimeout(min(max(left, 1e-3), self._limits.idle))
                try:
                    data = source.recv(READ)
                except TimeoutError:
                    self.closed += 1
                    break
                if not data:
                    break
                waiting += data
                passing = bytearray()
                for begin, end, count, words in _requests(waiting):
                    passing += self._passed(bytes(waiting[begin:end]), count, words)
                    done = end
                if passing:
                    del waiting[:done]
                    target.sendall(passing)
        reset(source)
        reset(target)

    def _passed(self, request: bytearray, count: int, words: list[bytes]) -> bytes | bytearray:
        """Return what passes in place of a request."""
        self.longest = max(self.longest, (count, words[0]))
        if count > self._limits.arguments:
            self.refused.append(words[0])
            return REFUSED
        if self._limits.token and words[0] == b"AUTH":
            is_good = time.monotonic() < self._tokens.get(words[-1], 0)
            self.refused += [] if is_good else [words[0]]
            return _request(*words[:-1], self._secret if is_good else b"")
        if not self._limits.full_ids and words[0] == b"XADD" and _FULL_ID.fullmatch(_id_of_xadd(words)):
            self.refused.append(words[0])
            return _request(b"XADD", words[1], b"FULL-ID-IN-STRICT-MODE", b"", b"")  # an error when it is carried out
        if words[0].decode() in self._limits.across.split():
            _, _, rest = request.partition(b"\r\n")
            return _request(b"EVAL", _ACROSS, b"0").replace(b"*3", b"*%d" % (count + 3), 1) + rest
        return request


def _request(*words: bytes) -> bytes:
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)])


def _id_of_xadd(words: list[bytes]) -> bytes:
    """Return the ID, behind the options of trimming."""
    at = 2
    while at < len(words):
        option = words[at].upper()
        if option == b"NOMKSTREAM":
            at += 1
        elif option in (b"MAXLEN", b"MINID"):
            at += 3 if words[at + 1] in (b"~", b"=") else 2
        elif option == b"LIMIT":
            at += 2
        else:
            return words[at]
    return b""


def _requests(data: bytearray) -> Iterator[tuple[int, int, int, list[bytes]]]:
    """Yield begin, end, number of arguments and the first words of each complete request; the command is upper case."""
    end = 0
    while (line := data.find(b"\r\n", end)) >= 0:
        begin, count, words = end, int(data[end + 1 : line]), list[bytes]()
        at = line + 2
        for _ in range(count):
            if (line := data.find(b"\r\n", at)) < 0:
                return
            size = int(data[at + 1 : line])
            at = line + 2 + size + 2
            if len(words) < _SEEN:
                words.append(bytes(data[line + 2 : at - 2]))
        if at > len(data):
            return
        end = at
        words[0] = words[0].upper()
        yield begin, end, count, words
