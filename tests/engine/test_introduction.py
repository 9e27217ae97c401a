"""The introduction to Redis Streams, played through redis-cli: the bundled engine and a real Redis print the same.

Ids that the server makes up, and times, are masked.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest

from tools.servers.server import Server
from tools.waiting import until

pytestmark = pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not installed")

# A command that ends in & blocks until a later one wakes it.
SCRIPT = """
XADD race:france 1692632086370-0 rider Castilla speed 30.2 position 1 location_id 1
XADD race:france 1692632094485-0 rider Norem speed 28.8 position 3 location_id 1
XADD race:france 1692632102976-0 rider Prickett speed 29.7 position 2 location_id 1
XADD race:france 1692632147973-0 rider Castilla speed 29.9 position 1 location_id 2
XLEN race:france
XADD race:usa 0-1 racer Castilla
XADD race:usa 0-2 racer Norem
XADD race:usa 0-1 racer Prickett
XADD race:usa 0-* racer Prickett
XADD race:italy * rider Royce
XADD race:italy * rider Wood
XRANGE race:italy - +
XRANGE race:france - +
XRANGE race:france 1692632086369 1692632086371
XRANGE race:france - + COUNT 2
XRANGE race:france (1692632094485-0 + COUNT 2
XRANGE race:france (1692632147973-0 + COUNT 2
XREVRANGE race:france + - COUNT 1
XREAD COUNT 2 STREAMS race:france 0
XREAD COUNT 2 STREAMS race:france race:usa 0-0 0-0
XREAD BLOCK 30 STREAMS race:france $
XREAD BLOCK 9000 STREAMS race:wait $ &
XADD race:wait 1-1 rider Late
XGROUP CREATE race:france france_riders $
XGROUP CREATE race:new riders $
XGROUP CREATE race:new riders $ MKSTREAM
XLEN race:new
XGROUP CREATE race:riders riders $ MKSTREAM
XADD race:riders 5-1 rider Castilla
XADD race:riders 5-2 rider Royce
XADD race:riders 5-3 rider Sam-Bodden
XADD race:riders 5-4 rider Prickett
XADD race:riders 5-5 rider Norem
XREADGROUP GROUP riders Alice COUNT 1 STREAMS race:riders >
XREADGROUP GROUP riders Alice STREAMS race:riders 0
XACK race:riders riders 5-1
XREADGROUP GROUP riders Alice STREAMS race:riders 0
XREADGROUP GROUP riders Bob COUNT 2 STREAMS race:riders >
XREADGROUP GROUP nobody Bob COUNT 2 STREAMS race:riders >
XPENDING race:riders riders
XPENDING race:riders riders - + 10
XRANGE race:riders 5-2 5-2
XCLAIM race:riders riders Alice 60000 5-2
XCLAIM race:riders riders Alice 0 5-2
XCLAIM race:riders riders Lora 60000 5-2
XAUTOCLAIM race:riders riders Alice 0 0-0 COUNT 1
XAUTOCLAIM race:riders riders Lora 0 5-2 COUNT 1
XPENDING race:riders riders - + 10 Alice
XINFO STREAM race:usa
XINFO GROUPS race:riders
XGROUP DELCONSUMER race:riders riders Bob
XINFO GROUPS race:none
XADD race:max MAXLEN 2 1-1 rider Jones
XADD race:max MAXLEN 2 1-2 rider Wood
XADD race:max MAXLEN 2 1-3 rider Henshaw
XLEN race:max
XRANGE race:max - +
XADD race:max MAXLEN ~ 1000 1-4 rider Henshaw
XTRIM race:max MAXLEN 1
XTRIM race:max MINID 1-9
XTRIM race:max MINID ~ 1-9
XLEN race:max
XRANGE race:france - + COUNT 2
XDEL race:france 1692632086370-0 1692632086370-0
XRANGE race:france - + COUNT 2
XADD race:zero 1-1 a 1
XDEL race:zero 1-1
EXISTS race:zero
XADD race:zero 1-1 a 1
XGROUP DESTROY race:riders riders
XREADGROUP GROUP riders Alice STREAMS race:riders >
TYPE race:zero
XADD race:bad
XGROUP NONE a b
"""


def _cli(server: Server, line: str) -> subprocess.Popen[str]:
    unix = server.url.startswith("unix://")
    port = server.url.rpartition(":")[2].partition("/")[0]
    where = ["-s", server.url.removeprefix("unix://")] if unix else ["-p", port]
    words = ["redis-cli", "--no-raw", *where, *shlex.split(line)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _play(server: Server) -> list[tuple[str, str]]:
    """Each command and what was printed."""
    printed: list[tuple[str, str]] = []
    waiting: tuple[str, subprocess.Popen[str]] | None = None
    with server.client() as client:
        client.flushall()
        for line in SCRIPT.strip().split("\n"):
            if line.endswith(" &"):
                waiting = line, _cli(server, line.removesuffix(" &"))
                until(lambda: client.info("clients")["blocked_clients"], "the client does not block")
                continue
            printed.append((line, _cli(server, line).communicate(timeout=20)[0]))
            if waiting is not None:
                printed.append((waiting[0], waiting[1].communicate(timeout=20)[0]))
                waiting = None
    return printed


def _masked(line: str, text: str) -> str:
    text = re.sub(r'"1[789]\d{11}-\d+"', "an id of now", text)
    text = re.sub(r"\(\d+\.\d+s\)", "a time", text)
    if line.startswith("XPENDING") and " - + " in line:
        text = re.sub(r"3\) \(integer\) \d+", "an idle time", text)
    if line.startswith("XINFO STREAM"):
        # What Redis 8 tells beyond 7; and the shape of the radix tree is the server's own.
        text = re.sub(r"^ *\d+\) ", "", text, flags=re.MULTILINE)
        text = re.sub(r'"(idmp|pids|iids|radix-tree)-[\w-]+"\n\(integer\) \d+\n', "", text)
    return text


def test_the_introduction_reads_the_same(engine_server: Server, redis_server: Server) -> None:
    """Every answer as redis-cli prints it."""
    for (line, mine), (_, theirs) in zip(_play(engine_server), _play(redis_server), strict=True):
        assert _masked(line, mine) == _masked(line, theirs), line
