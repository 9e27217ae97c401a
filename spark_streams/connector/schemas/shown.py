"""Values of fields as JSON, for people who look at entries: `rstream show --decode` and the console."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from spark_streams.connector.schemas.apart.frames import Shown
from spark_streams.connector.schemas.apart.process import DecodeProcess
from spark_streams.connector.schemas.decoder import reader_of
from spark_streams.connector.schemas.payload_format import PayloadFormat
from spark_streams.connector.schemas.registry import Schema

_MOST_BYTES = 1 << 20  # of a value


class FieldDecoders:
    """Decoders by the name of a field, in a process of their own that may die. keeps_going: a registry that cannot be
    asked is a reason, not an error.
    """

    def __init__(
        self, forms: Mapping[bytes, PayloadFormat], keeps_going: bool = False, process: DecodeProcess | None = None
    ) -> None:
        """Raise errors of the format's package if a schema is not valid. process: by default it has these forms."""
        for form in forms.values():
            reader_of(form, Schema(form.schema, form.format.upper()) if form.schema else None)
        self.fields = frozenset(forms)
        self._is_strict = not keeps_going
        self._process = process or DecodeProcess(forms)

    def page(self, pairs: Sequence[tuple[bytes, bytes]]) -> list[Shown | None]:
        """Return the decoded values of a page, None for each field that is not decoded. Raises RegistryError."""
        shown: list[Shown | None] = [
            Shown(b"", "larger than 1 MB") if name in self.fields and len(value) > _MOST_BYTES else None
            for name, value in pairs
        ]
        places = [place for place, (name, _) in enumerate(pairs) if name in self.fields and shown[place] is None]
        if places:
            found = self._process.decode([pairs[place] for place in places], self._is_strict)
            for place, one in zip(places, found, strict=True):
                shown[place] = one
        return shown

    def as_json(self, pairs: Iterable[tuple[bytes, bytes]]) -> list[dict[str, str]]:
        """Return an object for each field that is decoded: its name, and the JSON as a text or the reason."""
        own = [(name, value) for name, value in pairs if name in self.fields]
        return [
            {"field": name.decode(), **({"reason": one.reason} if one.reason else {"json": one.text.decode()})}
            for (name, _), one in zip(own, self.page(own), strict=True)
            if one is not None
        ]
