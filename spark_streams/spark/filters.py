"""Whether Spark offers a Python source the filters of a query: since 4.1."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceReader

HAS_FILTERS = hasattr(DataSourceReader, "pushFilters")
