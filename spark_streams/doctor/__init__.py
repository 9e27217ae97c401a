"""`rstream doctor`: what a server is, what of its settings endangers streams, and what the connector does about each.

    finding       one thing that was looked at: how bad it is, what it is, what follows, what to set
    server_facts  what a server says of itself          asking      asks it, and changes nothing
    kind, durability, memory, replication, clock, limits            facts to findings: pure
    rights        which commands each use takes, which of them the url's user may not run, and on which keys
    examination   all of it, in order

Findings stand on what the server says; a question that the user may not ask is a finding, too.
"""
