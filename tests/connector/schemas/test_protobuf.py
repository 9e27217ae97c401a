"""Protobuf messages, by descriptors of a file or of a registry."""

from __future__ import annotations

import time
from base64 import b64encode
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

from spark_streams.connector.errors import ConfigError, RegistryError
from spark_streams.connector.schemas.decoder import Decoder, _varint, unframe
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


def wide(fields: int) -> Decoder:
    """Return a decoder of Wide: Wide `more` repeated, `nested`, ints `packed`, and so many ints."""
    file = descriptor_pb2.FileDescriptorProto(name="wide.proto", syntax="proto3")
    message = file.message_type.add(name="Wide")
    message.field.add(name="more", number=1, type=F.TYPE_MESSAGE, type_name=".Wide", label=REPEATED)
    message.field.add(name="nested", number=2, type=F.TYPE_MESSAGE, type_name=".Wide", label=OPTIONAL)
    message.field.add(name="packed", number=3, type=F.TYPE_INT64, label=REPEATED)
    for number in range(4, 4 + fields):
        message.field.add(name=f"f{number}", number=number, type=F.TYPE_INT64, label=OPTIONAL)
    given = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return Decoder(PayloadFormat("protobuf", descriptors=given, message="Wide"))


def sized(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def within(levels: int) -> bytes:
    """Return so many messages within each other."""
    body = b""
    for _ in range(levels):
        body = sized(b"\x12", body)
    return body


def test_many_empty_messages_take_a_bounded_memory() -> None:
    """Before, 40 kB of messages without a field that is set became 143 MB."""
    decoder = wide(100)
    assert len(decoder.decode(b"\x0a\0" * 40)["more"]) == 40
    with pytest.raises(UnreadableError, match="bad-value"):
        decoder.decode(b"\x0a\0" * 20_000)


@pytest.mark.parametrize(
    ("fields", "item"),
    [
        (17, b""),
        (97, b"\x20\1" * 9),
        (297, b"".join(bytes([number << 3, 1]) for number in range(4, 16)) + b"\x20\1" * 3),
    ],
)
def test_ten_fields_for_each_byte_are_read(fields: int, item: bytes) -> None:
    """Whether or not they are set."""
    body = sized(b"\x0a", item) * 5_000
    assert (fields + 3) * 5_000 <= 10 * len(body)
    assert len(wide(fields).decode(body)["more"]) == 5_000


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x0a\0" * 100_000, id="repeated"),
        pytest.param(sized(b"\x0a", b"\x0a\0" * 60) * 1_000, id="repeated within repeated"),
        pytest.param(sized(b"\x0a", within(90)) * 500, id="nested within repeated"),
        pytest.param(within(101), id="nested"),
        pytest.param(within(50_000), id="nested deep"),
        pytest.param(sized(b"\x1a", b"\1" * 200_000 + b"\xff"), id="packed"),
        pytest.param(sized(b"\x1a", b"\xff" * 200_000), id="a varint without an end"),
        pytest.param(b"\x20" + b"\x80" * 10 + b"\0", id="a varint of eleven bytes"),
        pytest.param((b"\x20" + b"\xff" * 9 + b"\1") * 20_000 + b"\x20", id="long varints"),
        pytest.param(b"\xf3\7" * 100_000, id="unknown groups within each other"),
        pytest.param(b"\xf3\7" * 101 + b"\xf4\7" * 101, id="as many as match"),
        pytest.param(b"\xf3\7\xf4\7" * 50_000 + b"\xf4\7", id="the end of a group"),
        pytest.param(b"\x0a\xff\xff\xff\xff\x0f", id="a length"),
    ],
)
def test_a_hostile_value_is_a_reason_in_time(body: bytes) -> None:
    """In proportion to its bytes: one that is read again and again would take minutes."""
    decoder = wide(100)
    begun = time.process_time()
    with pytest.raises(UnreadableError, match="bad-value"):
        decoder.decode(body)
    assert time.process_time() - begun < 1 + 3e-5 * len(body)


def test_what_is_large_and_no_more_than_its_bytes_is_read() -> None:
    """Packed numbers, and unknown groups and fields, which are left out."""
    decoder = wide(100)
    assert decoder.decode(sized(b"\x1a", b"\1" * 100_000))["packed"] == [1] * 100_000
    assert decoder.decode(b"\xf3\7\xf4\7" * 25_000 + b"\xf0\7\1" * 25_000 + b"\x20\7")["f4"] == 7


def test_defaults_extensions_and_groups_of_proto2() -> None:
    """What is not set is null, whatever its default; an extension is no field, also if it has the name of one."""
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", syntax="proto2")
    file.enum_type.add(name="E").value.add(name="FIRST", number=3)
    old = file.message_type.add(name="Old")
    old.extension_range.add(start=100, end=200)
    old.nested_type.add(name="G").field.add(name="x", number=1, type=F.TYPE_INT32, label=OPTIONAL)
    old.field.add(name="n", number=1, type=F.TYPE_INT32, label=OPTIONAL, default_value="7")
    old.field.add(name="e", number=2, type=F.TYPE_ENUM, type_name=".E", label=OPTIONAL)
    old.field.add(name="g", number=3, type=F.TYPE_GROUP, type_name=".Old.G", label=REPEATED)
    file.extension.add(name="n", number=100, type=F.TYPE_INT32, label=OPTIONAL, extendee=".Old")
    given = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    decoder = Decoder(PayloadFormat("protobuf", descriptors=given, message="Old"))
    assert decoder.decode(b"\xa0\6\5") == {"n": None, "e": None, "g": []}
    assert decoder.decode(b"\x08\0\x10\3\x1b\x1c\xa0\6\5") == {"n": 0, "e": "FIRST", "g": [{"x": None}]}
    assert decoder.decode(b"\x10\4") == {"n": None, "e": None, "g": []}  # no number of the enum


def test_a_negative_zero_is_a_value() -> None:
    assert str(decoded([b"\x09" + b"\0" * 7 + b"\x80"], form(), "d DOUBLE")[0][0]["d"]) == "-0.0"


def test_the_file_of_a_schema_is_made_once(registry: RegistryServer) -> None:
    """Before, each new list of message indexes compiled the descriptors again: 24 ms for 8 bytes."""
    registry.add(1, b64encode(file_of_order().SerializeToString()).decode(), "PROTOBUF")
    reader = ProtobufReader(b"", "")
    schema = Registry(registry.url, serialized=True).schema(1)
    assert schema is not None
    assert reader._file_of(schema) is reader._file_of(schema)
