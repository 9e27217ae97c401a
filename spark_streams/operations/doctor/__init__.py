"""`rstream doctor`: settings of a server that endanger streams, their effect, and what to set.

server_facts.py                          asks the server; nothing on it changes
server_findings.py, stream_findings.py   facts in, findings out; pure
services.py                              which managed service it probably is; pure
rights.py                                commands that each use needs, and which of them the user may not run
examination.py                           all checks of a server or a cluster
"""
