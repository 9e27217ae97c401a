"""Options of the source and the sink: their table, parsers, checks, and the values of one reader or writer."""
