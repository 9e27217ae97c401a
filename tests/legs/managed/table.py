"""The table of services, from what was tried: `python -m tests.legs.managed.table [NAME…]`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import redis

from spark_streams.connector.errors import RStreamError
from tests.legs.managed.capabilities import CAPABILITIES, jobs, verify
from tools.driving import forget_all
from tools.servers.managed.standin import NAMES, Service, StandIn, running_standin

PAGE = Path(__file__).parents[3] / "docs/reference/servers.md"
VERIFIED = ("elasticache-serverless", "memorystore-redis", "redis-software")
_HEARD = "each entry also goes to the driver (1 kB: 2 µs)"
_RESERVING = ("source", "acknowledge", "shared", "noAck", "claims", "retries", "lease", "lost lease")


@dataclass
class Found:
    """What was tried on a stand-in."""

    service: Service
    program: str
    costs: dict[str, list[str]] = field(default_factory=dict)  # what it costs → capabilities
    errors: dict[str, list[str]] = field(default_factory=dict)  # condition, or what went wrong → capabilities
    tried: list[str] = field(default_factory=list)

    def note(self, title: str, cost: str | None, error: str | None) -> None:
        """Note a capability."""
        self.tried.append(title)
        for told, by in ((cost, self.costs), (error, self.errors)):
            if told:
                by.setdefault(told, []).append(title)

    def row(self) -> str:
        """Return its line of the table."""
        one = self.service
        is_same = self.program.startswith(one.version) if one.version else True
        ran = self.program if is_same else f"{one.version}, on {self.program}"
        kind = "commands" if one.exact else "exceptions"
        cells = [f"[{one.title}]({one.source})", ran, f"{kind}, {one.date}"]
        for by, form in ((self.costs, "{}"), (self.errors, "`{}`")):
            groups = [f"{self._names(titles)}: {form.format(told)}" for told, titles in by.items()]
            cells.append("; ".join(groups) or "–")
        return f"| {' | '.join(cells)} |"

    def _names(self, titles: list[str]) -> str:
        left = [title for title in self.tried if title not in titles]
        if not left:
            return "all"
        return f"all but {', '.join(left)}" if len(left) < len(titles) else ", ".join(titles)


def services(names: list[str]) -> dict[str, Service]:
    """Return these services; one whose page is silent on commands also without these."""
    found = {}
    for name in names:
        one = Service.named(name)
        found[name] = one
        if one.silent:
            found[f"{name} refused"] = one.refusing_the_silent()
    return found


def try_on(standin: StandIn) -> Found:
    """Try all capabilities but those that start Spark."""
    found = Found(standin.service, standin.program)
    heard = None if _may_be_silent(standin) else _HEARD
    for title, capability in CAPABILITIES.items():
        with standin.admin.client() as client:
            client.flushall()
        cost = error = None
        try:
            cost = capability(standin) or (heard if title in _RESERVING else None)
        except RStreamError as raised:
            error = raised.condition
        except AssertionError as raised:
            error = str(raised)
        finally:
            forget_all()
        found.note(title, cost, error)
    return found


def with_spark(standins: Mapping[str, StandIn], names: Mapping[str, str]) -> list[str]:
    """Try etl and archive on each, and verify on some. Return lines. names: title of each service."""
    wrong = jobs(standins)
    wrong_verify = {name: told for name in VERIFIED if (told := verify(standins[name]))}
    lines = []
    for what, where, failed in (
        ("Jobs `etl` and `archive`", "all", wrong),
        ("`rstream verify`", "; ".join(names[name] for name in VERIFIED), wrong_verify),
    ):
        lines += [f"{what}, tried on {where}: {'refused by these' if failed else 'works'}.", ""]
        by = dict[str, list[str]]()
        for name, told in failed.items():
            by.setdefault(told, []).append(names[name])
        lines += [*(f"- `{told}`: {'; '.join(titles)}" for told, titles in by.items()), *[""] * bool(by)]
    return lines


def _may_be_silent(standin: StandIn) -> bool:
    with standin.admin.client() as admin:
        try:
            return bool(admin.execute_command("ACL", "DRYRUN", "service", "CLIENT", "REPLY", "ON") == b"OK")
        except redis.ResponseError:  # older than 7.0
            return "-client" not in standin.service.rules


def page(found: Mapping[str, Found], with_spark: list[str]) -> str:
    """Return the page. with_spark: its lines on what starts Spark."""
    lines = [
        "# Managed servers",
        "",
        "**Never met; imitated from the documentation of the date in the table.** A server whose user has the",
        "documented commands stands in, with the documented limits. No other behaviour of a service is imitated.",
        "A list names all commands, or only exceptions. An undated page has the date when a copy was read.",
        "",
        f"Tried: {', '.join(CAPABILITIES)}. What the last two columns do not name works. [Errors](errors.md) says",
        "what to do, [options](options.md#noAck) what noAck is.",
        "",
        "| Service | Version, tried on | List, date | Works in another way: cost | Refused: error |",
        "|---|---|---|---|---|",
        *(one.row() for one in found.values()),
        "",
        *with_spark,
        "Requests have at most 3,900 arguments; larger ones are split.",
        "",
    ]
    return "\n".join(lines)


def main(names: list[str]) -> int:
    """Print the rows of these services; or of all, and write the page. Exit code 1 if the page has changed."""
    found = dict[str, Found]()
    with contextlib.ExitStack() as stack:
        standins = {name: stack.enter_context(running_standin(one)) for name, one in services(names or NAMES).items()}
        for name, standin in standins.items():
            found[name] = try_on(standin)
            print(found[name].row(), flush=True)
        if names:
            return 0
        told = with_spark(standins, {name: one.service.title for name, one in standins.items()})
    before, now = PAGE.read_text("utf-8"), page(found, told)
    PAGE.write_text(now, encoding="utf-8")
    return int(now != before)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
