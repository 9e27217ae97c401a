"""Several servers of one address: Redis Cluster and Sentinel."""
