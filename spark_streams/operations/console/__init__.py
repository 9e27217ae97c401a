"""`rstream console`: streams, groups, dead letters and queries in a browser.

incoming.py       a request comes in: bounds, connection, parameters
visitors.py       who sends it, and whether it is let in
app.py            its route: *_pages.py and query_logs.py, each with its requests to the server and its template
site.py, live.py  what pages share; the server is read for all browsers together
actions.py        changes are commands of `rstream`, which changes.py runs
"""
