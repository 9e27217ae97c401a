"""Values in Avro, Protobuf or JSON Schema as columns, with or without a schema registry.

    decode.py, encode.py    public functions: a column of a DataFrame as a struct, and back
    decoder.py, encoder.py  bytes in, Python value or reason out, and back: what a task does
    payload_format.py  the arguments that say how values are encoded
    framing.py      the bytes before a value: magic byte, ID of the schema, message indexes
    registry.py     the schemas of a registry, each asked for once; waits for a registry that is away
    avro.py, protobuf.py, json_schema/text.py  one format each: a parsed schema that reads values
    avro_walk.py    a look at the bytes of an Avro value before fastavro reads them
    avro_logical.py logical types of Avro, which two versions of a schema may not share
    avro_writer.py, protobuf_writer.py, json_schema/writer.py  the same, and writes them
    fit.py          values into Spark's types, without rounding
    staged.py       the new column and its reasons beside the other columns
    shown.py        values as JSON for people, by apart/process.py, which may die (apart/server.py, apart/frames.py)
    avro_columns.py, json_schema/columns.py  SQL types of a schema's fields

docs/guide/schemas.md is the guide.
"""
