"""Values in Avro, Protobuf or JSON Schema as columns, with or without a schema registry.

    decode.py, encode.py   public functions: a column of a DataFrame as a struct, and back
    decoder.py             bytes in, Python value or reason out: what a task does; the bytes before a value
    payload_format.py      the arguments that say how values are encoded
    schema_registry.py     the schemas of a registry, each asked for once; waits for a registry that is away
    avro.py, protobuf.py, json_schema.py  one format each: a parsed schema that reads values
    avro_walk.py           a look at the bytes of an Avro value before fastavro reads them
    writers.py             the formats again, which write values
    fit.py                 values into Spark's types, without rounding; the new column beside the others
    schema_columns.py      SQL types of a schema's fields
    reasons.py             why a value could not be decoded, and what one may cost
    decode_process.py      values as JSON for people, by a process that may die (decode_server.py)

docs/guide/schemas.md is the guide.
"""
