"""`rstream doctor` for all nodes of a cluster.

facts         what each node says of itself and of the others            asking      asks them, and changes nothing
merging       what was found on each node, said once with the nodes that it holds for: pure
slots, members, failover       what only a cluster has: facts to findings, pure
examination   all of it, in order
"""
