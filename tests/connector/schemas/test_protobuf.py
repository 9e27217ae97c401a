"""Protobuf messages, by descriptors of a file or of a registry."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

from spark_streams.connector.errors import ConfigError, RegistryError
from spark_streams.connector.schemas.decoder import Decoder, unframe
from spark_streams.connector.schemas.payload_format import PayloadFormat
from spark_streams.connector.schemas.protobuf import ProtobufReader
from spark_streams.connector.schemas.reasons import UnreadableError
from spark_streams.connector.schemas.schema_registry import Registry
from tests.connector.schemas.registry_server import RegistryServer
from tests.connector.schemas.test_avro import decoded

F = descriptor_pb2.FieldDescriptorProto
OPTIONAL, REPEATED = F.LABEL_OPTIONAL, F.LABEL_REPEATED
SCALARS = {
    "d": F.TYPE_DOUBLE, "f": F.TYPE_FLOAT, "i64": F.TYPE_INT64, "u64": F.TYPE_UINT64, "i32": F.TYPE_INT32,
    "f64": F.TYPE_FIXED64, "f32": F.TYPE_FIXED32, "b": F.TYPE_BOOL, "s": F.TYPE_STRING, "by": F.TYPE_BYTES,
    "u32": F.TYPE_UINT32, "sf32": F.TYPE_SFIXED32, "sf64": F.TYPE_SFIXED64, "s32": F.TYPE_SINT32, "s64": F.TYPE_SINT64,
}  # fmt: skip


def file_of_order() -> descriptor_pb2.FileDescriptorProto:
    """shop.Other, and shop.Order with a field of each kind and the message shop.Order.Line in it."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    file.message_type.add(name="Other").field.add(name="x", number=1, type=F.TYPE_INT32, label=OPTIONAL)
    order = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate(SCALARS.items(), 1):
        order.field.add(name=name, number=number, type=kind, label=OPTIONAL)
    order.enum_type.add(name="State").value.add(name="NEW", number=0)
    order.enum_type[0].value.add(name="PAID", number=1)
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=F.TYPE_STRING, label=OPTIONAL)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_INT32, label=OPTIONAL)
    state, of_line = ".shop.Order.State", ".shop.Order.Line"
    order.field.add(name="state", number=20, type=F.TYPE_ENUM, type_name=state, label=OPTIONAL)
    order.field.add(name="line", number=21, type=F.TYPE_MESSAGE, type_name=of_line, label=OPTIONAL)
    order.field.add(name="lines", number=22, type=F.TYPE_MESSAGE, type_name=of_line, label=REPEATED)
    order.field.add(name="counts", number=23, type=F.TYPE_MESSAGE, type_name=".shop.Order.CountsEntry", label=REPEATED)
    of_time, of_int = ".google.protobuf.Timestamp", ".google.protobuf.Int32Value"
    order.field.add(name="at", number=24, type=F.TYPE_MESSAGE, type_name=of_time, label=OPTIONAL)
    order.field.add(name="maybe", number=25, type=F.TYPE_MESSAGE, type_name=of_int, label=OPTIONAL)
    order.oneof_decl.add(name="_note")
    order.field.add(
        name="note", number=26, type=F.TYPE_STRING, label=OPTIONAL, oneof_index=0, proto3_optional=True
    )  # fmt: skip
    return file


def descriptors() -> bytes:
    files = [file_of_order()]
    for known in (timestamp_pb2, wrappers_pb2):
        files.append(descriptor_pb2.FileDescriptorProto.FromString(known.DESCRIPTOR.serialized_pb))
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()


def new(name: str = "shop.Order", **values: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file_of_order().SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))(**values)


def form(message: str = "shop.Order", **more: Any) -> PayloadFormat:
    return PayloadFormat("protobuf", descriptors=descriptors(), message=message, **more)


def into() -> str:
    return ", ".join(f"{name} {kind}" for name, kind in ProtobufReader(descriptors(), "shop.Order").columns().items())


def test_each_kind_of_field_arrives_as_it_was() -> None:
    order = new(
        d=0.1, f=0.5, i64=-(2**63), u64=2**64 - 1, i32=-1, f64=1, f32=2**32 - 1, b=True, s="Grüße", by=b"\0\xff",
        u32=2**32 - 1, sf32=-1, sf64=-1, s32=-1, s64=-1, state=1, line={"sku": "a"}, lines=[{"sku": "b"}, {}],
        counts={"k": 0}, maybe={"value": 0}, note="",
    )  # fmt: skip
    order.at.FromJsonString("2026-01-31T23:59:59.123456Z")
    (found, reason), (empty, _) = decoded([order.SerializeToString(), b""], form(), into())
    assert reason is None
    assert found == {
        "d": 0.1, "f": 0.5, "i64": -(2**63), "u64": Decimal(2**64 - 1), "i32": -1, "f64": Decimal(1), "f32": 2**32 - 1,
        "b": True, "s": "Grüße", "by": b"\0\xff", "u32": 2**32 - 1, "sf32": -1, "sf64": -1, "s32": -1, "s64": -1,
        "state": "PAID", "line": {"sku": "a"}, "lines": [{"sku": "b"}, {"sku": ""}], "counts": {"k": 0},
        "at": datetime(2026, 1, 31, 23, 59, 59, 123456, UTC), "maybe": 0, "note": "",
    }  # fmt: skip
    assert {name for name, value in empty.items() if value is None} == {"line", "at", "maybe", "note"}
    assert (empty["state"], empty["i64"], empty["s"], empty["lines"]) == ("NEW", 0, "", [])


def test_what_does_not_fit() -> None:
    nanoseconds, unnamed = new(), new(state=7)
    nanoseconds.at.nanos = 1
    values = [
        nanoseconds.SerializeToString(),
        unnamed.SerializeToString(),
        b"\xff",
        new(s="x").SerializeToString()[:-1],
    ]
    assert [reason for _, reason in decoded(values, form(), into())] == ["bad-value"] * 4


def test_a_required_field_that_is_missing() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", syntax="proto2")
    file.message_type.add(name="Old").field.add(name="x", number=1, type=F.TYPE_INT32, label=F.LABEL_REQUIRED)
    given = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    old = PayloadFormat("protobuf", descriptors=given, message="Old")
    assert decoded([b"", b"\x08\x07"], old, "x INT") == [(None, "bad-value"), ({"x": 7}, None)]


def test_a_message_within_itself_has_no_columns() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="tree.proto", syntax="proto3")
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="left", number=1, type=F.TYPE_MESSAGE, type_name=".Tree", label=OPTIONAL)
    given = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    with pytest.raises(ConfigError, match="Tree contains itself"):
        ProtobufReader(given, "Tree").columns()


@pytest.mark.parametrize(
    ("bytes_of_indexes", "indexes"),
    [(b"\0", (0,)), (b"\2\2", (1,)), (b"\4\2\0", (1, 0)), (b"\2\xac\2", (150,))],
)
def test_message_indexes_are_zigzag_varints(bytes_of_indexes: bytes, indexes: tuple[int, ...]) -> None:
    assert unframe(b"\0\0\0\1\2" + bytes_of_indexes + b"body", True) == (258, indexes, b"body")


@pytest.mark.parametrize("tail", [b"", b"\2", b"\1", b"\2\1", b"\x80", b"\xff" * 9, b"\xfe\xff\xff\xff\x0f\0"])
def test_wrong_message_indexes(tail: bytes) -> None:
    with pytest.raises(UnreadableError, match="bad-framing"):
        unframe(b"\0\0\0\0\1" + tail, True)


@pytest.mark.parametrize("has_indexes", [False, True])
def test_an_id_that_no_registry_gives_is_a_wrong_framing(has_indexes: bool) -> None:
    """Before, the registry was asked for it, refused it, and the query stopped."""
    assert unframe(b"\0\x7f\xff\xff\xff\0", has_indexes).schema_id == 2**31 - 1
    for head in (b"\0\x80\0\0\0", b"\0\xff\xff\xff\xff"):
        with pytest.raises(UnreadableError, match="bad-framing"):
            unframe(head + b"\0", has_indexes)


def test_a_framed_value_of_another_message_is_not_read_as_this_one() -> None:
    body = new(i32=7).SerializeToString()
    values = [b"\0\0\0\0\1" + indexes + body for indexes in (b"\2\2", b"\0", b"\4\2\0")]
    found = decoded(values, form(framed=True), "i32 INT")
    assert found == [({"i32": 7}, None), (None, "other-schema"), (None, "other-schema")]
    line = new("shop.Order.Line", sku="a").SerializeToString()
    assert decoded([b"\0\0\0\0\1\4\2\0" + line], form("shop.Order.Line", framed=True), "sku STRING") == [
        ({"sku": "a"}, None)
    ]


@pytest.mark.parametrize(
    ("message", "indexes"),
    [
        ("Outer.A", b"\4\0\2"), ("Outer.A", b"\4\0\0"), ("Outer.B", b"\4\0\6"), ("Outer.B.C", b"\6\0\6\2"),
        ("Outer.B.C", b"\6\0\6\0"), ("Outer", b"\0"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("has_registry", [False, True])
def test_a_message_beside_a_map(registry: RegistryServer, message: str, indexes: bytes, has_registry: bool) -> None:
    """Confluent's serializers count the entry of a map, except those that normalize schemas. It is no value itself."""
    file = file_of_maps()
    registry.add(1, b64encode(file.SerializeToString()).decode(), "PROTOBUF")
    given = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    form = PayloadFormat("protobuf", descriptors=given, message=message, framed=True)
    decoder = Decoder(form, Registry(registry.url, serialized=True) if has_registry else None)
    assert decoder.decode(b"\0\0\0\0\1" + indexes + b"\x08\7")["x"] == 7
    for other in (b"\4\0\x0a", b"\4\0\4", b"\2\2"):
        with pytest.raises(UnreadableError, match="other-schema"):
            decoder.decode(b"\0\0\0\0\1" + other + b"\x08\7")


def file_of_maps() -> descriptor_pb2.FileDescriptorProto:
    """Outer with a map, A, another map and B; B with a map and C. Each has a field x."""
    file = descriptor_pb2.FileDescriptorProto(name="maps.proto", syntax="proto3")

    def add(messages: Any, name: str) -> Any:
        message = messages.add(name=name)
        message.field.add(name="x", number=1, type=F.TYPE_INT32, label=OPTIONAL)
        return message

    def add_map(message: Any, name: str, path: str) -> None:
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=OPTIONAL)
        entry.field.add(name="value", number=2, type=F.TYPE_INT32, label=OPTIONAL)
        number = len(message.field) + 1
        message.field.add(
            name=name, number=number, type=F.TYPE_MESSAGE, type_name=f"{path}.{entry.name}", label=REPEATED
        )

    outer = add(file.message_type, "Outer")
    add_map(outer, "first", ".Outer")
    add(outer.nested_type, "A")
    add_map(outer, "second", ".Outer")
    inner = add(outer.nested_type, "B")
    add_map(inner, "third", ".Outer.B")
    add(inner.nested_type, "C")
    return file


def test_a_registry_gives_descriptors(registry: RegistryServer) -> None:
    file = file_of_order()
    file.dependency.append("common/x.proto")
    common = descriptor_pb2.FileDescriptorProto(name="of the registry", package="common", syntax="proto3")
    registry.add(1, b64encode(file.SerializeToString()).decode(), "PROTOBUF",
                 [{"name": "common/x.proto", "subject": "x", "version": 1}])  # fmt: skip
    registry.add_version("x", 1, b64encode(common.SerializeToString()).decode(), "PROTOBUF")
    client = Registry(registry.url, serialized=True)
    value = b"\0\0\0\0\1\2\2" + new(i32=7, state=1).SerializeToString()
    by_writer = Decoder(PayloadFormat("protobuf", registry=registry.url, framed=True), client)
    assert by_writer.decode(value)["state"] == "PAID"
    assert registry.queries == {"format=serialized"}
    by_reader = Decoder(form(registry=registry.url, framed=True), client)
    assert by_reader.decode(value)["i32"] == 7
    for decoder, wrong in ((by_reader, b"\0\0\0\0\1\0"), (by_writer, b"\0\0\0\0\1\2\x08")):
        with pytest.raises(UnreadableError, match="other-schema"):
            decoder.decode(wrong)


def test_a_registry_that_gives_only_text_is_a_named_error(registry: RegistryServer) -> None:
    registry.add(1, 'syntax = "proto3"; message Order { int32 x = 1; }', "PROTOBUF")
    decoder = Decoder(
        PayloadFormat("protobuf", registry=registry.url, framed=True), Registry(registry.url, serialized=True)
    )
    with pytest.raises(RegistryError, match="schema 1 came as .proto text.*Give schema='x.desc'"):
        decoder.decode(b"\0\0\0\0\1\0")


def test_a_field_may_have_the_name_of_a_part_of_a_message() -> None:
    """Before, each value with a field DESCRIPTOR was bad-value."""
    file = descriptor_pb2.FileDescriptorProto(name="odd.proto", syntax="proto2")
    odd = file.message_type.add(name="Odd")
    for number, name in enumerate(("DESCRIPTOR", "HasField", "ListFields"), 1):
        odd.field.add(name=name, number=number, type=F.TYPE_INT32, label=OPTIONAL)
    given = PayloadFormat(
        "protobuf", descriptors=descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(), message="Odd"
    )
    assert Decoder(given).decode(b"\x08\x07\x10\x08") == {"DESCRIPTOR": 7, "HasField": 8, "ListFields": None}


def test_many_empty_messages_take_a_bounded_memory() -> None:
    """Before, 40 kB of messages without a field that is set became 143 MB."""
    file = descriptor_pb2.FileDescriptorProto(name="wide.proto", syntax="proto3")
    wide = file.message_type.add(name="Wide")
    for number in range(2, 102):
        wide.field.add(name=f"f{number}", number=number, type=F.TYPE_INT64, label=OPTIONAL)
    wide.field.add(name="more", number=1, type=F.TYPE_MESSAGE, type_name=".Wide", label=REPEATED)
    given = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    decoder = Decoder(PayloadFormat("protobuf", descriptors=given, message="Wide"))
    assert len(decoder.decode(b"\x0a\0" * 40)["more"]) == 40
    with pytest.raises(UnreadableError, match="bad-value"):
        decoder.decode(b"\x0a\0" * 20_000)


def test_the_file_of_a_schema_is_made_once(registry: RegistryServer) -> None:
    """Before, each new list of message indexes compiled the descriptors again: 24 ms for 8 bytes."""
    registry.add(1, b64encode(file_of_order().SerializeToString()).decode(), "PROTOBUF")
    reader = ProtobufReader(b"", "")
    schema = Registry(registry.url, serialized=True).schema(1)
    assert schema is not None
    assert reader._file_of(schema) is reader._file_of(schema)
