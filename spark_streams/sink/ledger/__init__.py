"""The ledger: which rows of a micro-batch are written, as the server knows it."""
