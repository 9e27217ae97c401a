"""`rstream verify`: the guarantees, tried on a user's own server and Spark.

history.py, judge.py, result.py   what was written down, the judge, the report: pure
running_query.py, producer.py     the query in its process, and the entries; tools/chaos and tests use them, too
relay.py, server_side.py          connections that break, failovers, keys
observer.py, verify_run.py        snapshots of the server; the whole run
"""
