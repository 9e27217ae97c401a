"""Door: all errors that spark-streams raises, and `find_in_text`."""

from spark_streams.connector.errors import *  # noqa: F403
