"""A server's address, nodes and rights, the names of its streams, and its sharded streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_streams.connector.deadletter.post import fetch_recorded
from spark_streams.connector.options.access_options import server_of
from spark_streams.connector.options.parsers import null_values
from spark_streams.connector.options.table import IDENTITY
from spark_streams.connector.schemas.decode_process import FieldDecoders
from spark_streams.connector.shards.names import Shard, may_be_in_shards
from spark_streams.connector.shards.shard_sets import (
    ShardSet,
    ShardsSnapshot,
    delete_shards,
    ensure_shards,
    fetch_shard_sets,
    fetch_shards_snapshots,
    require_complete,
    require_plain,
    retry_streams_of,
)
from spark_streams.connector.wire.address import Address, check_server
from spark_streams.connector.wire.named_errors import missing_right, url_of_cluster
from spark_streams.connector.wire.sentinel import fail_over as sentinel_fail_over
from spark_streams.connector.wire.sentinel import master
from spark_streams.connector.wire.server_url import Node, redacted
from spark_streams.connector.wire.topology import SlotMap, connect_to_node, topology_of, unreachable_reason


def server_address(url: str, options: Mapping[str, str], side: str) -> Address:
    """Return the checked address of a server. options: its login, which an embedded server may do without. Raises
    OptionError."""
    if not options and side == "target server" and Address.parse(url).is_embedded:
        address = Address.parse(url)  # the environment's login is for the other server
        check_server(address)
        return address
    return server_of({"url": url, **options}, side)


def field_decoders(
    by_registry: Iterable[str],
    by_file: Iterable[tuple[str, str]],
    format: str,
    registry: str,
    login: tuple[str, str],
    message: str,
    framed: bool,
    keeps_going: bool,
) -> FieldDecoders:
    """Return the decoders of fields. by_registry: their names; by_file: name and file of the schema; login: user and
    password file of the registry, both empty for none; keeps_going: as FieldDecoders. Raises errors of the schemas."""
    from spark_streams.connector.schemas.payload_format import NO_LOGIN, form_of, login_of, valid_schema

    access = login_of(login) if any(login) else NO_LOGIN
    forms = {name.encode(): form_of(format, registry, "", "", access, None) for name in by_registry}
    forms |= {name.encode(): form_of(format, "", file, message, NO_LOGIN, framed) for name, file in by_file}
    with valid_schema(format, "correct it"):
        return FieldDecoders(forms, keeps_going)
