"""The journey of one entry, as the server can prove it: `rstream where`.

facts.py, copies.py                what the server has: the entry, its groups, its dead letters and retries
presence.py, group_line.py,        pure: facts in, lines out. A line is exact, or says why it is not known
copy_lines.py, batches.py
journey.py                         the lines of an entry in order of time, and of the entries it was sent back as
"""
