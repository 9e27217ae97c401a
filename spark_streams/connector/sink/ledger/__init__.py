"""The ledger: the server's record of the rows of a micro-batch that are written."""
