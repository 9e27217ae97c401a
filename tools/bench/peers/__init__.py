"""`scripts/bench peers`: beside what people would take instead: Kafka with Spark's connector, Flink, spark-redis."""
