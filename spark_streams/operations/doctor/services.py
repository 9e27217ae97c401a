"""Which managed service a server probably is, and what a query does there. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from spark_streams.operations.doctor.server_facts import ENGINE, Findings, Level, ServerFacts, ServerFinding

# By the host of the URL; the first that fits.
_HOSTS = (
    (r"\.serverless\..*\.cache\.amazonaws\.com", "ElastiCache Serverless"),
    (r"\.cache\.amazonaws\.com", "ElastiCache"),
    (r"\.memorydb\..*\.amazonaws\.com", "MemoryDB"),
    (r"\.redis\.cache\.windows\.net", "Azure Cache for Redis"),
    (r"\.redis(enterprise\.cache)?\.azure\.net", "Azure Managed Redis"),
    (r"\.redis-cloud\.com|\.redislabs\.com", "Redis Cloud"),
    (r"\.upstash\.io", "Upstash"),
    (r"\.aivencloud\.com", "Aiven"),
)
# By what they refuse besides CONFIG. (A user with few rights may not list clients, either.)
_REFUSING = {
    frozenset[str](): "ElastiCache, MemoryDB or Tair",
    frozenset(("ACL",)): "Azure Cache for Redis",
    frozenset(("ACL", "COMMAND", "LASTSAVE")): "Aiven",
    frozenset(("ACL", "LASTSAVE")): "Memorystore",
}
# What cannot be checked if the user may not run a command.
_UNKNOWN = {"INFO": "memory, persistence and replicas", "CONFIG": "limits and flush intervals"}
_EFFECTS = {
    "ElastiCache Serverless": "it takes no request of more than 3,999 arguments: longer ones are sent in parts",
    "Azure Cache for Redis": "it closes connections that are idle for ten minutes: a query connects again",
}


def probable_service(facts: ServerFacts) -> tuple[str, str]:
    """Return a service, and by what it is recognized; both are empty if it is not known."""
    host = urlsplit(facts.address).hostname or ""
    for pattern, name in _HOSTS:
        if re.search(f"({pattern})$", host):
            return name, "its address"
    others = frozenset(facts.refused) - {"CONFIG"}
    name = _REFUSING.get(others, "") if "CONFIG" in facts.refused and facts.kind != ENGINE else ""
    return name, f"it refuses {', '.join(facts.refused)}" if name else ""


def check_service(facts: ServerFacts) -> Findings:
    """Name the service, what cannot be checked, and what a query does differently there."""
    name, reason = probable_service(facts)
    unasked = [command for command in _UNKNOWN if command in facts.refused]
    effects = [_EFFECTS[name]] if name in _EFFECTS else []
    effects += [f"{', '.join(_UNKNOWN[command] for command in unasked)} cannot be checked"] if unasked else []
    effects += ["a query does not warn if the server evicts keys"] if "INFO" in unasked else []
    if name:
        effect = "; ".join(effects) or "its operator decides about limits, memory and persistence"
        remedy = "use the service's console in place of CONFIG SET; rstream help servers says what works there"
        yield ServerFinding(Level.NOTE, "service", f"probably {name} ({reason})", effect, remedy)
    elif unasked:
        observation = f"{facts.user or 'this user'} may not run {' and '.join(unasked)}"
        remedy = "run rstream doctor again with the URL of an administrator"
        yield ServerFinding(Level.NOTE, "asking", observation, "; ".join(effects), remedy)
