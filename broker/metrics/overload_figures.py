# What overload protection is at, in figures: of one worker, or of all of a node.
#
# Who protects fills them in (worker.py), who shows them reads them: the metrics record, Prometheus and $SYS. The first
# four that are named here are HiveMQ's, with clients in back-pressure as `throttled`.
from dataclasses import dataclass, field

CALM_CREDITS = 50_000  # what a client is granted and has while nothing is overloaded (overload.refill)


@dataclass(kw_only=True)
class OverloadFigures:
    """One reading. It is not changed afterwards."""

    level: int = 0  # 0 to 10, rounded up
    credits_per_tick: int = CALM_CREDITS  # that each client gets every 200 ms
    using_credits: int = 0  # clients with less than the most they may have
    average_credits: float = float(CALM_CREDITS)  # of all clients
    throttled: int = 0  # clients that are held back, by overload protection alone
    cluster_level: int = 0  # the highest of all nodes, which is in force
    cause: str = ""  # the signal that is worst, "" at level 0
    signals: dict[str, float] = field(default_factory=dict)  # by name, in units of their targets


def together(figures: "list[tuple[OverloadFigures, int]]") -> OverloadFigures:
    """Of several workers one reading; each with the number of its clients.

    Levels and signals are those of the worst, credits a tick those of who gets least; clients are added up, and the
    average is that over all of them.
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
