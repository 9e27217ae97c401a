"""How large a server, how many executors: measured costs, a model, its check against real runs, and a simulation."""
