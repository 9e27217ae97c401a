"""Values of fields as JSON, for people who look at entries: `rstream show --decode` and the console."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from spark_streams.errors import RegistryError
from spark_streams.schemas.decoder import Decoder
from spark_streams.schemas.form import PROTOBUF, Form
from spark_streams.schemas.json_text import text_of
from spark_streams.schemas.reasons import BAD_VALUE, UnreadableError
from spark_streams.schemas.registry import Registry
from spark_streams.wire.address.patience import DEFAULT_PATIENCE

_MOST_BYTES = 1 << 20  # of a value
_PATIENCE = replace(DEFAULT_PATIENCE, limit=5.0)  # a person waits


class Shown(NamedTuple):
    """A value of a field that is decoded. text: JSON in UTF-8; reason: why there is none, else empty."""

    text: bytes
    reason: str = ""


class FieldDecoders:
    """Decoders by the name of a field. keeps_going: a registry that cannot be asked is a reason, not an error."""

    def __init__(self, forms: Mapping[bytes, Form], keeps_going: bool = False) -> None:
        """Raise errors of the format's package if a schema is not valid."""
        registries = {
            (form.registry, form.login): Registry(form.registry, form.login, form.format == PROTOBUF, _PATIENCE)
            for form in forms.values()
            if form.registry
        }
        self._decoders = {
            name: Decoder(form, registries.get((form.registry, form.login))) for name, form in forms.items()
        }
        self._keeps_going = keeps_going

    @property
    def fields(self) -> frozenset[bytes]:
        """Names of the fields that are decoded."""
        return frozenset(self._decoders)

    def shown(self, name: bytes, value: bytes) -> Shown | None:
        """Return the decoded value, None for a field that is not decoded. Raises RegistryError."""
        decoder = self._decoders.get(name)
        if decoder is None:
            return None
        if len(value) > _MOST_BYTES:
            return Shown(b"", "larger than 1 MB")
        try:
            return Shown(text_of(decoder.decode(value)).encode("utf-8", "backslashreplace"))
        except UnreadableError as error:
            return Shown(b"", error.reason)
        except RegistryError as error:
            if not self._keeps_going:
                raise
            return Shown(b"", str(error))
        except RecursionError:
            return Shown(b"", BAD_VALUE)

    def as_json(self, pairs: Iterable[tuple[bytes, bytes]]) -> list[dict[str, str]]:
        """Return an object for each field that is decoded: its name, and the JSON as a text or the reason."""
        found = [(name.decode(), self.shown(name, value)) for name, value in pairs if name in self._decoders]
        return [
            {"field": name, **({"reason": one.reason} if one.reason else {"json": one.text.decode()})}
            for name, one in found
            if one is not None
        ]
