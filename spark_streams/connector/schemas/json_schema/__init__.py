"""JSON Schema: values that are valid by their schema, read and written without the loss of a digit."""
