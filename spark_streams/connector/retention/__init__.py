"""What may be removed of a stream: what every group has been given and has acknowledged."""
