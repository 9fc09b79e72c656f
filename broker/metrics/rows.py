# The rows of the table of what a worker counts or holds (table.py).
from enum import Enum
from typing import Final, NamedTuple

SUM: Final = "sum"  # the node has as much as its workers together
GREATEST: Final = "greatest"  # each worker holds all of it, or a sum means nothing


class CounterRow(NamedTuple):
    """A number that only rises, of `Counters`."""

    attribute: str
    meaning: str
    prometheus: str = ""  # weir_<name>_total
    topics: tuple[str, ...] = ()  # $SYS/broker/<topic>
    load: str = ""  # $SYS/broker/load/<name>/1min, 5min and 15min: the same per minute
    record: str = ""  # path of the field in the metrics record: the difference to the record before
    computed: bool = False  # a property, made of other counters


class ReasonRow(NamedTuple):
    """A counter for each member of an enumeration, of `Counters`: a dictionary by label."""

    attribute: str
    reported: str  # its name in the report
    reasons: type[Enum]
    meaning: str
    prometheus: str = ""  # weir_<name>_total
    label: str = "reason"  # the label of Prometheus that has the member
    scale: float = 1.0  # from our unit to that of Prometheus
    topic: str = ""  # $SYS/broker/<topic>, where {} is the member; only of members that were counted
    record: str = ""  # path of the table in the metrics record; rows with one path share it


class GaugeRow(NamedTuple):
    """A number that rises and falls, of `Gauges`."""

    attribute: str
    reported: str  # its name in the report
    meaning: str
    node: str = SUM  # how the workers' values make that of the node
    prometheus: str = ""  # weir_<name>
    quantile: str = ""  # the label of Prometheus that keeps rows with one name apart
    scale: float = 1.0
    topics: tuple[str, ...] = ()
    form: str = ""  # of the number in $SYS
    record: str = ""


class OverloadRow(NamedTuple):
    """A figure of overload protection, of `OverloadFigures`. `overload_figures.together()` says what a node's is."""

    attribute: str
    meaning: str
    prometheus: str = ""
    topic: str = ""
    form: str = ""
    record: str = ""
    digits: int = -1  # of a fraction in the record; -1: all
