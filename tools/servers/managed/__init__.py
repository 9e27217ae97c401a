"""Stand-ins of managed servers: a real server, a user with the documented commands, a proxy with documented limits."""
