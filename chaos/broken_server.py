"""The server itself goes away for a while, under a query that reads and a producer that writes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from chaos.producer import Producer
from chaos.scene import Outcome, Scene
from chaos.servers import KeptServer, kept_server


def killed(scene: Scene) -> Outcome:
    """SIGKILL of the server, and a start with what it had kept: the query goes on by itself."""

    def strike(server: KeptServer) -> None:
        server.kill()
        time.sleep(scene.random.random())
        server.start()

    return _while_reading(scene, strike)


def paused(scene: Scene) -> Outcome:
    """SIGSTOP of the server for some seconds; the producer gives up on replies before that."""

    def strike(server: KeptServer) -> None:
        server.signal(signal.SIGSTOP)
        time.sleep(1 + 4 * scene.random.random())
        server.signal(signal.SIGCONT)

    return _while_reading(scene, strike)


def _while_reading(scene: Scene, strike: Callable[[KeptServer], None]) -> Outcome:
    """The scene on a server of its own that is struck three times."""
    with kept_server(scene.kind, scene.folder / f"{scene.name}-kept") as server:
        there = replace(scene, url=server.url)
        hasty = Producer(server.url, "hasty", patience=0.5)
        query = there.query(maxEntriesPerTrigger=str(scene.random.randint(20, 80)))
        there.producer.add(there.name, 100)
        running = there.start(query)
        there.wait_for(lambda: query.committed() >= 0, "the first batch", running)
        done = threading.Event()

        def produce() -> None:
            while not done.is_set():
                hasty.add(there.name, 1)
                time.sleep(0.01)

        producing = threading.Thread(target=produce)
        producing.start()
        try:
            for _ in range(3):
                before = query.committed()
                strike(server)
                there.wait_for(lambda before=before: query.committed() > before, "a batch after the blow", running)
        finally:
            done.set()
            producing.join()
        there.wait_for(lambda: there.is_settled(query), "all to be settled", running)
        running.processAllAvailable()
        running.stop()
        there.producer.added += hasty.added
        outcome = there.outcome(query)
        there.close()
    return outcome
