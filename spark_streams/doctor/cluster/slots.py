"""Whether every slot has a node, and all nodes agree which. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from spark_streams.doctor.cluster.facts import ClusterFacts, names
from spark_streams.doctor.finding import Finding, Level
from spark_streams.keys import SLOTS
from spark_streams.wire.topology import SlotMap

_ABOUT = "slots"
_SHOWN = 4  # ranges, or slots


def look(facts: ClusterFacts) -> list[Finding]:
    """Slots that nobody has, that nodes do not agree on, that are half way."""
    if facts.map is None:
        return []
    bare = [slot for slot, owner in enumerate(facts.map.owners) if owner is None]
    found = [*_bare(facts, bare), *_down(facts, bool(bare)), *_disputed(facts, bare), *_half_moved(facts)]
    well = Finding(Level.OK, _ABOUT, f"all {SLOTS:,} have a node, and the nodes agree which")
    return [*(found or [well]), *_untold(facts)]


def covered(known: SlotMap) -> int:
    """How many slots have a node."""
    return sum(owner is not None for owner in known.owners)


def _mend(facts: ClusterFacts) -> str:
    """redis-cli wants a node that answers."""
    whom = next((one.name for one in facts.reached), facts.members[0].name)
    return f"redis-cli --cluster fix {whom}"


def _bare(facts: ClusterFacts, bare: list[int]) -> list[Finding]:
    if not bare:
        return []
    effect = (
        "no node serves anything (CLUSTERDOWN): queries wait for a minute, then they fail"
        if facts.stops_as_a_whole
        else "streams in them are refused (CLUSTERDOWN): queries that use one wait for a minute, then they fail"
    )
    return [
        Finding(
            Level.DANGER, _ABOUT, f"{len(bare):,} of {SLOTS:,} have no node: {ranges(bare)}", effect,
            f"start the nodes that had them; where those are gone for good: {_mend(facts)}",
        )
    ]  # fmt: skip


def _down(facts: ClusterFacts, is_explained: bool) -> list[Finding]:
    """Nodes that serve nothing, which most of the others may not be."""
    down = [one for one in facts.members if one.view is not None and not one.view.is_ok]
    if not down or is_explained:
        return []
    return [
        Finding(
            Level.DANGER, _ABOUT, "the cluster is down, as these nodes see it (cluster_state:fail)",
            "they refuse everything (CLUSTERDOWN): queries wait for a minute, then they fail",
            "bring back the masters that are away, or mend the network between the nodes (also to their cluster bus, "
            "port + 10,000)",
            nodes=names(down),
        )
    ]  # fmt: skip


def _disputed(facts: ClusterFacts, bare: list[int]) -> list[Finding]:
    views = [one.view.owners for one in facts.members if one.view is not None]
    differ = {slot for slot, owners in enumerate(zip(*views, strict=True)) if len(set(owners)) > 1}
    disputed = sorted(differ.difference(bare))
    if not disputed:
        return []
    return [
        Finding(
            Level.WARNING, _ABOUT, f"the nodes do not agree who has {len(disputed):,} of them: {ranges(disputed)}",
            "while slots move that is so for a moment, and is followed; where it stays, queries that use them wait for "
            "a minute, then they fail",
            f"run this again; where it stays: {_mend(facts)}",
        )
    ]  # fmt: skip


def _half_moved(facts: ClusterFacts) -> list[Finding]:
    # Replicas of Valkey 8 say it, too.
    moving = [one for one in facts.masters if one.table is not None and one.table.half_moved]
    slots = sorted({slot for one in moving if one.table is not None for slot in one.table.half_moved})
    if not slots:
        return []
    return [
        Finding(
            Level.WARNING, _ABOUT, f"on their way from one node to another: {ranges(slots)}",
            "what is a transaction (rows of a sink, dead letters) waits until they have arrived, for a minute, then "
            "the query fails",
            f"let the reshard end; where nobody moves them any more: {_mend(facts)}",
            nodes=names(moving),
        )
    ]  # fmt: skip


def _untold(facts: ClusterFacts) -> list[Finding]:
    untold = [one for one in facts.reached if one.table is None]
    if not untold:
        return []
    return [
        Finding(
            Level.NOTE, "asking", "this user may not run CLUSTER NODES",
            "slots that are half way, and replicas that have failed, are not known here",
            "run this once more with an administrator's url",
            names(untold),
        )
    ]  # fmt: skip


def ranges(slots: Iterable[int]) -> str:
    """`0-5460, 9000 …`: slots in ascending order."""
    found: list[list[int]] = []
    for slot in slots:
        if found and slot == found[-1][1] + 1:
            found[-1][1] = slot
        else:
            found.append([slot, slot])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found[:_SHOWN])
    return f"{shown} …" if len(found) > _SHOWN else shown
