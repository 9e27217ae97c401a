"""Values that the whole package uses: entry IDs, key names, patterns, commit marks. Pure: no sockets, no Spark."""
