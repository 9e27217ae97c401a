"""What the server takes in one argument, one request and one reply, and how many clients. Pure."""

from __future__ import annotations

from spark_streams.doctor.finding import Finding, Level
from spark_streams.doctor.server_facts import ServerFacts, size, whole_or_zero

_ABOUT = "limits"
_ARGUMENT, _REQUEST = 512 << 20, 1 << 30  # bytes, where nobody has changed them
PAGE, LARGEST_PAGE = 4 << 20, 32 << 20  # bytes of entries that a task asks for at once (source.limits)
MANY = 0.85  # of maxclients


def look(facts: ServerFacts) -> list[Finding]:
    """Each that is lower than a server has by itself."""
    found = [*_sizes(facts), *_output(facts), *_clients(facts)]
    if found or not facts.config:
        return found
    return [Finding(Level.OK, _ABOUT, "as a server has them by itself")]


def _sizes(facts: ServerFacts) -> list[Finding]:
    argument, request = facts.setting("proto-max-bulk-len"), facts.setting("client-query-buffer-limit")
    found = []
    if argument is not None and argument < _ARGUMENT:
        found.append(
            Finding(
                Level.NOTE, _ABOUT, f"takes values of up to {size(argument)} (proto-max-bulk-len)",
                "a sink names the row that has a larger one, and stops",
                "a larger proto-max-bulk-len, where rows are larger",
            )
        )  # fmt: skip
    if request is not None and request < _REQUEST:
        found.append(
            Finding(
                Level.NOTE, _ABOUT, f"takes requests of up to {size(request)} (client-query-buffer-limit)",
                "a sink that may ask (CONFIG GET) sends smaller chunks; it names a row that is larger, and stops",
                "client-query-buffer-limit 1gb, as a server has it by itself",
            )
        )  # fmt: skip
    return found


def _output(facts: ServerFacts) -> list[Finding]:
    """client-output-buffer-limit: `normal 0 0 0 slave 268435456 67108864 60 …`, hard and soft bytes, seconds."""
    words = facts.config.get("client-output-buffer-limit", "").split()
    limits = {
        words[at]: (whole_or_zero(words[at + 1]), whole_or_zero(words[at + 2])) for at in range(0, len(words) - 3, 4)
    }
    least = min((limit for limit in limits.get("normal", ()) if limit), default=0)
    if least == 0 or least > 2 * LARGEST_PAGE:
        return []
    every = least <= 2 * PAGE
    which = "with more to read than that" if every else "of large entries"
    return [
        Finding(
            Level.DANGER if every else Level.WARNING,
            _ABOUT,
            f"closes clients that have {size(least)} of replies to take (client-output-buffer-limit normal)",
            f"tasks read {size(PAGE)} of entries at once, more of large ones: a query {which} loses its connection "
            "again and again, and fails after a minute (RSTREAM_RETRIES_EXHAUSTED)",
            'client-output-buffer-limit "normal 0 0 0", as a server has it by itself',
        )
    ]


def _clients(facts: ServerFacts) -> list[Finding]:
    found = []
    seconds = facts.setting("timeout")
    if seconds:
        found.append(
            Finding(
                Level.NOTE, _ABOUT, f"closes connections that say nothing for {seconds} s (timeout)",
                "they are made again when they are needed", "timeout 0, to save that",
            )
        )  # fmt: skip
    most, now = facts.setting("maxclients") or facts.number("maxclients"), facts.number("connected_clients")
    if most and now > MANY * most:
        found.append(
            Finding(
                Level.WARNING, _ABOUT, f"{now:,} of {most:,} clients (maxclients) are connected",
                "a task takes one or two connections; one that is refused is tried for a minute, then the query fails",
                "a larger maxclients, or fewer clients",
            )
        )  # fmt: skip
    return found
