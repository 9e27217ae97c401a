"""A server of kind `process`, with the fields and methods of the other kinds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import redis

from tools.servers.server import Server
from tools.simulation.in_process.client import CoreClient
from tools.simulation.in_process.core import Core


@dataclass(frozen=True)
class ProcessServer(Server):
    """The engine's core in this process. Its URL names no machine: only a patched product reaches it (patches.py)."""

    kind: str = "process"
    url: str = "redis://process:1/0"
    core: Core = field(default_factory=Core)

    def another(self) -> ProcessServer:
        """Start one more server on the plan's clock. It ends when the next plan begins."""
        url = f"redis://process:{2 + len(self.core.others)}/0"
        return ProcessServer(url=url, core=self.core.another(url))

    def client(self, **options: Any) -> redis.Redis:
        """A client with the commands of redis-py. decode_responses: replies are text."""
        return CoreClient(self.core, **options)
