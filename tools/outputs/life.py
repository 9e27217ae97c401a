"""One life: a job with drawn settings, what happens to it and to its tables, and what must be in them."""

from __future__ import annotations

import copy
import datetime
import json
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tools.once import once
from tools.outputs.driver import SPARK, Config, Outcome, Rival, run, settle, standing_still, stop_queries
from tools.outputs.strikes import Strike, World
from tools.outputs.tables import rows_of

KINDS = ("parquet", "deltalake", "pyiceberg")
_LEASE = 11_000  # milliseconds
_PATIENCE = 5.0  # seconds in which a run ends that was killed
KEYS = ("1", "2", "ä/b", "", None)  # values of the column k; None: the entry has no such field
_STRIKES = ("file", "file", "file", "file", "request", "request", "reply", "full", "full", "hold")
_NONE = Strike()
Entry = tuple[str, str]  # stream, ID
rival = Rival()
# What a run of a few batches has, or a little more.
_CHANGES, _REQUESTS = {"parquet": 150, "deltalake": 80, "pyiceberg": 150}, 350


def toml(config: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """Yield the lines of a configuration."""
    inner = {
        key: value for key, value in config.items() if isinstance(value, dict) or (value and key in ("rule", "output"))
    }
    yield from (f"{key} = {json.dumps(value)}" for key, value in config.items() if key not in inner)
    for key, value in inner.items():
        for one in value if isinstance(value, list) else [value]:
            yield f"[[{name}{key}]]" if isinstance(value, list) else f"[{name}{key}]"
            yield from toml(one, f"{name}{key}.")


class Life:
    """tell: receives the story, a line for each event. The faults are what must not be."""

    keys: Sequence[str | None] = KEYS
    strikes: Sequence[str] = _STRIKES
    steps = (2, 4)

    def __init__(self, world: World, seed: int, kind: str, tell: Callable[[str], None]) -> None:
        world.client.flushall()
        self.world, self.seed, self.kind, self.tell = world, seed, kind, tell
        self.chance = random.Random(seed)
        self.folder = world.folder / str(seed)
        self.folder.mkdir()
        self.faults: list[str] = []
        self.counts = Counter[str]()
        self.entries: dict[Entry, dict[str, str]] = {}
        self.streams = ["s", "t"][: self.chance.choice((1, 1, 2))]
        self.job = self.chance.choice(("etl", "etl", "etl", "archive"))
        self.config = self._config()
        self.numbers = self.runs = 0
        self.is_clean = self.is_read = False  # the last run has ended well; and since then nothing was added
        self.tell(f"{self.job} {json.dumps(self.config)}")

    def _config(self) -> Config:
        chance = self.chance
        source: Config = {"streams": self.streams, "group": "g"}
        if chance.random() < 0.4:
            source["maxEntriesPerTrigger"] = chance.choice((2, 4))
        config: Config = {
            "url": self.world.url,
            "source": source,
            "table": self._table("table", self.kind),
            "job": {"checkpoint": str(self.folder / "checkpoint"), "stop_within": "5s"},
        }
        if self.job == "archive":
            config["table"].pop("partition_by", None)
            return config
        source |= {"startingOffsets": "earliest", **({"onCommit": "delete"} if chance.random() < 0.2 else {})}
        outputs: list[Config] = []
        if chance.random() < 0.25:
            outputs.append({"name": "even", "where": "n % 2 = 0", "table": self._table("even", chance.choice(KINDS))})
        if chance.random() < 0.15:
            outputs.append({"name": "copy", "sink": {"stream": "copy"}})
        return {
            **config,
            "columns": {"n": "INT", "k": "STRING"},
            "metadata": {"stream": "stream", "entry_id": "id"},
            "rule": [{"reason": "seven", "when": "n % 7 = 0"}],
            "dead_letters": {"stream": "dead"},
            **({"output": outputs} if outputs else {}),
        }

    def _table(self, name: str, kind: str) -> Config:
        chance, folder = self.chance, self.folder / name
        table: Config = {"format": kind, **({"partition_by": ["k"]} if chance.random() < 0.5 else {})}
        if kind == "pyiceberg":
            folder.mkdir()
            catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
            return {**table, "catalog": "lake", "name": f"shop.{name}", "options": catalog}
        if kind == "deltalake" and chance.random() < 0.5:
            table |= {"compact_every": chance.choice((1, 3)), **({"keep": "1h"} if chance.random() < 0.5 else {})}
        return {**table, "path": str(folder)}

    def _tables(self) -> Iterator[tuple[str, Config, Path]]:
        for output in ({"name": "table", **self.config}, *self.config.get("output", ())):
            if table := output.get("table"):
                yield output["name"], table, Path(table.get("path", self.folder / output["name"]))

    @property
    def place(self) -> Path:
        """The folder of the main table."""
        return next(path for _, _, path in self._tables())

    # -- what happens ----------------------------------------------------------------------------------------------

    def live(self) -> None:
        """Run the life to its end."""
        self.add()
        for _ in range(self.chance.randint(*self.steps)):
            if self.chance.random() < 0.6:
                self.add()
            if self.chance.random() < 0.65:
                self.run(self._strike())
            else:
                self.chance.choice(self._events())()
            if self.faults:
                return
        self.add()
        self.run()
        if not self.faults:
            shutil.rmtree(self.folder)

    def _strike(self) -> Strike:
        kind = self.chance.choice(self.strikes)
        most = _REQUESTS if kind in ("request", "reply", "hold") else _CHANGES[self.kind]
        if kind == "hold" and "compact_every" in self.config["table"]:
            kind = "file"  # two compactions at once double the rows: documented
        return Strike(kind, 1 + int(most * self.chance.random() ** 1.5))

    def add(self) -> None:
        """A producer adds entries, some of them bad."""
        self.is_read, count = False, self.chance.randint(1, 5)
        for _ in range(count):
            self.numbers += 1
            fields = {"n": str(self.numbers) if self.chance.random() < 0.85 else f"x{self.numbers}"}
            if (key := self.chance.choice(self.keys)) is not None:
                fields["k"] = key
            stream = self.chance.choice(self.streams)
            self.entries[stream, self.world.client.xadd(stream, fields)] = fields
        self.tell(f"{count} entries")

    def run(self, strike: Strike = _NONE, other: Config | None = None, take_over: bool = False) -> Outcome:
        """Run the job, and judge its tables. other: another job's configuration, whose run is not judged."""
        world = self.world
        self.runs += 1
        world.arm(strike)
        try:
            outcome, was_twice = self.strike(strike, other or self.config, take_over)
            struck, numbers = world.struck, (world.changes, world.requests)
            if struck or was_twice:
                settle()
        finally:
            world.disarm()
        self.tell(f"run {strike.kind} {strike.at}: {outcome.code}, {struck or was_twice}, {numbers}, {outcome.said}")
        self.counts[f"run {strike.kind}{'' if struck or was_twice or strike is _NONE else ', not struck'}"] += 1
        if struck or was_twice:
            self.counts[f"struck {self.kind} {strike.kind}"] += 1
            world.clock.advance(_LEASE)
        if other is None:
            self.is_clean = self.is_read = not struck and not was_twice
            if self.is_clean and outcome.code:
                self.fault(f"refused wrongly: {outcome.said}")
            self.judge()
        return outcome

    def strike(self, strike: Strike, config: Config, take_over: bool) -> tuple[Outcome, bool]:
        """Run the job in Spark. Return how it ended, and whether a second one ran while it stood still."""
        world, over, file = self.world, threading.Event(), self.folder.parent / f"{self.seed}.toml"
        file.write_text("\n".join(toml({**config, "spark": SPARK})))
        others: list[Outcome] = []

        def watch() -> None:
            while not over.wait(0.05):
                if world.held.is_set() and not others:
                    with standing_still():
                        world.clock.advance(self.chance.choice((0, _LEASE)))  # maybe its lease lapses
                        others.append(rival.run(self.job, file))
                    self.tell(f"rival: {others}")
                if world.is_dead() and not over.wait(_PATIENCE):  # it waits for the server
                    stop_queries()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            return run(self.job, file, take_over), bool(others)
        finally:
            over.set()
            watcher.join()

    def _events(self) -> list[Callable[[], None]]:
        of_kind = {
            "parquet": [self.move],
            "deltalake": [self.move, self.compact, self.vacuum],
            "pyiceberg": [self.expire],
        }
        return [self.trim, self.another_job, self.other_settings, self.take_over, *of_kind[self.kind]]

    def move(self) -> None:
        """The folder of the table is moved."""
        place, to = self.place, self.folder / f"moved{self.runs}"
        if place.exists():
            place.rename(to)
        self.config["table"]["path"] = str(to)
        self._happened("moved", str(to))

    def compact(self) -> None:
        """Another program merges the files of the table."""
        if DeltaTable.is_deltatable(str(self.place)):
            optimize = DeltaTable(str(self.place)).optimize
            done = optimize.z_order(["id"]) if self.chance.random() < 0.5 else optimize.compact()
            self._happened("compacted", f"{done['numFilesRemoved']} files")

    def vacuum(self) -> None:
        """Another program deletes all files that the table does not name."""
        if DeltaTable.is_deltatable(str(self.place)):
            table = DeltaTable(str(self.place))
            full = self.chance.random() < 0.5
            gone = table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)
            self._happened(f"vacuumed{' full' * full}", f"{len(gone)} files")

    def expire(self) -> None:
        """Another program expires all snapshots but the newest."""
        table = self.config["table"]
        catalog = load_catalog("lake", **table["options"])
        if catalog.table_exists(table["name"]):
            snapshots = catalog.load_table(table["name"]).maintenance.expire_snapshots()
            snapshots.older_than(datetime.datetime.now(datetime.UTC)).commit()
            self._happened("expired snapshots")

    def trim(self) -> None:
        """A client trims what the group has acknowledged."""
        client = self.world.client
        for stream in filter(client.exists, self.streams):
            groups = client.xinfo_groups(stream)
            if groups and not groups[0]["pending"]:
                unread = client.xrange(stream, f"({groups[0]['last-delivered-id']}", count=1)
                bound: Any = {"minid": unread[0][0]} if unread else {"maxlen": 0}
                self._happened("trimmed", f"{client.xtrim(stream, approximate=False, **bound)} of {stream}")

    def another_job(self) -> None:
        """A job with another group and checkpoint names the table: it is refused if the table has rows."""
        if self.is_clean:
            other = copy.deepcopy(self.config)
            other["source"]["group"], other["job"]["checkpoint"] = "other", str(self.folder / "foreign")
            self._is_refused("another job", other, "belongs to")

    def other_settings(self) -> None:
        """The job runs with another partition: it is refused if the table has rows."""
        if self.is_clean and self.job == "etl":
            other = copy.deepcopy(self.config)
            other["table"]["partition_by"] = [] if self.config["table"].get("partition_by") else ["k"]
            self._is_refused("another partition", other, "partition")

    def take_over(self) -> None:
        """A query with a new checkpoint goes on, with the same group; the old one is refused then."""
        if self.is_clean:
            before = copy.deepcopy(self.config)
            self.config["job"]["checkpoint"] = str(self.folder / f"checkpoint{self.runs}")
            self.add()
            self._happened("take-over")
            self.run(take_over=True)
            if not self.faults:
                self._is_refused("the query before", before, "belongs to")

    def _is_refused(self, what: str, other: Config, word: str) -> None:
        if rows_of(self.kind, self.place):
            self._happened(what)
            outcome = self.run(other=other)
            if outcome.code != 1 or word not in outcome.said:
                self.fault(f"accepted wrongly, {what}: {outcome}")
            self.judge()

    def _happened(self, what: str, how: str = "") -> None:
        self.tell(f"{what} {how}")
        self.counts[f"event: {what}"] += 1

    # -- the judge -------------------------------------------------------------------------------------------------

    def fault(self, text: str) -> None:
        """Record what must not be."""
        self.tell(f"!!! {text}")
        self.faults.append(text)

    def judge(self) -> None:
        """Compare the tables and the dead letters with the entries: each once after a good run, else at most once."""
        client, is_etl = self.world.client, self.job == "etl"
        good = {key for key in self.entries if not is_etl or self._is_good(key)}
        for name, table, place in self._tables():
            rows = rows_of(table["format"], place)
            wanted = {key for key in good if name == "table" or int(self.entries[key]["n"]) % 2 == 0}
            self._compare(f"{name} ({table['format']})", [(row["stream"], row["id"]) for row in rows], wanted)
            keeps_empty = table["format"] == "pyiceberg" or "partition_by" not in table
            self._compare_values(name, rows, keeps_empty)
        if is_etl:
            letters = [(fields["dl.stream"], fields["dl.id"]) for _, fields in client.xrange("dead")]
            self._compare("dead letters", letters, {*self.entries} - good)
            if any(output["name"] == "copy" for output in self.config.get("output", ())):
                self._compare("stream copy", [(one["stream"], one["id"]) for _, one in client.xrange("copy")], good)
            return
        left = {(stream, key) for stream in self.streams for key, _ in client.xrange(stream)}
        if gone := {*self.entries} - left - {(row["stream"], row["id"]) for row in rows}:
            self.fault(f"trimmed and not archived: {gone}")

    def _is_good(self, key: Entry) -> bool:
        number = self.entries[key]["n"]
        return number.isdigit() and int(number) % 7 != 0

    def _compare(self, where: str, found: list[Entry], wanted: set[Entry]) -> None:
        judgement = once(wanted if self.is_read else wanted & {*found}, found)
        if judgement:
            self.fault(f"in {where}: {judgement}")

    def _compare_values(self, name: str, rows: list[dict[str, Any]], keeps_empty: bool) -> None:
        for row in rows:
            wanted: dict[str, str | None] = {**self.entries.get((row["stream"], row["id"]), {})}
            found = dict(row["fields"]) if "fields" in row else {"n": str(row["n"]), "k": _text(row["k"])}
            if "fields" not in row:
                wanted = {"k": None, **wanted}
                wanted["k"] = wanted["k"] or (wanted["k"] if keeps_empty else None)
            if found != wanted:
                self.fault(f"changed in {name}: {found} instead of {wanted}")


def _text(value: object) -> str | None:
    return None if value is None else str(value)
