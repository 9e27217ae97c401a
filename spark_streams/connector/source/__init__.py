"""From a consumer group to a micro-batch: offsets, reserve, plan, read, acknowledge."""
