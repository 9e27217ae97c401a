"""Whether Spark passes a query's filters to a Python source. It does so since 4.1."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceReader

HAS_FILTERS = hasattr(DataSourceReader, "pushFilters")
