"""The server that a query writes to is down for a long time, and the query restarts often: no entry is to blame."""

from __future__ import annotations

from dataclasses import replace

from tools.chaos.query import into_a_stream
from tools.chaos.scene import Outcome, Scene
from tools.chaos.servers import durable_server


def many_restarts(scene: Scene, entries: int | None = None, restarts: int | None = None) -> Outcome:
    """Restart a query with maxDeliveries while its sink is down.

    maxDeliveries splits a batch whose query fails each time, and gives up an entry that fails alone. It must do neither
    if the sink causes the failures.
    """
    entries = entries or scene.random.randint(3, 30)
    restarts = restarts or scene.random.randint(6, 12)
    with durable_server(scene.kind, scene.folder / "sink") as server:
        options = {"maxDeliveries": "2", "deadLetterStream": f"{scene.name}-dead", "maxEntriesPerTrigger": "40"}
        query = into_a_stream(scene.query(None, **options), scene.random)
        query = replace(query, out_url=server.url, patience=0.05)
        if scene.random.random() < 0.5:  # then the failing batch is not the first one
            scene.producer.add(scene.name, 20)
            scene.drain(query)
        scene.producer.add(scene.name, entries)
        server.kill()
        errors = [scene.run(query)[0] for _ in range(restarts)]
        server.start()
        scene.drain(query)
        outcome = scene.outcome(query)
        for error in errors:
            if not error.startswith(("[RSTREAM_RETRIES_EXHAUSTED]", "[RSTREAM_SERVER_UNREACHABLE]")):
                outcome.wrong.append(f"ended with {error[:300]!r}")
    return outcome
