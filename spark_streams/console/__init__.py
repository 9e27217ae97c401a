"""`rstream console`: streams, groups, dead letters and queries in a browser.

app.py is the web application; connections.py and guard.py let requests in; routes.py says what each page needs;
bounds.py has the maximum of everything; live.py reads the server for all browsers together; pages/ has a module for
each page; changes are commands of `rstream` (actions.py), which changes.py runs.
"""
