"""A real Redis Cluster: slots that move, masters that die or stand still."""
