"""The table service × capability, from what was tried: `python -m tests.legs.managed.table [NAME…]`."""

from __future__ import annotations

import sys
from pathlib import Path

from spark_streams.connector.errors import RStreamError
from tests.legs.managed.capabilities import CAPABILITIES
from tools.driving import forget_all
from tools.servers.managed.standin import NAMES, Service, StandIn, running_standin

WORKS = "✓"
HEARD = "✓†"  # each entry is also sent to the driver
PAGE = Path(__file__).parents[3] / "docs/reference/servers.md"


def outcomes(name: str) -> dict[str, str]:
    """Try all capabilities on the stand-in of a service. Return each one's cell: works, or the error."""
    found = {}
    with running_standin(Service.named(name)) as standin:
        for title in CAPABILITIES:
            with standin.admin.client() as client:
                client.flushall()
            found[title] = _outcome(standin, title)
    return found


def _outcome(standin: StandIn, title: str) -> str:
    try:
        CAPABILITIES[title](standin)
    except RStreamError as error:
        return f"`{error.condition}`"
    except AssertionError as error:
        return f"fails: {error}"
    finally:
        forget_all()
    return HEARD if title in _RESERVING and not _may_be_silent(standin) else WORKS


_RESERVING = ("source", "acknowledge", "shared", "noAck", "claims", "retries", "lease")


def _may_be_silent(standin: StandIn) -> bool:
    with standin.admin.client() as admin:
        return bool(admin.execute_command("ACL", "DRYRUN", "service", "CLIENT", "REPLY", "ON") == b"OK")


def main(names: list[str]) -> int:
    """Print the page; of all services, write it. Exit code 1 if something does not work."""
    results = {name: outcomes(name) for name in names or NAMES}
    services = {name: Service.named(name) for name in results}
    read = max(str(one.read) for one in services.values())
    lines = [
        *("# Managed servers", "", "No service was used. A redis-server whose user has the documented commands stands"),
        *(f"in, with the documented limit of arguments (documentation of {read}).", ""),
        f"| | {' | '.join(f'[{one.title}]({one.source})' for one in services.values())} |",
        "|---|" + "---|" * len(results),
        *(f"| {title} | {' | '.join(cells[title] for cells in results.values())} |" for title in CAPABILITIES),
        *("", "†: without `CLIENT REPLY` the driver also receives, and drops, each entry of the row's query; with"),
        *("`noAck` only under a limit.", "Requests have at most 3,900 arguments; larger ones are split."),
    ]
    print("\n".join(lines))
    if not names:
        PAGE.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return int(any(not cell.startswith(WORKS) for cells in results.values() for cell in cells.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
