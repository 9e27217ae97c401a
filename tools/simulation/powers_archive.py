"""The job `archive`: it writes entries to files, and trims what no group needs."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tools.simulation.model import Entry
from tools.simulation.step import Step, part
from tools.simulation.world import World

_SCHEMA = pa.schema([
    ("stream", pa.string()), ("id", pa.string()), ("timestamp", pa.timestamp("us", "UTC")),
    ("fields", pa.map_(pa.string(), pa.string())),
])  # fmt: skip


def archive(world: World, step: Step) -> None:
    """Archive the first entries of each stream that are not archived yet. Streams without a group lose some of them:
    those at the head, and one above, as XTRIM … ACKED may leave holes."""
    for name in world.names():
        seen = world.see(name)
        new = [entry for entry in world.model.entries_of(name, seen.ids) if not entry.archived]
        batch = new[: part(len(new), step.amount)]
        if not batch:
            continue
        _write(Path(world.archive), name, batch)
        for entry in batch:
            # Entries that the stream has, and those that are missing in between, come in batches of their own.
            entry.archived = entry.shuffled = True
        if seen.position is None:
            archived = [entry.id for entry in world.model.entries_of(name, seen.ids) if entry.archived]
            trimmed = part(len(archived), step.how)
            holes = archived[trimmed + 1 :][:1] if step.choice < 0.6 else []
            world.tell(f"        {name}: {len(batch)} archived, {archived[:trimmed]} trimmed, {holes} missing")
            missing = [*archived[:trimmed], *holes]
            world.client.xdel(name, *missing)
            if world.model.begun:  # of a stream that a pattern finds later, only what the stream has is read
                world.model.take(world.model.entries_of(name, missing), "trimmed")


def _write(folder: Path, stream: str, batch: list[Entry]) -> None:
    moment = datetime.datetime.fromtimestamp(batch[0].key[0] / 1000, datetime.UTC)
    to = folder / f"date={moment:%Y-%m-%d}" / f"batch=b12345678-{batch[0].n}"
    to.mkdir(parents=True)
    rows = [{"stream": stream, "id": entry.id, "timestamp": None, "fields": [*entry.fields.items()]} for entry in batch]
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), to / "part-00000.snappy.parquet", row_group_size=2)
