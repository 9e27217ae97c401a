"""Names for values without a static type: values of other programs, checked by the code that reads them."""

from __future__ import annotations

from typing import Any

Json = Any  # as json.loads returns it: None, bool, int, float, str, a list or a dict of these
JavaObject = Any  # an object of Spark's JVM, through py4j
