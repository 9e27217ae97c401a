"""A task of the engine: runs the function that a planner has returned, on one partition."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa


def main(function_file: str, input_file: str, output_file: str, partition: str, properties: str) -> None:
    """function_file: the function, pickled; input_file, output_file: Arrow streams; properties: of the task, as
    JSON."""
    from _engine_pyspark.serializers import CPickleSerializer
    from _engine_pyspark.taskcontext import TaskContext

    context = TaskContext._getOrCreate()
    context._partitionId, context._localProperties = int(partition), json.loads(properties)
    function, _ = CPickleSerializer().loads(Path(function_file).read_bytes())
    with pa.ipc.open_stream(input_file) as batches, open(output_file, "wb") as output:
        writer = None
        for batch in function(iter(batches)):
            writer = writer or pa.ipc.new_stream(output, batch.schema)
            writer.write_batch(batch)
        if writer is not None:
            writer.close()
