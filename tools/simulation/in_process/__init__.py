"""The third kind of server beside `redis` and `engine`: the engine's command core in the process of the simulation.

    the product          a Line in place of its socket   (core.py, patches.py)
    the test's client    the same commands of redis-py   (server.py)
              └── both call the core: bytes in, bytes out (core.py)

No socket, no thread of a server, no sleep: the time of product and engine is one number, and how far apart both clocks
are is another. Every command with its reply goes into one digest (core.py). So a seed gives the same run on each
machine.
"""
