"""What may happen in the histories, what may go wrong, and which limit explains it."""

from __future__ import annotations

import re

from tools.simulation.core_model.clients import Scenario

BASE: dict[str, tuple[str, ...]] = {
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
    "poison": ("poison",),
    "poison, shared": ("poison", "shared", "hand"),
    "poison, record lost": ("poison", "lose_record"),
    "new checkpoint": ("renew",),
    "new checkpoint, shared": ("renew", "shared"),
    "new checkpoint, claims": ("renew", "shared", "claims"),
    "new checkpoint, hand-over": ("renew", "shared", "hand"),
    "new checkpoint, taken": ("renew", "shared", "hand", "take"),
    "new checkpoint, released": ("renew", "shared", "xnack"),
    "new checkpoint, removed": ("renew", "trim", "xdel"),
    "new checkpoint, removed, shared": ("renew", "trim", "xdel", "shared"),
    "new checkpoint, group moved": ("renew", "setid"),
    "new checkpoint, group moved, shared": ("renew", "setid", "shared"),
    "new checkpoint, group destroyed": ("renew", "destroy"),
    "new checkpoint, group destroyed, shared": ("renew", "destroy", "shared"),
    "new checkpoint, consumer deleted": ("renew", "delconsumer", "ack_ours"),
    "new checkpoint, stream deleted": ("renew", "delete"),
    "new checkpoint, server restored": ("renew", "restore"),
    "new checkpoint, server restored, shared": ("renew", "restore", "shared"),
    "new checkpoint, older checkpoint": ("renew", "checkpoint"),
    "new checkpoint, older checkpoint, shared": ("renew", "checkpoint", "shared"),
    "new checkpoint, older checkpoint, claims": ("renew", "checkpoint", "shared", "claims"),
    "new checkpoint, mark lost": ("renew", "lose_mark", "shared", "hand"),
    "new checkpoint, poison": ("renew", "poison"),
    "everything": (
        "shared", "claims", "hand", "take", "xnack", "trim", "xdel", "setid", "destroy", "restore", "checkpoint",
    ),
    "new checkpoint, everything": (
        "renew", "shared", "claims", "hand", "take", "xnack", "trim", "xdel", "setid", "destroy", "restore",
        "checkpoint",
    ),
}  # fmt: skip
AMID = (
    "removed",
    "removed, shared",
    "group moved",
    "group moved, shared",
    "group destroyed",
    "consumer deleted",
    "stream deleted",
    "server restored",
    "server restored, shared",
    "new checkpoint, removed",
    "new checkpoint, removed, shared",
    "new checkpoint, group moved",
    "new checkpoint, group moved, shared",
    "new checkpoint, group destroyed",
    "new checkpoint, consumer deleted",
    "new checkpoint, server restored",
)
SCENARIOS = [
    *[Scenario(name, powers, strict) for name, powers in BASE.items() for strict in (True, False)],
    *[Scenario(f"{name}, amid", BASE[name], strict, True) for name in AMID for strict in (True, False)],
]
# Powers after which model and product may divide the same entries into other batches, or find one thing as another:
# the product creates its group at another moment, and sees released entries a trigger later. It records batches that
# kill the query in another way.
_OTHERWISE = {"destroy", "delete", "restore", "delconsumer", "xnack", "poison", "lose_record"}
_OTHERWISE_UNDER_A_NEW_CHECKPOINT = {"setid", "checkpoint", "xdel", "claims"}


def _is_alike(powers: set[str]) -> bool:
    otherwise = _OTHERWISE | (_OTHERWISE_UNDER_A_NEW_CHECKPOINT if "renew" in powers else set())
    return not powers & otherwise


# Model and product do the same, step by step.
ALIKE = [
    Scenario(name, powers, strict, in_step=True)
    for name, powers in BASE.items()
    if _is_alike(set(powers))
    for strict in (True, False)
]
# The product alone is judged by the truth.
OF_THE_PRODUCT = [s for s in SCENARIOS if "poison" not in s.powers and (s.amid or not _is_alike(set(s.powers)))]
KINDS = (
    "silent loss", "acknowledged early", "read twice", "changed replay", "pending after drain", "false alarm",
    "stopped again", "no end", "unseen loss",
)  # fmt: skip

LIMITS = {  # pattern of a failure: number of the sentence under "Limits" in the package's docstring
    r"^unseen loss (handed over, )?restore": 1,
    r"^(silent|unseen) loss (handed over, )?setid_forward, shared": 2,
    r"^(silent loss (handed over, )?(trim|xdel|removed .*)( before the first batch)?|unseen loss .*), shared": 3,
    r"^silent loss (handed over, (destroy|delconsumer|delete|restore)|(delconsumer|destroy), shared)": 4,
    r"^stopped again ENTRIES_LOST, shared": 5,
    r"^(false alarm SERVER_RESTORED|silent loss ack_ours)$": 6,
    r"^pending after drain .*setid_back.*, shared": 9,
    r"^unseen loss .*before the first batch": 10,
    r"^false alarm ENTRIES_LOST, counter forgotten": 11,
    r"^silent loss .*(ack_ours|delconsumer|delete|destroy|restore|setid_forward) before the first batch": 10,
}


def kind_of(failure: str) -> str:
    """Return a failure without its entry."""
    return re.sub(r" \(.*?\)", "", failure)


def limit_of(failure: str) -> int:
    """Return the number of the limit that explains a failure; 0: none."""
    plain = failure.replace(", new checkpoint", "")
    return next((number for pattern, number in LIMITS.items() if re.search(pattern, plain)), 0)
