"""Managing consumer groups: seek, claim, acknowledge, release, replay, create, delete, prune.

Each operation fetches the group first (group_snapshot.py), and reports what it would change. It makes the change in
transactions that WATCH the leases of the queries concerned (guard.py): if one of them starts meanwhile, the operation
is refused.
"""
