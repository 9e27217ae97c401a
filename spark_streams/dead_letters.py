"""Door: write dead letters from consumers that do not use Spark."""

from spark_streams.connector.dead_letters import write, write_async

__all__ = ["write", "write_async"]
