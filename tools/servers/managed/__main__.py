"""`scripts/servers managed NAME`: run the stand-in of a managed service until Ctrl-C; without a name, list them."""

from __future__ import annotations

import contextlib
import signal
import sys

from tools.servers.managed.standin import NAMES, Service, running_standin


def main(words: list[str]) -> int:
    """Exit code."""
    if len(words) != 1 or words[0] not in NAMES:
        for name in NAMES:
            service = Service.named(name)
            print(f"{name:24} {service.title}, as documented on {service.date}: {service.source}")
        return 2 if words else 0
    with running_standin(Service.named(words[0])) as standin, contextlib.suppress(KeyboardInterrupt):
        print(f"{standin.url}   (all rights: {standin.admin.url})", flush=True)
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
