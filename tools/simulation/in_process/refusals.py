"""Commands of the product that the core refuses: states of a server (engine/faults.py), or a missing right.

    alone       the command is answered with the error
    queued      between MULTI and EXEC: EXEC is answered with EXECABORT
    EXEC        the state has begun when all commands are queued: "EXECABORT Transaction discarded because of: …"
    within      a right is missing when EXEC runs the command: an error in its array, and the others are done

The test's own client is never refused. A state begins with one command of the product and ends with another: so each
of many that are under way may be the only one that it meets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import Command, find_by_name
from spark_streams.engine.core import Engine
from spark_streams.engine.faults import REFUSALS, Refusal, applies
from spark_streams.engine.resp.wire_replies import CommandError, Reply

NOPERM = "NOPERM"  # of no state: any command
STATES = {
    **{name.decode().upper(): refusal for name, refusal in REFUSALS.items()},
    "MISCONF": Refusal("MISCONF Errors writing to the AOF file: No space left on device", "write"),
}
CODES = (*STATES, NOPERM)
_NEVER_QUEUED = ("exec", "discard", "multi", "quit", "reset", "watch")


class Request(NamedTuple):
    """A command of the product that a code refuses. place: `alone`, `queued`, `EXEC`, `within`."""

    name: str
    words: tuple[bytes, ...]
    place: str


@dataclass
class Refusals:
    """What one engine refuses to these clients. chosen: whether a request is refused that the code applies to; None:
    nothing is refused. refused: the requests that were."""

    engine: Engine
    is_of_product: Callable[[Client], bool]

    def __post_init__(self) -> None:
        self.code = ""
        self.chosen: Callable[[Request], bool] | None = None
        self.refused: list[Request] = []

    def begin(self, code: str, chosen: Callable[[Request], bool]) -> None:
        """From now on, refuse what is chosen."""
        self.code, self.chosen = code, chosen
        self.engine.__dict__["execute"] = self._execute

    def end(self) -> None:
        """Refuse nothing any more."""
        self.chosen = None
        self.engine.__dict__.pop("execute", None)

    def _execute(self, client: Client, args: list[bytes]) -> Reply | None:
        engine, spec = self.engine, find_by_name(args)
        request = None if spec is None or not self.is_of_product(client) else self._refusable(client, spec, args)
        if spec is None or request is None or self.chosen is None or not self.chosen(request):
            return engine.execute_plain(client, args)
        self.refused.append(request)
        state = STATES.get(self.code)
        text = (
            f"NOPERM User reader has no permissions to run the '{spec.name}' command" if state is None else state.text
        )
        if spec.name == "exec" and state is not None:
            client.leave_transaction()
            text = f"EXECABORT Transaction discarded because of: {text}"
        return engine.refuse(client, args, CommandError(text), spec, running=False)

    def _refusable(self, client: Client, spec: Command, args: list[bytes]) -> Request | None:
        """Return the request, if the code applies to it."""
        state = STATES.get(self.code)
        is_within, is_queued = self.engine.in_transaction, client.queue is not None
        place = "within" if is_within else "EXEC" if spec.name == "exec" else "queued" if is_queued else "alone"
        if state is None:
            return Request(spec.name, tuple(args), place)
        if is_within:
            return None
        if spec.name == "exec":
            queued = [find_by_name(words) for words in client.queue or () if isinstance(words, list)]
            met = any(applies(state, one) for one in [spec, *queued] if one is not None)
        else:
            met = applies(state, spec) or (state.refuses_to_queue and is_queued and spec.name not in _NEVER_QUEUED)
        return Request(spec.name, tuple(args), place) if met else None
