"""How a request comes in: its connection, its guard, and its parameters."""
