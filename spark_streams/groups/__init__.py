"""An operator's hands on consumer groups: seek, claim, acknowledge, delete, create.

Each looks first (`standing`), says what it would change, and changes it in transactions that also hold the leases of
the queries concerned (`guard`): where one of them starts meanwhile, nothing is cut under its feet.
"""
