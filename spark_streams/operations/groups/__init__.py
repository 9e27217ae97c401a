"""Managing consumer groups: seek, claim, acknowledge, release, replay, create, delete, prune, trim.

plan              a change as one value: its dry run, its bounds, and the one function that makes it
position          seek, create, replay           pending_entries   claim, acknowledge, release
deletion          of groups and of consumers     unused            groups that nobody uses: prune, forget
trim              entries that every group has acknowledged

The state of a group and the transaction that WATCHes the leases of its queries are in connector/admin/groups.py: if a
query starts meanwhile, the change is refused.
"""
