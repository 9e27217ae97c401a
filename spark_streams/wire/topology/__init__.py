"""Many servers behind one address: Redis Cluster and Sentinel."""
