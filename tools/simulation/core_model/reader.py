"""The model in the place of the product's StreamReader: Spark's calls, offsets as JSON, the connection of the product
and its errors. So it lives in the same world, with the same powers and the same verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import redis

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.keys import key_beside
from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.connector.source.group.recovery import Finding, GroupUse, Kind, MessageContext, error_of
from spark_streams.connector.source.group_client import Membership
from spark_streams.connector.spark.data_source import ReadAllAvailable, ReadLimit
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tools.simulation.actor import Killed
from tools.simulation.core_model.facts import Offset, Range
from tools.simulation.core_model.source import Names, RefusedError, Source, StopError
from tools.simulation.options import DEAD, STREAMS
from tools.simulation.tasks import SCHEMA
from tools.simulation.threads import world_of
from tools.simulation.world import CONSUMER, GROUP, World, is_ours

if TYPE_CHECKING:
    from tools.simulation.spark import Query

STREAM = STREAMS[0]
LIMIT = 5  # entries of a batch
CLAIM_IDLE_MS = 30 * 60 * 1000  # options.CLAIM_IDLE
_NAMES = Names(
    STREAM,
    GROUP,
    CONSUMER,
    mark=committed_key(STREAM, GROUP, CONSUMER).decode(),
    record=key_beside(STREAM, "attempts", GROUP, CONSUMER).decode(),
    dead=DEAD,
)


class ModelReader:
    """One process of the driver, or of a task. options: of the query; is_ahead: it reserves entries ahead."""

    def __init__(self, url: str, options: Mapping[str, str], is_ahead: bool) -> None:
        self._given = url, options, is_ahead
        self._server = _Server(Address.parse(url))
        deaths = options.get("maxDeliveries")
        self.source = Source(
            self._server, _NAMES, _report, strict=options.get("failOnDataLoss") != "false", limit=LIMIT,
            claims=_is_dead if "claimIdle" in options else lambda name: False,
            max_deaths=None if deaths is None else int(deaths), prefetch=is_ahead,
        )  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelReader, self._given

    @classmethod
    def of(cls, query: Query) -> ModelReader:
        """Return the reader of a process of the driver that starts now."""
        options = {**query.options, **({"failOnDataLoss": "false"} if query.lenient else {})}
        return cls(query.world.server.url, options, query.world.setup.ahead == 1)

    # -- Spark's calls -----------------------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def initialOffset(self) -> dict[str, Any]:
        return _to_json(self._call(self.source.initial_offset))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        checkpoint = _from_json(start)
        end = self._call(lambda: self.source.latest_offset(checkpoint))
        if world_of["now"].pace < 0:
            self._call(self.source.finish_background)
        return start if end is checkpoint else _to_json(end)

    def reportLatestOffset(self) -> None:
        pass

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        batch, ranges = self._call(lambda: self.source.plan(_from_json(start), _from_json(end)))
        if world_of["now"].pace > 0:
            self._call(self.source.background_step)
        return [(batch, ranges)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        batch, ranges = partition
        entries = self._call(lambda: self.source.read(batch, ranges))
        rows = [{"n": int(fields[1]), "_stream": STREAM, "_id": str(entry)} for entry, fields in entries.items()]
        yield pa.RecordBatch.from_pylist(rows, SCHEMA)

    def commit(self, end: dict[str, Any]) -> None:
        self.source.commit(_from_json(end))

    def _call(self, function: Any) -> Any:
        """Call the model. Raises the product's error if a strict query stops. A query that the server has refused, or
        that has lost its connection, fails and is started again."""
        try:
            return function()
        except StopError as stop:
            raise _error(*stop.args) from stop
        except (RefusedError, RStreamError) as error:
            world_of["now"].tell(f"   the model fails: {error}")
            raise Killed from error


class _Server:
    """The server over a connection of the product."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Connection | None = None

    def run(self, commands: list[list[Any]]) -> list[Any]:
        """Run one command, or several as one step. Errors are returned."""
        self._connection = self._connection or Connection(self._address)
        words = [[str(word) for word in command] for command in commands]
        if len(words) == 1:
            return [_decoded(self._connection.pipeline(words)[0])]
        replies = self._connection.pipeline([["MULTI"], *words, ["EXEC"]])[-1]
        return [replies] * len(words) if isinstance(replies, Exception) else [_decoded(reply) for reply in replies]


def _decoded(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode()
    return [_decoded(part) for part in reply] if isinstance(reply, list) else reply


def _is_dead(consumer: str) -> bool:
    """Whether another consumer has entries that were delivered long ago. It has none if the group is gone."""
    try:
        rows = world_of["now"].raw.xpending_range(STREAM, GROUP, "-", "+", 10_000, consumername=consumer)
    except redis.ResponseError:
        return False
    return any(row["time_since_delivered"] >= CLAIM_IDLE_MS for row in rows)


def _report(outcome: str, count: int) -> None:
    world: World = world_of["now"]
    world.tell(f"      the model reports {outcome} {count}")
    if count:
        world.lost(STREAM, count)


def _error(outcome: str, count: int) -> RStreamError:
    """Return the product's error for what stops a strict query."""
    world: World = world_of["now"]
    seen = world.see(STREAM)
    is_shared = any(not is_ours(consumer) for consumer in seen.consumers)
    mark = Mark.parse(world.raw.get(committed_key(STREAM, GROUP, CONSUMER)))
    finding = Finding(
        Kind[outcome], STREAM, GroupUse.SHARED if is_shared else GroupUse.ALONE,
        above=StreamId.parse(world.query.logged(STREAM)),
        position=None if seen.position is None else StreamId.parse(seen.position),
        mark=None if mark is None else mark.id, lost=count, is_exact=False,
    )  # fmt: skip
    return error_of(finding, MessageContext(Membership(GROUP, CONSUMER), world.server.url))


# -- offsets as the product writes them ------------------------------------------------------------------------------


def _to_json(offset: Offset) -> dict[str, Any]:
    read = "-" if offset.read is None else offset.read
    at = f"{offset.position!s} {offset.number}.{offset.token} {read} {offset.added} {offset.missed}"
    value = {
        "format": 1, "group": GROUP, "consumer": CONSUMER, "token": offset.token if offset.checkpoint else "",
        "streams": {STREAM: f"{at} {offset.group_read}"},
        "batch": {} if offset.new is None else {STREAM: str(offset.new)},
        "old": {STREAM: [str(part) for part in offset.old]} if offset.old else {},
        "owed": {} if offset.owed is None else {STREAM: str(offset.owed)},
        "left": [STREAM] if offset.left else [],
        "record": STREAM if offset.guarded else "",
    }  # fmt: skip
    return json.loads(json.dumps(value))  # type: ignore[no-any-return]


def _from_json(value: Mapping[str, Any]) -> Offset:
    position, name, read, added, missed, group_read = value["streams"][STREAM].split(" ")
    number, _, token = name.partition(".")
    new, owed = (value[part].get(STREAM) for part in ("batch", "owed"))
    return Offset(
        StreamId.parse(position), None if read == "-" else int(read), int(added), int(number), token, int(missed),
        group_read=int(group_read),
        new=None if new is None else Range.parse(new),
        old=tuple(map(Range.parse, value["old"].get(STREAM, ()))),
        owed=None if owed is None else Range.parse(owed),
        left=bool(value["left"]), guarded=bool(value["record"]), checkpoint=value["token"].partition("-")[0],
    )  # fmt: skip
