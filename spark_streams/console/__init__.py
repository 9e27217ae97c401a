"""`rstream console`: streams, groups, dead letters and queries in a browser.

app.py is the web application; guard.py lets requests in; live.py reads the server for all browsers together; pages/ has
a module for each page; changes are commands of `rstream` (actions.py), which changes.py runs.
"""
