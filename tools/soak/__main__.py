"""Hours of a job etl and a job archive on one redis-server: `scripts/soak [--hours H] [--rate N] [--seed S]`.

A producer adds entries, some of which do not fit their columns: they are retried, become dead letters, and each ten
minutes a redrive corrects them and sends them back. Each half hour one of the jobs, by turns, is killed and started
again. Each seven minutes there is a fault of the server, the group or a job (tools/soak/faults.py). Each minute memory,
threads, files, keys and lag are measured. At the end the jobs read what is left; then a line is fitted to each figure
that must be flat, and every entry is counted. Exit code 1: an entry is lost or twice, or a figure grows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import redis
from rich.console import Console

from tools.servers.server import redis_server_path
from tools.simulation import month
from tools.soak import report
from tools.soak.faults import FAULTS, OneServer, Running, redriving
from tools.soak.job_process import ARCHIVE, DEAD, ETL, STREAM, JobProcess, Producer, write_configs
from tools.soak.report import Sample, judge, measure
from tools.waiting import exit_at_sigterm

_SETTLE = 900.0  # seconds that the jobs may take at the end to read what is left


@dataclass
class Soak:
    """A running soak. folder: holds tables, checkpoints, logs and the page; began: seconds since the epoch."""

    folder: Path
    jobs: Mapping[str, JobProcess]
    producer: Producer
    client: redis.Redis
    server: OneServer
    title: str
    random: random.Random
    samples: list[Sample] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    _kills: int = 0
    _faults: int = 0
    _started: float = field(default_factory=time.monotonic)

    @property
    def age(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self._started

    def sample(self) -> None:
        """Measure, and write the page anew."""
        self.check()
        now = time.monotonic()
        lives = {name: (job.starts, now - job.started) for name, job in self.jobs.items()}
        lives["server"] = self.server.starts, now - self.server.started
        sample = Sample(self.age, measure(self.server.url, self.client, self.jobs.values(), self.folder), lives)
        self.samples.append(sample)
        with (self.folder / "samples.jsonl").open("a") as file:
            file.write(json.dumps({"at": round(sample.at, 1), **sample.figures}) + "\n")
        report.write_page(self.folder / "soak.html", self.samples, self.title, "running", self.began)

    def check(self) -> None:
        """Raise RuntimeError if the producer or a job has ended."""
        self.producer.check()
        for job in self.jobs.values():
            job.check()

    def kill(self) -> None:
        """Kill the jobs by turns, at some moment of the next seconds, and start them again."""
        job = self.jobs[(ETL, ARCHIVE)[self._kills % 2]]
        self._kills += 1
        time.sleep(self.random.uniform(0, 10))
        job.kill()
        self.say(f"killed the job {job.name}")
        job.start()

    def fault(self) -> None:
        """Do the next of the faults."""
        done = FAULTS[self._faults % len(FAULTS)](Running(self.server, self.client, self.jobs, self.random))
        self._faults += 1
        self.say(done)

    def redrive(self) -> None:
        """Correct the dead letters and send them back, if there are any."""
        if not self.client.xlen(DEAD):
            self.say("no dead letter yet")
            return
        with redriving(self.server.url) as run:
            printed, _ = run.communicate()
        if run.returncode:
            raise RuntimeError(f"the redrive failed: {printed}")
        self.say(f"redrive: {printed.strip().splitlines()[-1]}")

    def finish(self) -> None:
        """Stop the producer, and wait until both groups have read everything and no dead letter is left."""
        self.producer.stop()
        self.say(
            f"{self.producer.added:,} entries added, {self.producer.unfit():,} of them unfit; reading what is left"
        )
        deadline = time.monotonic() + _SETTLE
        while not self._is_settled():
            self.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the jobs did not read everything within {_SETTLE:g} s: see {self.folder}")
            if self.client.xlen(DEAD):
                self.redrive()
            time.sleep(5)
        for job in self.jobs.values():
            job.stop()

    def say(self, text: str) -> None:
        """Print a line with the time since the begin."""
        minutes, seconds = divmod(round(self.age), 60)
        print(f"{minutes:>4}:{seconds:02d}  {text}", flush=True)

    def _is_settled(self) -> bool:
        retries = [key for key in self.client.scan_iter("rstream:*", _type="stream") if self.client.xlen(key)]
        delayed = [key for key in self.client.scan_iter("rstream:*", _type="zset") if self.client.zcard(key)]
        is_read = all(group.lag == 0 and group.pending == 0 for group in report.groups_of(self.server.url))
        return is_read and not retries and not delayed and not self.client.xlen(DEAD)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak as the arguments say. Return the exit code."""
    exit_at_sigterm()
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=2.0, metavar="H", help="how long the producer adds (default 2)")
    parser.add_argument("--rate", type=int, default=300, metavar="N", help="entries per second (default 300)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="chooses unfit entries and kills (default 1)")
    parser.add_argument("--kill", type=float, default=30, metavar="MIN", help="minutes between two kills (default 30)")
    parser.add_argument("--fault", type=float, default=7, metavar="MIN", help="… two faults (default 7)")
    parser.add_argument("--redrive", type=float, default=10, metavar="MIN", help="… two redrives (default 10)")
    parser.add_argument("--sample", type=float, default=1, metavar="MIN", help="… two measurements (default 1)")
    parser.add_argument("--folder", type=Path, default=Path("out/soak"), help="made anew (default out/soak)")
    parser.add_argument("--days", type=int, metavar="D", help="instead: days on the simulation's clock")
    chosen = parser.parse_args(arguments)
    if chosen.days is not None:
        return live_days(chosen.days)
    if redis_server_path() is None:
        print("soak: redis-server is not installed: install Redis", file=sys.stderr)
        return 2
    return run(chosen)


def live_days(days: int) -> int:
    """Live these days in the simulation, and print each tenth evening. Return the exit code."""
    outcome, evenings = month.live(days)
    for evening in evenings[::10] + evenings[-1:]:
        print(" · ".join(f"{name} {value:,}" for name, value in vars(evening).items()))
    grown = month.growth(evenings)
    for failure in outcome.failures:
        print(f"{failure.kind}: {failure.details}")
    print(f"grows: {', '.join(grown)}" if grown else f"flat over {days} days, {len(outcome.failures)} failures")
    return int(bool(grown or outcome.failures))


def run(chosen: argparse.Namespace) -> int:
    """Run a soak. Return the exit code."""
    folder = chosen.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(OneServer())
        files = write_configs(server.url, folder)
        client = server.server.client()
        # Before the archive, which trims what no group needs.
        client.xgroup_create(STREAM, ETL, id="0", mkstream=True)
        producer = stack.enter_context(Producer(server.url, chosen.rate, chosen.seed))
        jobs = {}
        for name in (ETL, ARCHIVE):
            jobs[name] = JobProcess(name, files[name], folder / f"{name}.log")
            stack.callback(jobs[name].kill)
        title = f"Soak: {chosen.hours:g} h, {chosen.rate:,} entries/s, seed {chosen.seed}"
        soak = Soak(folder, jobs, producer, client, server, title, random.Random(chosen.seed))
        _go_on(soak, chosen)
        soak.finish()
        verdict = judge(client, folder, producer.added)
    fitted = report.slopes(soak.samples)
    Console(emoji=False).print(report.table(fitted))
    print(verdict)  # Console would break its lines where a terminal ends
    grown = report.not_flat(fitted)
    print(f"not flat: {', '.join(grown)}" if grown else "flat: everything that must be")
    report.write_page(folder / "soak.html", soak.samples, title, str(verdict), soak.began)
    print(f"charts: {folder / 'soak.html'}")
    return int(bool(grown) or not verdict.is_right)


def _go_on(soak: Soak, chosen: argparse.Namespace) -> None:
    """Measure, redrive and kill at their times until the end."""
    acts = {
        "fault": (chosen.fault, soak.fault),
        "kill": (chosen.kill, soak.kill),
        "redrive": (chosen.redrive, soak.redrive),
        "sample": (chosen.sample, soak.sample),
    }
    moments = [
        (60 * every * number, name)
        for name, (every, _) in acts.items()
        for number in range(1, int(60 * chosen.hours / every) + 1)
    ]
    for at, name in sorted(moments):
        while (rest := at - soak.age) > 0:
            time.sleep(min(rest, 5))
            soak.check()
        acts[name][1]()


if __name__ == "__main__":
    sys.exit(main())
