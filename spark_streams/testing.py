"""Door: helpers for users' own tests. Importing this module loads neither pyspark nor pyarrow."""

from spark_streams.connector.testing import StreamAssertion, assert_stream, run_batches, run_until_drained

__all__ = ["StreamAssertion", "assert_stream", "run_batches", "run_until_drained"]
