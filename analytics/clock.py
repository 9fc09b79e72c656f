# The clock of a query whose log does not say that time passes: a stream without entries, with an offset at intervals.
#
# Without entries Spark makes no batch. But an overload ends, too, when its only node is killed, and the state of the
# analysis has to be told so. The stream of Redis has this in its own offsets (redis_source.py).
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from analytics.source import COLUMNS, IDLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME: Final = "weir_clock"
INTERVAL: Final = "interval"  # an option


class Clock(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: StructType) -> "ClockReader":
        return ClockReader(int(self.options[INTERVAL]))


class ClockReader(DataSourceStreamReader):
    """An offset has the time, `now`, in milliseconds."""

    def __init__(self, interval: int = IDLE) -> None:
        """*interval*: of offsets, in milliseconds."""
        self._interval = interval

    def initialOffset(self) -> dict[str, Any]:
        return {"now": _now()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        now = _now()
        return start if now < start["now"] + self._interval else {"now": now}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> "Iterator[tuple[Any, ...]] | Iterator[pyarrow.RecordBatch]":
        return iter(())


def ticks(spark: SparkSession, interval: int) -> "DataFrame":
    """Return the stream, with COLUMNS; *interval*: of its offsets, in milliseconds."""
    spark.dataSource.register(Clock)
    return spark.readStream.format(NAME).option(INTERVAL, interval).load()


def _now() -> int:
    return int(time.time() * 1000)
