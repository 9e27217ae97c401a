"""Check of the server's limits: size of arguments, requests and replies, and number of clients. Pure."""

from __future__ import annotations

from spark_streams.base.sizes import size
from spark_streams.operations.doctor.finding import Finding, Level
from spark_streams.operations.doctor.server_facts import ServerFacts, whole_or_zero

_ABOUT = "limits"
_ARGUMENT, _REQUEST = 512 << 20, 1 << 30  # bytes: the server's defaults
PAGE, LARGEST_PAGE = 4 << 20, 32 << 20  # bytes of entries that a task requests at once (source.limits)
MANY = 0.85  # of maxclients


def check(facts: ServerFacts) -> list[Finding]:
    """Check for limits that are lower than the server's defaults."""
    findings = [*_sizes(facts), *_output(facts), *_clients(facts)]
    if findings or not facts.config:
        return findings
    return [Finding(Level.OK, _ABOUT, "as the server's defaults, or higher")]


def _sizes(facts: ServerFacts) -> list[Finding]:
    argument, request = facts.setting("proto-max-bulk-len"), facts.setting("client-query-buffer-limit")
    findings = []
    if argument is not None and argument < _ARGUMENT:
        findings.append(
            Finding(
                Level.NOTE, _ABOUT, f"accepts values of up to {size(argument)} (proto-max-bulk-len)",
                "a sink fails with an error that names the row with a larger value",
                "set a larger proto-max-bulk-len, if rows are larger",
            )
        )  # fmt: skip
    if request is not None and request < _REQUEST:
        findings.append(
            Finding(
                Level.NOTE, _ABOUT, f"accepts requests of up to {size(request)} (client-query-buffer-limit)",
                "a sink sends smaller chunks, if it may run CONFIG GET; it fails with an error that names a larger row",
                "set client-query-buffer-limit 1gb, the server's default",
            )
        )  # fmt: skip
    return findings


def _output(facts: ServerFacts) -> list[Finding]:
    """Check client-output-buffer-limit: `normal 0 0 0 slave 268435456 67108864 60 …`: hard and soft bytes, seconds."""
    words = facts.config.get("client-output-buffer-limit", "").split()
    limits = {
        words[index]: (whole_or_zero(words[index + 1]), whole_or_zero(words[index + 2]))
        for index in range(0, len(words) - 3, 4)
    }
    smallest = min((limit for limit in limits.get("normal", ()) if limit), default=0)
    if smallest == 0 or smallest > 2 * LARGEST_PAGE:
        return []
    stops_all_queries = smallest <= 2 * PAGE
    condition = "with more to read than that" if stops_all_queries else "of large entries"
    return [
        Finding(
            Level.DANGER if stops_all_queries else Level.WARNING,
            _ABOUT,
            f"closes connections with {size(smallest)} of unread replies (client-output-buffer-limit normal)",
            f"tasks read {size(PAGE)} of entries at once, more if entries are large: a query {condition} loses its "
            "connection repeatedly, and fails after a minute (RSTREAM_RETRIES_EXHAUSTED)",
            'set client-output-buffer-limit "normal 0 0 0", the server\'s default',
        )
    ]


def _clients(facts: ServerFacts) -> list[Finding]:
    findings = []
    seconds = facts.setting("timeout")
    if seconds:
        findings.append(
            Finding(
                Level.NOTE, _ABOUT, f"closes connections that are idle for {seconds} s (timeout)",
                "queries connect again when they need to", "set timeout 0 to avoid this",
            )
        )  # fmt: skip
    max_clients, clients = facts.setting("maxclients") or facts.number("maxclients"), facts.number("connected_clients")
    if max_clients and clients > MANY * max_clients:
        findings.append(
            Finding(
                Level.WARNING, _ABOUT, f"{clients:,} of {max_clients:,} clients (maxclients) are connected",
                "a task uses one or two connections; if one is refused, it is retried for a minute, then the query "
                "fails",
                "set a larger maxclients, or use fewer clients",
            )
        )  # fmt: skip
    return findings
