"""From reply bytes to values: XINFO, SCAN, transactions, the meaning of error replies."""
