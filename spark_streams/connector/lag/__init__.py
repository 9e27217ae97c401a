"""Margin of a group: the time until trimming, or a server that evicts, removes an entry that the group still needs.

points   what a survey says of a stream, its groups and a server's memory, as numbers
rule     the trimming rule of a stream, as its points show it
margin   the answer for a group
window   the points of the last minutes, and the answers for all groups

Nothing on a server records by which rule a stream is trimmed: any client may trim it. So the rule is what is observed,
and an answer that cannot be observed is "unknown", with its reason. All is pure.
"""
