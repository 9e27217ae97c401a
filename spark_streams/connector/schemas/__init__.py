"""Values in Avro, Protobuf or JSON Schema as columns, with or without a schema registry: docs/guide/schemas.md."""
