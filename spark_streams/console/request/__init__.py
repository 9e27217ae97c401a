"""How a request comes in: its connection, its guard, its parameters, and the maximum of each."""
