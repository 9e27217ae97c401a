"""From a micro-batch to a stream: encode, write, trim."""
