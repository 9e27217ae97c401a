"""`rstream doctor`: settings of a server that endanger streams, their effect, and what to set.

    finding       one result: its level, the observation, the effect, the remedy
    server_facts  facts of a server          asking      fetches them; nothing on the server changes
    kind, durability, memory, replication, clock, limits            checks: facts in, findings out; pure
    stream_counts the sizes of streams, by the server's own counts; released entries and idempotent adds of named ones
    held          groups that nobody uses and that keep streams long
    rights        the commands that each use needs, and which of them the user may not run, on which keys
    examination   all checks of one server               cluster     all checks of a cluster

Findings are based on the server's replies. A command that the user may not run is a finding, too.
"""
