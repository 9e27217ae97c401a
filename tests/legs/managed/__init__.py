"""Stand-ins of managed servers: what works on each, as its documentation says. `scripts/test --managed`."""
