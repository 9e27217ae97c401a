"""Debezium's placeholder for a value that is not in the event: a large value of PostgreSQL that has not changed
(TOAST), or a large object of Oracle.

The placeholder is a text. Debezium writes it in the form of the column's type (facts.md, D5).
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid

from spark_streams.connector.cdc.exact_json import name_in_json, number_in_json

PLACEHOLDER = "__debezium_unavailable_value"


def forms_of(placeholder: str) -> tuple[str, ...]:
    """Return all values (of exact_json.py) that stand for a value that is not in the event."""
    data = placeholder.encode()
    text = name_in_json(placeholder)
    texts = (text, base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode(), data.hex())
    as_uuid = str(uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3))
    single_bytes = [base64.b64encode(bytes([byte])).decode() for byte in data]
    containers = (
        *([element] for element in (*texts, as_uuid)),
        [number_in_json(str(byte)) for byte in data],
        [number_in_json(f"{byte}.0") for byte in data],
        single_bytes,  # decimals
        [{"scale": number_in_json("0"), "value": byte} for byte in single_bytes],
        {text: text},  # hstore
    )
    in_json = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in containers]
    hstore_text = json.dumps({text: text}, ensure_ascii=False)  # with a space after the colon
    return tuple(dict.fromkeys([*texts, *in_json, hstore_text]))
