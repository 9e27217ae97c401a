"""What queries have reported in plans, and what their operator has done then: which pairs of both there are by the
texts of the product, how often plans have met each, and which they never met. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

from spark_streams.connector.errors import LedgerError, RStreamError
from spark_streams.connector.keys import MicroBatchName
from spark_streams.connector.sink import refusals
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.source.group.recovery import RECOVERY_ACTIONS, GroupUse

GOES_ON = "the next run goes on without them"
LENIENT = "goes on (lenient)"
# Remedy → what an error says that names it. Their order and number decides what the operator of a seed chooses.
REMEDIES: Mapping[str, str] = {
    "allow losses": "failOnDataLoss=false",
    "new checkpoint": "new checkpoint",
    "set group": "rstream groups (seek|create)",
    "remove consumer": "rstream groups delete",
    "acknowledge": "rstream groups ack",
    "list pending": "without noAck",
    "start again": f"{GOES_ON}|started again",
}
LEDGER_REMEDIES: Mapping[str, str] = {
    "keep the rows": r"HSET (\S+) '(lossy (\d+):any)' 1 on the sink's server",
    "set done": r"HSET (\S+) (\S+) (\d+) to go on",
    "newer checkpoint": "use the newer checkpoint",
    "write again": "(with delivery=at-least-once|without option transaction) writes",
    # Else it is the second half of `keep the rows`.
    "start again": r"(?s)^(?!.*HSET \S+ '(lossy)).*(?i:start the query again)|another attempt",
}
# Errors that name one remedy, by their class.
_OTHERS: Mapping[str, str] = {
    "ConsumerTakenError": "start again",
    "StreamMissingError": "create the stream",
    "GroupExistsError": "restart the group",
    "GroupSharedError": "resume",
    "OffsetError": "set the options back",
    "ReplicationError": "repair the replication",
    "DecodeError": "another mode",
    "InvalidOptionError": "its mode again",
}


# What an error names, too, and only the operator of a plan with `restores` does.
RESTORING = {"restore a backup": "[Rr]estore (it|a backup|the old)", "newer checkpoint": "that was used last"}


def pair(finding: str, remedy: str) -> str:
    """Return the name of a pair."""
    return f"{finding} | {remedy}"


def named_in(text: str, remedies: Mapping[str, str] = REMEDIES) -> list[str]:
    """Return the remedies that an error names, in their order."""
    names = [name for name, words in remedies.items() if re.search(words, text)]
    return names or ["start again"] * ("suspended task" in text)


def finding_of(text: str, error: RStreamError | None = None) -> str:
    """Return the name of what an error, or a line of the log, reports; "": it is no line about a finding."""
    if error is None and "The query" not in text:
        return ""
    found = {
        len("".join(head + rest)): name
        for name, (head, rest, _) in _FINDINGS.items()
        if _fits(head if error is None else [*head, *rest], text)
    }
    name = found[max(found)] if found else "" if error is None else type(error).__name__
    return name if error is not None else name.partition(" ")[0]


def possible() -> dict[str, list[str]]:
    """Return the remedies that each finding has, by the texts of the product."""
    named = {name: list(remedies) for name, (_, _, remedies) in _FINDINGS.items()}
    for kind in RECOVERY_ACTIONS:
        named.setdefault(kind.name, []).append(LENIENT)
    return {**named, **{name: [remedy] for name, remedy in _OTHERS.items()}}


def report(met: Mapping[str, int]) -> str:
    """Return a line for each finding: its remedies, how often each was met, and those that never were."""
    lines, named = list[str](), possible()
    for finding in dict.fromkeys([*named, *sorted(one.partition(" | ")[0] for one in met)]):
        times = {one.partition(" | ")[2]: n for one, n in sorted(met.items()) if one.startswith(f"{finding} | ")}
        never = [remedy for remedy in named.get(finding, ()) if remedy not in times]
        shown = [*(f"{remedy} {n}" for remedy, n in times.items()), *(f"never: {remedy}" for remedy in never)]
        lines.append(f"  {finding}: {' · '.join(shown)}")
    pairs = [pair(finding, remedy) for finding, remedies in named.items() for remedy in remedies]
    missing = sum(one not in met for one in pairs)
    return "\n".join([f"findings and remedies: {len(pairs)} pairs · never met: {missing}", *lines])


def _fits(parts: Sequence[str], text: str) -> bool:
    """Whether a text has these parts in their order."""
    at = 0
    for part in parts:
        at = text.find(part, at) + len(part)
        if at < len(part):
            return False
    return True


def _parts(template: str) -> list[str]:
    return re.split(r"\{[^}]*\}", template)


_WORDS = {"seek": "rstream groups seek", "skip": "rstream groups seek", "create": "rstream groups create"}


def _of_the_source() -> Iterator[tuple[str, tuple[list[str], list[str], list[str]]]]:
    for row in RECOVERY_ACTIONS.values():
        for use in GroupUse if row.shared_advice else (GroupUse.ALONE,):
            advice = row.advice(use)
            shown = re.sub(r"\{(\w+)\}", lambda word: _WORDS.get(word[1], ""), advice)
            name = f"{row.kind.name} {use.value}" if row.shared_advice else row.kind.name
            yield name, (_parts(row.problem), _parts(advice), [*named_in(shown), *named_in(shown, RESTORING)])


_SAMPLES: Mapping[str, Any] = {
    "Batch": Batch.of_query(MicroBatchName("QQ", 77, ""), ""),
    "str": "SS", "bytes": b"SS", "str | bytes": "SS", "int": 88,
}  # fmt: skip


def _of_the_sink() -> Iterator[tuple[str, tuple[list[str], list[str], list[str]]]]:
    makers: list[Callable[..., LedgerError]] = [
        one for one in vars(refusals).values() if getattr(one, "__annotations__", {}).get("return") == "LedgerError"
    ]
    for make in makers:
        text = make(*(_SAMPLES[one.annotation] for one in signature(make).parameters.values())).message
        head = re.split("[0-9]+|QQ|SS", text.partition(" Cause: ")[0])
        yield f"ledger: {make.__name__}", (head, [], named_in(text, LEDGER_REMEDIES))


_FINDINGS: Mapping[str, tuple[list[str], list[str], list[str]]] = {**dict(_of_the_source()), **dict(_of_the_sink())}
