"""The door of `operations` into the connector: a name that a module here imports is given as its own.

Beside the door stand `wire` (connections and replies), `lag.survey`, `errors`, `keys` and `operator_commands`.
"""
