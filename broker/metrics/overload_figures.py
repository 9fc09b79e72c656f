# The figures of overload protection, of one worker or of a whole node, for the metrics record, Prometheus and $SYS.
# table.py says where each is shown. `level` to `throttled` are what HiveMQ shows; its clients in back-pressure are
# `throttled` here.
from dataclasses import dataclass, field

CALM_CREDITS = 50_000  # that a client gets and has at level 0 (overload.refill)


@dataclass(kw_only=True)
class OverloadFigures:
    """One reading, which does not change."""

    level: int = 0  # 0 to 10, rounded up
    credits_per_tick: int = CALM_CREDITS  # that each client gets every 200 ms
    using_credits: int = 0  # clients with less than the most they may have
    average_credits: float = float(CALM_CREDITS)  # of all clients
    throttled: int = 0  # clients that wait at a gate or for credits, without those that wait for a quota
    cluster_level: int = 0  # the highest level of all nodes, which is in force
    cause: str = ""  # the signal with the highest value, "" at level 0
    signals: dict[str, float] = field(default_factory=dict)  # by name, in units of their targets


def together(figures: "list[tuple[OverloadFigures, int]]") -> OverloadFigures:
    """The figures of a node, from those of its workers, each with the number of its clients.

    Levels and signals are the highest, credits per tick the lowest; numbers of clients are added, and averages are
    weighted with them.
    """
    if not figures:
        return OverloadFigures()
    worst = max((each for each, _ in figures), key=_level)
    signals: dict[str, float] = {}
    for each, _ in figures:
        for name, value in each.signals.items():
            signals[name] = max(value, signals.get(name, value))
    clients = sum(count for _, count in figures)
    average = worst.average_credits
    if clients:
        average = sum(each.average_credits * count for each, count in figures) / clients
    return OverloadFigures(
        level=worst.level,
        credits_per_tick=min(each.credits_per_tick for each, _ in figures),
        using_credits=sum(each.using_credits for each, _ in figures),
        average_credits=average,
        throttled=sum(each.throttled for each, _ in figures),
        cluster_level=max(each.cluster_level for each, _ in figures),
        cause=worst.cause,
        signals=signals,
    )


def _level(figures: OverloadFigures) -> int:
    return figures.level
