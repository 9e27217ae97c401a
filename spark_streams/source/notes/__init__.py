"""What tasks report to the driver: dead letters, missing entries, values that do not fit a column."""
