"""Change events of a database as typed rows: DataFrame expressions only, so also over Spark Connect.

change_events.py   from the entries of a stream to rows
expressions.py     parts of SQL; JSON texts with all digits of their numbers
event_values.py    a value of an event as the value of a column: decimal numbers, dates, times
order.py           the order of the changes of a key
"""

from spark_streams.connector.cdc.change_events import debezium as debezium
from spark_streams.connector.cdc.order import is_later as is_later
