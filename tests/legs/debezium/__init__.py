"""A real Debezium reads a real PostgreSQL: what a Delta table holds in the end is what the database's table holds."""
