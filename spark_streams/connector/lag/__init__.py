"""What groups have not read: their lag, the time until it is trimmed, and both as metrics."""
