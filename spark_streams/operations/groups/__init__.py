"""Managing consumer groups: seek, claim, acknowledge, release, replay, create, delete, prune, trim.

Each change is a plan (change_plan.py), refused if a query of the group starts meanwhile (connector/admin/groups.py).
"""
