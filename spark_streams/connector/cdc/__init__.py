"""Change events of a database as typed rows: DataFrame expressions only, so also over Spark Connect."""

from spark_streams.connector.cdc.change_events import debezium as debezium
from spark_streams.connector.cdc.order import is_later as is_later
