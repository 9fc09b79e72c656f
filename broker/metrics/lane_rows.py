# The figures of the lanes to workers of other nodes, for table.py.
from typing import Final

from broker.metrics.rows import CounterRow

COUNTERS: Final[tuple[CounterRow, ...]] = (
    CounterRow(
        "lane_messages_sent",
        "Messages that were published in Redis for workers of other nodes: one for each tick and worker, as a rule.",
        prometheus="lane_messages_sent",
    ),
    CounterRow("lane_bytes_sent", "Bytes of these messages.", prometheus="lane_sent_bytes"),
    CounterRow(
        "lane_bytes_resent",
        "Bytes that were sent again to workers of other nodes, as they may have been lost.",
        prometheus="lane_resent_bytes",
    ),
    CounterRow(
        "lane_messages_received",
        "Messages in Redis that were received from workers of other nodes.",
        prometheus="lane_messages_received",
    ),
    CounterRow("lane_bytes_received", "Bytes of these messages.", prometheus="lane_received_bytes"),
    CounterRow(
        "lane_messages_ignored",
        "Messages for this worker in Redis that were ignored: malformed, of another version, of a worker that is not "
        "known, or old.",
        prometheus="lane_messages_ignored",
    ),
    CounterRow(
        "lane_gaps",
        "Times that bytes from a worker of another node were missing and were asked for again.",
        prometheus="lane_gaps",
    ),
    CounterRow(
        "lane_restarts",
        "Times that the lanes to a worker of another node had to be begun anew.",
        prometheus="lane_restarts",
    ),
)
