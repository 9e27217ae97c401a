"""What may happen to the one query of a plan: each scenario gives a plan for each seed, of the simulation's powers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import redis

from spark_streams.operations.verify.history import id_key
from tools.simulation import powers_accidents
from tools.simulation.core_model.reader import LIMIT, STREAM, ModelReader
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.options import CLAIM_IDLE
from tools.simulation.reasons import Reason
from tools.simulation.run import run
from tools.simulation.setup import NEVER_AHEAD, Plan, Setup, Step, random_step
from tools.simulation.world import BETWEEN, GROUP, Failure, World

TRIGGERS = 14

_OF_ONE_CHECKPOINT: Mapping[str, tuple[str, ...]] = {
    "kills only": (),
    "shared": ("shared",),
    "claims": ("shared", "claims"),
    "hand-over": ("shared", "hand"),
    "taken": ("shared", "hand", "take"),
    "released": ("shared", "xnack"),
    "removed": ("trim", "xdel"),
    "removed, shared": ("trim", "xdel", "shared"),
    "group moved": ("setid",),
    "group moved, shared": ("setid", "shared"),
    "group sought": ("seek",),
    "counter forgotten": ("shared", "forget"),
    "group destroyed": ("destroy",),
    "group destroyed, shared": ("destroy", "shared"),
    "consumer deleted": ("delconsumer", "ack_ours"),
    "consumer deleted, shared": ("delconsumer", "shared"),
    "stream deleted": ("delete",),
    "server restored": ("restore",),
    "server restored, shared": ("restore", "shared"),
    "server restored, hand-over": ("restore", "shared", "hand"),
    "older checkpoint": ("checkpoint",),
    "older checkpoint, shared": ("checkpoint", "shared"),
    "older checkpoint, claims": ("checkpoint", "shared", "claims"),
    "mark lost": ("lose_mark", "shared", "hand"),
    "everything": (
        "shared", "claims", "hand", "take", "xnack", "trim", "xdel", "setid", "destroy", "restore", "checkpoint",
    ),
}  # fmt: skip
_NEVER_RENEWED = {"kills only", "counter forgotten", "consumer deleted, shared", "server restored, hand-over"}
BASE: Mapping[str, tuple[str, ...]] = {
    **_OF_ONE_CHECKPOINT,
    "new checkpoint": ("renew",),
    **{
        f"new checkpoint, {name}": ("renew", *powers)
        for name, powers in _OF_ONE_CHECKPOINT.items()
        if name not in _NEVER_RENEWED
    },
}
# What a power of a scenario is in the simulation.
_KINDS: Mapping[str, tuple[str, ...]] = {
    "shared": ("read", "acknowledge"),
    "claims": ("die",),
    "hand": ("give",),
    "take": ("grab",),
    "xnack": ("release",),
    "trim": ("trim",),
    "xdel": ("delete",),
    "setid": ("setid",),
    "seek": ("seek",),
    "forget": ("forget",),
    "destroy": ("destroy", "remake"),
    "delconsumer": ("expel",),
    "ack_ours": ("settle",),
    "delete": ("vanish",),
    "restore": ("backup", "restore"),
    "checkpoint": ("rollback", "lose_commits"),
    "renew": ("renew",),
    "lose_mark": ("evict",),
}
_BETWEEN_TRIGGERS = ("rollback", "lose_commits", "renew", "seek")  # no process of the driver runs then
_MARKS = (("key", "rstream:committed:*"),)


@dataclass(frozen=True)
class Scenario:
    """powers: what may happen; in_step: nothing happens between two commands, so that two subjects with other commands
    have the same history."""

    name: str
    powers: tuple[str, ...]
    strict: bool = True
    in_step: bool = False

    def __str__(self) -> str:
        return f"{self.name}{'' if self.in_step else ', amid'}/{'strict' if self.strict else 'lenient'}"

    def plan(self, seed: int) -> Plan:
        """Return the plan of a seed."""
        chance = random.Random(f"{seed} {self.name}")
        kinds = ("add", *(kind for power in self.powers for kind in _KINDS[power]))
        steps = [Step("add", 0, 0.0, chance.random())]
        for _ in range(TRIGGERS):
            for _ in range(chance.randrange(3)):
                kind = chance.choice(kinds)
                may_wait = not (self.in_step or kind in _BETWEEN_TRIGGERS)
                if kind == "seek":
                    steps.append(Step("kill"))  # a running query would not follow
                step = random_step(chance, kind, chance.choice([0, chance.randint(1, 40)]) if may_wait else 0)
                steps.append(replace(step, options=_MARKS) if kind == "evict" else step)
            if self.in_step and chance.random() < 0.3:
                steps.append(Step("kill", chance.randint(1, 6), at=BETWEEN))
            elif not self.in_step and chance.random() < 0.4:
                steps.append(Step("kill", chance.randint(1, 40)))
            steps.append(Step("trigger"))
        options = {"streams": STREAM, "startingOffsets": "earliest", "maxEntriesPerTrigger": str(LIMIT)}
        options |= {} if self.strict else {"failOnDataLoss": "false"}
        options |= {"claimIdle": CLAIM_IDLE} if "claims" in self.powers else {}
        ahead = NEVER_AHEAD if self.in_step or "claims" in self.powers else 1
        limits = {"reserve_step": LIMIT} if self.in_step else {}
        pace = -1 if self.in_step else chance.choice([-1, 0, 1])
        return Plan(Setup(seed, 1, "recorder", ahead, pace, options, 0, limits=limits), tuple(steps))


def forget(world: World, step: Step) -> None:
    """A replica becomes the master that knows how many entries the group had read at its begin (Redis 7.0).
    Once: a second time before the next offset is not noticed."""
    stream = world.model.stream(STREAM)
    for group in world.client.xinfo_groups(STREAM) if world.client.exists(STREAM) else []:
        is_known = group["name"] == GROUP and group["entries-read"] and group["consumers"] > 1
        if is_known and "counter forgotten" not in stream.ever:
            stream.ever.add("counter forgotten")
            world.client.xgroup_setid(STREAM, GROUP, id=group["last-delivered-id"], entries_read=0)


SCENARIOS = [Scenario(name, powers, strict) for name, powers in BASE.items() for strict in (True, False)]
# Powers after which model and product may divide the same entries into other batches, or find one thing as another:
# the product creates its group at another moment, and sees released entries a trigger later.
_OTHERWISE = {"destroy", "delete", "restore", "delconsumer", "xnack"}
_OTHERWISE_UNDER_A_NEW_CHECKPOINT = {"setid", "checkpoint", "xdel", "claims", "seek"}


def _is_alike(powers: set[str]) -> bool:
    return not powers & (_OTHERWISE | (_OTHERWISE_UNDER_A_NEW_CHECKPOINT if "renew" in powers else set()))


# Model and product do the same, step by step.
ALIKE = [replace(scenario, in_step=True) for scenario in SCENARIOS if _is_alike(set(scenario.powers))]


def restore(world: World, step: Step) -> None:
    """Restore the server. The model goes on where the restored group is, and reads again what was written above."""
    powers_accidents.restore(world, step)
    seen, written = world.see(STREAM), {row.value[1] for row in world.sink.rows()}
    ours, position = {*seen.ours()}, id_key(seen.position or "0-0")
    for entry in world.model.entries_of(STREAM):
        if entry.n in written and (entry.key > position or entry.id in ours):
            entry.repeat_reasons.add(Reason.OF_THE_MODEL)


def failures(
    server: ProcessServer,
    client: redis.Redis,
    scenario: Scenario,
    seed: int,
    is_model: bool = True,
    trace: list[Any] | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[Failure]:
    """Run the plan of a seed with the model, or with the product. Return the failures."""
    reader_of, beside = (ModelReader.of, {"restore": restore}) if is_model else (None, {})
    return run(server, client, scenario.plan(seed), tell, {"forget": forget, **beside}, reader_of, trace).failures


def differences(server: ProcessServer, client: redis.Redis, scenario: Scenario, seed: int) -> list[str]:
    """Return what goes wrong in the run of the model or of the product, and the first step in which they differ."""
    model: list[Any] = []
    product: list[Any] = []
    wrong = [
        f"{name}: {failure.kind}"
        for name, trace in (("model", model), ("product", product))
        for failure in failures(server, client, scenario, seed, name == "model", trace)
    ]
    if model != product:
        pairs = zip(model, product, strict=False)
        place = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(model), len(product)))
        wrong.append(f"step {place}: {model[place : place + 1]} {product[place : place + 1]}")
    return wrong
