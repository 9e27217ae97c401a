"""`rstream exporter`: metrics of all streams and groups of a server. No query needs to run.

stream_filter    selects the streams
snapshot         the state of these streams at one moment
dead_letters     dead letters by reason, a few pages of them for each snapshot
snapshot_cache   the snapshot that scrapes share, over a connection that is opened again
metrics          a snapshot as Prometheus metrics
"""
