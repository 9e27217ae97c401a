"""`rstream console`: streams, groups, dead letters and queries in a browser.

app.py is the web application; request/ lets requests in; login/ has the users; bounds.py has the maximum of everything;
routes.py says what each page needs; live.py reads the server for all browsers together; pages/ has a module for each
page; changes are commands of `rstream` (actions.py), which changes.py runs.
"""
