"""Values in Avro, Protobuf or JSON Schema as columns, with or without a schema registry.

    decode.py         public function: a column of a DataFrame as a struct
    decoder.py        bytes in, Python value or reason out: what a task does, without Spark
    framing.py        the bytes before a value: magic byte, ID of the schema, message indexes
    registry.py       the schemas of a registry, each asked for once; waits for a registry that is away
    avro.py, protobuf.py, json_text.py      one format each: a parsed schema that reads values
    fit.py            values into Spark's types, without rounding
    avro_columns.py, json_columns.py        SQL types of a schema's fields

docs/guide/schemas.md is the guide.
"""
