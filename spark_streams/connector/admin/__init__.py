"""The door of `operations` into the connector: what an operator's commands and the console need of it.

groups         a group as it is now (snapshot), what it has to read, and one guarded change of it
dead_letters   dead letters, their redrive, entries that wait for a retry, pages of entries
checkpoint     what a query's checkpoint, its sink's ledger and an archive say of a batch
streams        names, shards, addresses and nodes of a server

Beside the door stand `wire` (connections and replies), `lag.survey`, `errors`, `keys` and `operator_commands`.
"""
