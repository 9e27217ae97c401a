"""Access to any stream server: addresses, connections, reply bytes to Arrow, Arrow to XADD bytes."""
