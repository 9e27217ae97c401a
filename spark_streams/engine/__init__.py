"""The bundled stream engine: a server that speaks the Redis protocol, in pure Python, for local work and tests.

`with LocalEngine() as engine: engine.url` starts a private engine. `python -m spark_streams.engine` serves on a port.
`embedded.locate` resolves an `embedded:` URL. Nothing here imports pyspark, pyarrow or numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["EngineStartError", "LocalEngine"]

if TYPE_CHECKING:
    from spark_streams.engine.launch import embedded as embedded
    from spark_streams.engine.launch.engine_process import EngineStartError
    from spark_streams.engine.launch.local import LocalEngine
else:

    def __getattr__(name):
        if name == "LocalEngine":
            from spark_streams.engine.launch.local import LocalEngine

            return LocalEngine
        if name == "EngineStartError":
            from spark_streams.engine.launch.engine_process import EngineStartError

            return EngineStartError
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
