"""The PySpark that runs this Python process.

In the Python processes of Databricks' serverless compute, the platform's engine brings its own PySpark, package
`_engine_pyspark`, beside the package `pyspark` that programs import: an older one. All classes exist twice there, and
the engine asks for its own (docs/internals/facts.md, S99). Elsewhere there is only `pyspark`.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_ENGINE = "_engine_pyspark"


def has_engine() -> bool:
    """Whether an engine with its own PySpark runs this process."""
    return _ENGINE in sys.modules


def running_module(name: str) -> types.ModuleType | None:
    """Return a module of the PySpark that runs this process, such as `taskcontext`. None: it has no such module.

    The engine's package is imported only if the engine runs this process, and has imported it.
    """
    package = _ENGINE if has_engine() else "pyspark"
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError:
        return None


def with_engines_class(base: type) -> type:
    """Return a class of pyspark.sql.datasource; if an engine runs this process, one that also derives from the engine's
    class of this name."""
    if not has_engine():
        return base
    engines = getattr(running_module("sql.datasource"), base.__name__, None)  # an older engine may have none
    return base if engines is None else types.new_class(base.__name__, (engines, base))


def local_schema(schema: StructType | pa.Schema) -> StructType:
    """Return a schema as classes of `pyspark`: an engine passes its own, and Sail an Arrow schema."""
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        return schema
    if is_of_sail(schema):
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(schema, prefer_timestamp_ntz=True)
    return StructType.fromJson(schema.jsonValue())


def is_of_sail(schema: object) -> bool:
    """Whether Sail has passed this schema, a Spark Connect server without a JVM (docs/internals/facts.md, S105)."""
    return type(schema).__module__.partition(".")[0] == "pyarrow"


def takes_arrow_batches() -> bool:
    """Whether Spark takes Arrow record batches from a Python source, as far as it is known: not in Databricks Runtime
    15.4, which takes a batch for a row; and it need not be so in an engine that changes with the platform."""
    is_old = os.environ.get("DATABRICKS_RUNTIME_VERSION", "").startswith(("13.", "14.", "15."))
    return not has_engine() and not is_old


def is_of_connect(spark_object: object) -> bool:
    """Whether a session, query or writer belongs to Spark Connect, whose client has its own class for each class of
    Spark. Imports none of its packages."""
    return type(spark_object).__module__.startswith("pyspark.sql.connect.")


def quoted(name: str) -> str:
    """Return a name in quotes, as an identifier of Spark's SQL."""
    return f"`{name.replace('`', '``')}`"
