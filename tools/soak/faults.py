"""What is done to the server, the group and the jobs of a soak, by turns: `FAULTS`."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

import redis

from tools.servers.nodes import Nodes
from tools.servers.server import free_port
from tools.soak.job_process import CLAIMED, DEAD, ETL, STREAM, JobProcess

MEMORY = 1_073_741_824  # bytes of the server


class OneServer(Nodes):
    """A redis-server that keeps each write that it has answered, also when it is killed."""

    @property
    def url(self) -> str:
        """Its URL."""
        return f"redis://127.0.0.1:{self._port}/0"

    def restart(self, away: float) -> None:
        """Kill it, and start it again after these seconds."""
        self.kill(self._port)
        time.sleep(away)
        self._serve()

    def stand_still(self, seconds: float) -> None:
        """Freeze it for these seconds."""
        self.freeze(self._port)
        time.sleep(seconds)
        self.thaw(self._port)

    def _begin(self) -> None:
        self._port, self.starts = free_port(), 0
        self._serve()

    def _let_replicas_catch_up(self, port: int) -> None:
        """There are none."""

    def _serve(self) -> None:
        self.starts, self.started = self.starts + 1, time.monotonic()
        kept = ("--appendonly", "yes", "--appendfsync", "always")
        self._start(self._port, *kept, "--maxmemory", str(MEMORY), "--maxmemory-policy", "noeviction")


@contextlib.contextmanager
def redriving(url: str) -> Iterator[subprocess.Popen[str]]:
    """Start a redrive that corrects the dead letters. It is killed at the end, if it still runs."""
    command = [sys.executable, "-m", "spark_streams.cli", "dead", "redrive", DEAD, "--url", url]
    command += ["--set", "amount=0.00", "--yes"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as redrive:
        yield redrive
        redrive.kill()


# -- the faults: each returns when it is over --------------------------------------------------------------------------


class Running(NamedTuple):
    """What runs in a soak. client: of the server; chance: chooses how long a fault takes."""

    server: OneServer
    client: redis.Redis
    jobs: Mapping[str, JobProcess]
    chance: Random

    def one_job(self) -> JobProcess:
        """Return one of the jobs."""
        return self.jobs[self.chance.choice(sorted(self.jobs))]


def _stand_still(running: Running) -> str:
    seconds = running.chance.uniform(5, 30)
    running.server.stand_still(seconds)
    return f"the server stood still for {seconds:.0f} s"


def _restart(running: Running) -> str:
    away = running.chance.uniform(1, 50)
    running.server.restart(away)
    return f"killed the server, and started it again after {away:.0f} s"


def _close_connections(running: Running) -> str:
    closed = running.client.client_kill_filter(_type="normal", skipme=True)
    return f"closed all {closed} connections"


def _refuse_writes(running: Running) -> str:
    seconds = running.chance.uniform(5, 20)
    running.client.config_set("maxmemory", 1)
    time.sleep(seconds)
    running.client.config_set("maxmemory", MEMORY)
    return f"the server had no memory for writes for {seconds:.0f} s"


def _die_as_a_consumer(running: Running) -> str:
    read: Any = running.client.xreadgroup(ETL, "dead", {STREAM: ">"}, 20)
    return f"another consumer read {len(read[0][1]) if read else 0} entries, and died"


def _claim(running: Running) -> str:
    """What the job has read and not acknowledged comes to it again, when it takes over from the dead consumer."""
    claimed: Any = running.client.xautoclaim(STREAM, ETL, "dead", 0, "0-0", 100)
    for _, fields in claimed[1]:
        running.client.hincrby(CLAIMED, fields[b"number"])
    return f"another consumer claimed {len(claimed[1])} entries, and died"


def _kill_redrive(running: Running) -> str:
    seconds = running.chance.uniform(0.2, 1.5)
    with redriving(running.server.url):
        time.sleep(seconds)
    return f"killed a redrive after {seconds:.1f} s"


def _start_twice(running: Running) -> str:
    job = running.one_job()
    return f"started the job {job.name} a second time: {job.refusal()}"


def _stop(running: Running) -> str:
    job = running.one_job()
    job.stop()
    job.start()
    return f"stopped the job {job.name}, and started it again"


FAULTS: tuple[Callable[[Running], str], ...] = (
    _stand_still,
    _restart,
    _close_connections,
    _refuse_writes,
    _die_as_a_consumer,
    _claim,
    _kill_redrive,
    _start_twice,
    _stop,
)
