"""What the sources that jobs make for themselves share: options of the main source, one schema, one reader."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from thinclient.spark.options import parse_options


class JobDataSource(DataSource):
    """Registered by its job. Raises OptionError for options that the main source can't use."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options.items()))
        self._checked = parse_options(dict(options.items()))

    @property
    @abstractmethod
    def arrow_schema(self) -> pa.Schema:
        """Of its record batches."""

    def schema(self) -> StructType:
        return from_arrow_schema(self.arrow_schema)
