"""`rstream exporter`: all streams and groups of a server as metrics, whether a query runs or not.

chosen          which streams are looked at
look            one look at them: what it finds
dead_letters    the dead letters by reason, a few pages of them at each look
looks           looks that scrapes share, over a connection that is made again
metrics         a look in Prometheus' words
"""
