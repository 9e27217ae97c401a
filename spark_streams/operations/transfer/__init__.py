"""Entries between streams, servers and files, byte for byte: `rstream copy`, `export` and `import`."""
