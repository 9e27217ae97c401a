"""Decoding of values in Avro, Protobuf and JSON Schema."""
