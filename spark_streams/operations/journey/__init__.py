"""The journey of one entry, as the server can prove it: `rstream where`.

entry_facts.py, copies.py     what the server has: the entry, its groups, its dead letters and retries
entry_lines.py, batches.py    facts in, lines out. A line is exact, or says why it is not known
journey.py                    the lines of an entry in order of time, and of the entries it was sent back as
"""
