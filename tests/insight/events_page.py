# The tables of reasons in broker/insight/EVENTS.md, made of the enumerations: `python -m tests.insight.events_page`.
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, Final

from broker.metrics.table import REASONS
from broker.reasons import (
    CloseReason,
    DropReason,
    FilterRefusal,
    FlushCause,
    LogFailure,
    PauseReason,
    PublishRefusal,
    ReportFailure,
    StoreFailure,
)

PAGE: Final = Path(__file__).parents[2] / "broker" / "insight" / "EVENTS.md"
BEGIN: Final = "<!-- reasons -->\n"
END: Final = "<!-- /reasons -->\n"
SECTIONS: Final[tuple[tuple[type[Enum], str, str], ...]] = (
    (CloseReason, "Connections", "The code is that of the DISCONNECT, or of the CONNACK. Event: `client_closed`."),
    (PauseReason, "Throttled clients", "Event: `client_throttled`."),
    (
        PublishRefusal,
        "Refused publishes",
        "QoS 1 and 2 of MQTT 5.0. The code is that of the PUBACK or PUBREC. Event: `publish_refused`.",
    ),
    (DropReason, "Dropped messages", "Counted once for each receiver. Events: see `publish_dropped` and others above."),
    (FilterRefusal, "Refused filters", "The code is that of the SUBACK; MQTT 3 has 0x80. Event: `filter_refused`."),
    (StoreFailure, "Redis", "Event: `redis_unavailable`. The metric counts metrics records that were not written."),
    (
        LogFailure,
        "Logs",
        "`why` of events about logs begins with these words. The metrics count packs of messages, and records.",
    ),
    (ReportFailure, "Ignored overload reports", "`weir overload --json` counts them for each worker."),
    (
        FlushCause,
        "Flushes",
        "Why a client's waiting bytes were sent at that moment; the label of the metric is `cause`.",
    ),
)


def written(text: str) -> str:
    """*text*, the page, with the tables of today."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{''.join(_section(*each) for each in SECTIONS)}\n{END}{tail}"


def _section(reasons: type[Enum], title: str, about: str) -> str:
    metrics = [f"`weir_{row.prometheus}_total`" for row in REASONS if row.reasons is reasons]
    counters = f" Metric: {', '.join(metrics)}." if metrics else ""
    members: Iterable[Any] = reasons
    coded = any(hasattr(member, "code") for member in members)
    head = "| reason | code | meaning |\n|---|---|---|\n" if coded else "| reason | meaning |\n|---|---|\n"
    rows = "".join(_row(member, coded) for member in members)
    return f"\n### {title}\n\n{about}{counters}\n\n{head}{rows}"


def _row(member: Any, coded: bool) -> str:
    code = f" {f'0x{member.code:02X}' if member.code else ''} |" if coded else ""
    return f"| `{member.label}` |{code} {member.words[0].upper()}{member.words[1:]}. |\n"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
