"""The payload for RESTORE of a stream that `rstream export --with-groups` has written."""

from __future__ import annotations

from spark_streams.base.export_lines import ExportedGroup, ExportedStream
from spark_streams.base.ids import StreamId
from spark_streams.engine.persistence.stream_payload import add_pending, dump
from spark_streams.engine.store.entry_bytes import entry_wire, fields_wire
from spark_streams.engine.store.group import StoredGroup
from spark_streams.engine.store.node_limits import NodeLimits
from spark_streams.engine.store.pel import Consumer
from spark_streams.engine.store.stream import StoredStream


def payload_of(exported: ExportedStream) -> bytes:
    """Return the payload."""
    stream = StoredStream(NodeLimits())
    for parsed, fields in exported.entries:
        entry_id = _packed(parsed)
        stream.append(entry_id, entry_wire(entry_id, fields_wire(fields)), fields)
    stream.last_id, stream.max_deleted_id = _packed(exported.last), _packed(exported.deleted)
    stream.entries_added = exported.added
    stream.groups = {name: _group(stream, group) for name, group in exported.groups.items()}
    return dump(stream, exported.time, newest=True)


def _group(stream: StoredStream, exported: ExportedGroup) -> StoredGroup:
    group = StoredGroup(_packed(exported.position), exported.read)
    for name, (seen, active) in exported.consumers.items():
        consumer = group.consumers[name] = Consumer(name, seen)
        consumer.active = active
    pending, owners = {}, {}
    for entry_id, (owner, time, deliveries) in exported.pending.items():
        pending[_packed(entry_id)] = (time, deliveries)
        owners[_packed(entry_id)] = group.released if owner is None else group.consumers[owner]
    add_pending(group, stream, pending, owners)
    return group


def _packed(entry_id: StreamId) -> int:
    return entry_id.ms << 64 | entry_id.seq
