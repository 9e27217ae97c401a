"""A run begins: on the driver, before there are tasks. The server says which of two runs began later.

    rstream:runs    the highest number that a run has been given: microseconds of the server's clock, and never less
                    than the one before, whatever that clock does; if the key is lost, the clock goes on from there

A run's name begins with its number, so that names sort as runs began: no clock of a driver counts. (Names that begin
with a digit are of the first version, which took the driver's clock; they sort below all others.)
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from spark_streams.errors import UnsupportedError
from spark_streams.model.keys import CLOSED, RUNS
from spark_streams.sink.ledger.batch import Batch
from spark_streams.sink.ledger.ledger import JOB_SECONDS, NONE_CLOSED, number_in
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.eviction import ASK, drops_any_key, evicting_policy, worst_of
from spark_streams.wire.replies.multi_exec import transact
from spark_streams.wire.replies.replies import milliseconds
from spark_streams.wire.session import Session

_log = logging.getLogger("spark_streams.sink")


def run_name(number: int) -> str:
    """The name of a run with this number."""
    return f"r{number:020d}-{secrets.token_hex(4)}"


Ready = Callable[[Server], object]  # what is to be so before anything is written; may be run again


def _as_it_is(_server: Server) -> None:
    """Nothing."""


def begin_run(address: Address, ready: Ready = _as_it_is) -> str:
    """The name of a run of some query's batch that begins now.

    Raises UnsupportedError where the server may drop keys, RetriesExhaustedError, ServerReplyError, and what `ready`
    raises.
    """
    with Session(address, is_known=True) as session:
        session.run(ready)
        while (number := session.run(_next_number)) is None:
            pass
    return run_name(number)


def begin_job(address: Address, ready: Ready = _as_it_is) -> Batch:
    """A job that begins now: its record is there. Raises what begin_run raises."""
    batch = Batch.of_job(secrets.token_hex(8))
    with Session(address) as session:
        session.run(ready)
        session.run(lambda server: _make_record(server, batch))
    return batch


def reach(address: Address, is_known: bool, ready: Ready) -> None:
    """Be connected once, on the driver, before tasks are, which wait where the server is away. is_known: as Session's.
    Raises ServerError."""
    with Session(address, is_known=is_known) as session:
        session.run(ready)


def _make_record(server: Server, batch: Batch) -> None:
    """A job's record. Raises UnsupportedError."""
    policy = _require_memory(server.address, evicting_policy(server))
    if policy.startswith("volatile"):
        _log.warning(
            "the server at %s drops keys that expire when its memory is full (maxmemory-policy %s), and a job's ledger "
            "expires: until the job has ended, see that there is room", server.address, policy,
        )  # fmt: skip
    server.execute_all([("HSET", batch.record, CLOSED, NONE_CLOSED), ("EXPIRE", batch.record, JOB_SECONDS)])


def _next_number(server: Server) -> int | None:
    """None where another driver was faster."""
    there = server.of(RUNS)  # whose clock counts
    *replies, memory = there.pipeline([("WATCH", RUNS), ("GET", RUNS), ("TIME",), ASK])
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, ("GET", RUNS))
    others = [node.pipeline([ASK])[0] for node in server.nodes() if node is not there]
    _require_memory(server.address, worst_of([memory, *others]))
    _, last, clock = replies
    number = max(milliseconds(clock) * 1000, number_in(last or b"0") + 1)
    return number if transact(there, [("SET", RUNS, number)]) is not None else None


def _require_memory(address: Address, policy: str | None) -> str:
    """What the ledger remembers must not be evicted: the policy for when the memory is full. A user who may not ask
    goes on unasked."""
    if drops_any_key(policy):
        raise UnsupportedError(
            f"the server at {address} drops any key when its memory is full (maxmemory-policy {policy}), also what "
            "says which rows are written: set it to noeviction (or volatile-lru), or choose delivery=at-least-once"
        )
    return policy or ""
