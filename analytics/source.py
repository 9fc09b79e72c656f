# Where the metrics records come from: the seam between their log and all else of the analysis.
#
# Two logs have them: the stream of Redis (redis_source.py), and the Kafka topic `weir.metrics` (kafka_source.py). A
# source gives Spark the entries of the log, with exact offsets, so that a batch that is repeated has the same entries.
# What the log knows of a batch beside its entries, `Planned`, is read from the offsets that Spark has saved, and is the
# same again, too. Nothing else of the analysis knows which log it is.
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from analytics.checkpoint import Checkpoint

# The columns of entries. `id`: MS-NUMBER, when the log took the entry in (Unix time), and a number that makes the id
# unique; `at`: the former as a timestamp; `parts`: how many partitions of about the same size the batch is read in.
COLUMNS: Final = "id string, at timestamp, body string, parts int"
LIMIT: Final = 10_000  # entries of a batch: about 30 MB
LONGEST: Final = 1 << 20  # characters or bytes of a body; a longer body is cut, and thereby invalid
LAST_MS: Final = 4_102_444_800_000  # the year 2100: an id may be any number of 64 bits, a timestamp may not
IDLE: Final = 10_000  # milliseconds after which there is an empty batch: time passes, also when nobody writes


@dataclass(frozen=True)
class Planned:
    """What the log knows of a batch."""

    entries: int  # of the batch, unless the log deletes some before they are read
    lost: int  # entries that the log deleted before the batch was planned, and after the former one was
    now: float  # the time, by the clock of the log if there are entries; 0.0: not known


class Source(Protocol):
    name: str  # identifies the log, for the checkpoint
    shown: str  # names it, for people

    def entries(self, spark: "SparkSession") -> "DataFrame":
        """Return the log as a stream with COLUMNS."""
        ...

    def planned(self, checkpoint: "Checkpoint", batch: int, newest: float) -> Planned:
        """Return what the log knows of *batch*, whose offsets Spark has saved in *checkpoint*.

        *newest*: when the log took in the newest entry of the batch that came through; 0.0 if none did. Raises OSError,
        ValueError: this version of Spark stores offsets differently.
        """
        ...

    def trouble(self, spark: "SparkSession") -> str:
        """Return why the log cannot be read now; "" if it can."""
        ...


def id_order(id: str) -> tuple[int, int]:
    """Return the sort key of the *id* of an entry."""
    milliseconds, _, number = id.partition("-")
    return int(milliseconds), int(number or 0)


def time_of(id: str) -> float:
    """Return when the log took in the entry *id*, as Unix time."""
    return min(id_order(id)[0], LAST_MS) / 1000
