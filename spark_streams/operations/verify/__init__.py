"""`rstream verify`: the guarantees, tried on a user's own server and Spark.

plan, history, checker, result, page    choices of a run, what was written down, its judge, the report: pure
producer, driver, checkpoint, relay     tools/chaos and tests use them, too
running_query                           the query, and the process that runs it
server_side, observer, run              the rim: keys, connections, failovers; snapshots of the server; the whole run
"""
