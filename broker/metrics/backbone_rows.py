# The figures of the inbound backbone, for table.py.
from typing import Final

from broker.metrics.rows import GREATEST, CounterRow, GaugeRow

COUNTERS: Final[tuple[CounterRow, ...]] = (
    CounterRow(
        "backbone_appended",
        "Publishes that the inbound backbone has stored.",
        prometheus="backbone_publishes_appended",
    ),
    CounterRow(
        "backbone_dispatched",
        "Publishes that were dispatched from the inbound backbone.",
        prometheus="backbone_publishes_dispatched",
    ),
    CounterRow(
        "backbone_left_out",
        "QoS 0 publishes that were not dispatched, as a worker that has ended may have done so.",
        prometheus="backbone_publishes_left_out",
    ),
    CounterRow(
        "backbone_deleted",
        "Records of the inbound backbone that were deleted before they were dispatched: their publishes are lost.",
        prometheus="backbone_records_deleted",
    ),
    CounterRow(
        "backbone_damaged",
        "Records and packs of the inbound backbone that could not be decoded.",
        prometheus="backbone_records_damaged",
    ),
)

GAUGES: Final[tuple[GaugeRow, ...]] = (
    GaugeRow(
        "backbone_lag_ms",
        "backbone_lag_ms",
        "Milliseconds since the oldest publish was accepted that waits in the inbound backbone to be dispatched.",
        node=GREATEST,
        prometheus="backbone_lag_seconds",
        scale=1e-3,
    ),
    GaugeRow(
        "backbone_behind",
        "backbone_behind",
        "Records of the inbound backbone whose publishes are not all done.",
        prometheus="backbone_records_behind",
    ),
    GaugeRow(
        "backbone_unfinished",
        "backbone_unfinished",
        "Publishes from the inbound backbone that are on their way to their receivers.",
        prometheus="backbone_publishes_under_way",
    ),
    GaugeRow(
        "backbone_partitions",
        "backbone_partitions",
        "Partitions of the inbound backbone that workers dispatch.",
        prometheus="backbone_partitions",
    ),
)
